"""A program that makes the editable wheel of a project whose setuptools cannot: before 64 it has no `build_editable`.

    python -c PROGRAM OUT        in the folder of the project

The wheel has the project's metadata, entry points and scripts, and a .pth file that names the folder of its packages;
extensions are compiled in place. The folder OUT stays empty where the backend makes editable wheels itself (PEP 660),
or cannot be asked here. Runs under the environment's interpreter and imports nothing else of the node program.
"""

import base64
import hashlib
import importlib
import os
import re
import sys
import tempfile
import zipfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SECTION = re.compile(r"(?ms)^\s*\[build-system\]\s*$(.*?)(?=^\s*\[|\Z)")
_BACKEND = re.compile(r"(?m)^\s*build-backend\s*=\s*[\"']([^\"']*)[\"']")
_WHEEL = b"Wheel-Version: 1.0\nGenerator: envbuild\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def section(project: str) -> str:
    """The text of [build-system] in a project's pyproject.toml; empty where there is none."""
    try:
        with open(os.path.join(project, "pyproject.toml"), encoding="utf-8", errors="replace") as stream:
            match = _SECTION.search(stream.read())
    except OSError:
        match = None
    return match.group(1) if match else ""


def backend(project: str) -> "tuple[str, bool]":
    """The build backend that a project names, setuptools' own where it names none; whether it lies in its tree."""
    text = section(project)
    named = _BACKEND.search(text)
    return named.group(1) if named else "setuptools.build_meta:__legacy__", "backend-path" in text


def _lacking() -> "Any":
    """The backend of the current folder's project when it is a setuptools that makes no editable wheels, else None."""
    name, in_tree = backend(".")
    module, _, attribute = name.partition(":")
    if in_tree or module != "setuptools.build_meta":
        return None
    try:
        made: Any = importlib.import_module(module)
    except ImportError:
        return None
    made = getattr(made, attribute, made) if attribute else made
    return None if hasattr(made, "build_editable") else made


def _metadata(made: "Any", folder: str) -> "tuple[dict[str, bytes], Any]":
    """The files of the `.dist-info`, made below `folder`, and the Distribution of setup()."""
    base = importlib.import_module("distutils.dist").Distribution.__mro__[-2]
    results: list[Any] = []
    original = base.run_commands

    def run_commands(dist: "Any") -> None:
        results.append(dist)
        original(dist)

    base.run_commands = run_commands
    sys.argv = ["setup.py"]
    return _files(os.path.join(folder, made.prepare_metadata_for_build_wheel(folder))), results[-1]


def _stem(metadata: bytes) -> str:
    """`<name>-<version>` as a wheel and its folders are named; old ones name the folder without a version."""
    head = metadata.decode("utf-8").split("\n\n")[0]
    matches = [re.search(r"(?m)^%s: *(.+?)\r?$" % key, head) for key in ("Name", "Version")]
    return "-".join(re.sub(r"[^A-Za-z0-9.+!]+", "_", match.group(1)) for match in matches if match)


def _root(dist: "Any") -> str:
    """The folder, in the project's, that a .pth file has to name; ends the program where one is not enough."""
    places = dict(dist.package_dir or {})
    root = places.pop("", "")
    for package, folder in places.items():
        if os.path.normpath(folder) != os.path.normpath(os.path.join(root, *package.split("."))):
            sys.exit("its package %s lies in %s, which an editable install of this setuptools does not reach; "
                     "say `install: wheel`" % (package, folder))  # fmt: skip
    return os.path.normpath(os.path.join(os.getcwd(), root))


def _scripts(dist: "Any", folder: str) -> "dict[str, bytes]":
    """The files of `scripts=`, which are no entry points, by name; `#!python` is the installer's to replace."""
    if not dist.scripts:
        return {}
    command = dist.reinitialize_command("build_scripts")
    command.build_dir, command.executable, command.force = folder, "python", 1
    dist.run_command("build_scripts")
    return _files(folder)


def _files(folder: str) -> "dict[str, bytes]":
    out = {}
    for name in sorted(os.listdir(folder)):
        if os.path.isfile(os.path.join(folder, name)):
            with open(os.path.join(folder, name), "rb") as stream:
                out[name] = stream.read()
    return out


def _write(path: str, info: str, files: "dict[str, bytes]") -> None:
    rows = []
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in sorted(files.items()):
            archive.writestr(name, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")
            rows.append("%s,sha256=%s,%d\n" % (name, digest, len(data)))
        archive.writestr(info + "/RECORD", "".join(rows) + info + "/RECORD,,\n")


def main(out: str) -> None:
    """Make the wheel in the folder `out`, or nothing there; ends with setup.py's own exit code."""
    made = _lacking()
    if made is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        metadata, dist = _metadata(made, folder)
        root = _root(dist)
        if dist.has_ext_modules():
            dist.reinitialize_command("build_ext").inplace = 1
            dist.run_command("build_ext")
        stem = _stem(metadata["METADATA"])
        info = stem + ".dist-info"
        files = {"%s/%s" % (info, name): data for name, data in metadata.items() if name not in ("RECORD", "WHEEL")}
        files[info + "/WHEEL"] = _WHEEL
        files["__editable__.%s.pth" % stem] = os.fsencode(root) + b"\n"
        for name, data in _scripts(dist, os.path.join(folder, "scripts")).items():
            files["%s.data/scripts/%s" % (stem, name)] = data
    _write(os.path.join(out, stem + "-py3-none-any.whl"), info, files)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
