"""The proofs of a build: its extensions can be imported in the environment, and hold code for the GPUs that are wanted.

A kernel that was built for another architecture imports well and fails at its first launch, or is compiled again from
PTX at each start: so what `cuobjdump` lists is looked at beforehand.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import zipfile
from collections.abc import Iterable

from envbuild.node import proc
from envbuild.node.packages import uv
from envbuild.node.protocol import Exit, Json, NodeError, log
from envbuild.node.read_text import json_lines, which

_IMPORTS = 900.0  # s for all imports of a source
# torch before what is linked to it, or fails alone: it loads the libraries of its extensions. One line before each
# import says where a crash was.
_IMPORT = """
import importlib, importlib.util, json, sys
def say(**what):
    sys.stdout.write(json.dumps(what) + "\\n")
    sys.stdout.flush()
def import_torch():
    try:
        importlib.import_module("torch")
    except ImportError:
        pass
def is_of_torch(name):
    spec = importlib.util.find_spec(name)
    if not spec or not spec.has_location:
        return False
    with open(spec.origin, "rb") as stream:
        data = stream.read()
    return b"libtorch" in data or b"libc10" in data
for name in json.loads(sys.argv[1]):
    say(begins=name)
    try:
        if is_of_torch(name):
            import_torch()
        try:
            importlib.import_module(name)
        except ImportError:
            import_torch()
            importlib.import_module(name)
    except BaseException as error:
        say(name=name, error="%s: %s" % (type(error).__name__, error))
    else:
        say(name=name, error=None)
"""
# A shared object that is a plain library: it was loaded, and is no module.
_LIBRARY = "does not define module export function"
# Of the driver: there is none where nothing but a build is done.
_DRIVER = ("libcuda.so", "libnvidia-ml.so")
_LISTED = re.compile(r"^(ELF|PTX) file +[0-9]+: .*\.sm_([0-9]+[af]?)\.(?:cubin|ptx)[ \t]*$", re.MULTILINE)
_NO_CODE = "does not contain device code"
_WANTED = re.compile(r"([0-9]+)\.([0-9]+)([af]?)(\+PTX)?\Z")
_FOUND = re.compile(r"sm_([0-9]+)([0-9])([af]?)\Z")
_DEADLINE = 120.0  # s of one listing
# Where packages that come with torch keep one (Triton 3, Triton 2, NVIDIA's own package), below a site-packages folder.
_IN_SITES = (
    "triton/backends/nvidia/bin",
    "triton/third_party/cuda/bin",
    "nvidia/cu13/bin",
    "nvidia/cuda_cuobjdump/bin",
)


def imports(python: str, source: str, names: list[str], env: dict[str, str]) -> Json:
    """Import `names`, the extensions of `source`, with the interpreter `python`; `env` is that of its process.

    Result: `imported`, `libraries` (plain shared libraries, which only load) and `unchecked` (name -> why: they need
    the driver, which is not here). Raises NodeError `extension-broken` (exit 4) with what the import says.
    """
    done = proc.run([python, "-I", "-B", "-c", _IMPORT, json.dumps(names)], timeout=_IMPORTS, env=env)
    result: Json = {"imported": [], "libraries": [], "unchecked": {}}
    broken: dict[str, str] = {}
    at: str | None = None
    for row in json_lines(done.out):  # an extension may print lines of its own
        if "begins" in row:
            at = str(row["begins"])
        if "name" not in row:
            continue
        at, name, error = None, str(row["name"]), row.get("error")
        if error is None:
            result["imported"].append(name)
        elif _LIBRARY in error:
            result["libraries"].append(name)
        elif any(library in error for library in _DRIVER):
            result["unchecked"][name] = error
        else:
            broken[name] = str(error)
    if at is not None or not done.ok:
        how = "it did not end in time" if done.timed_out else f"the process ended with {done.rc}"
        broken[at or names[0]] = f"{how}; {uv.tail(done.err, 10)}"
    if broken:
        first = sorted(broken)[0]
        raise NodeError(
            "extension-broken",
            f"source {source}: the extension {first} was built and cannot be imported",
            why="; ".join(f"{name}: {broken[name]}" for name in sorted(broken)),
            hint="it was built against other libraries than those of the environment; look at LD_LIBRARY_PATH, and at "
            "the stored wheel: `envbuild store list`",
            details={"extensions": sorted(broken)},
        )
    log(f"{source}: imported {', '.join(result['imported']) or 'nothing'}")
    return result


def architectures(wheel: str, wanted: Iterable[str], cuda_home: str | None, sites: Iterable[str] = ()) -> Json:
    """The architectures in the shared objects of a wheel.

    `wanted` is an arch list as in TORCH_CUDA_ARCH_LIST (`["9.0"]`, `["8.0", "9.0+PTX"]`); empty: nothing is demanded.
    `cuobjdump` is looked for in `cuda_home`, on PATH and in packages below `sites` (site-packages folders).

    Result: `wanted`, `found` {extension: sorted list of `sm_90` (machine code) and `compute_90` (PTX); empty without
    device code}, `how` (`cuobjdump`, or `not checked: ` and why), `notes` (list of str, only when there are some: an
    architecture that only code for a lower minor version serves).

    Raises NodeError `arch-missing` (exit 4) when one with device code lacks a wanted architecture.
    """
    asked = sorted({str(arch) for arch in wanted})
    for arch in asked:
        if not _WANTED.match(arch):
            raise NodeError("request-invalid", f"not a GPU architecture: {arch!r}", hint="write 9.0, 9.0a or 9.0+PTX")
    result: Json = {"wanted": asked, "found": {}, "how": "cuobjdump"}
    program = find_cuobjdump(cuda_home, sites)
    if program is None:
        result["how"] = "not checked: no cuobjdump"
        return result
    with tempfile.TemporaryDirectory(prefix="arch-") as folder:
        for name, path in _unpacked(wheel, folder).items():
            listed = _list(program, path)
            if isinstance(listed, str):
                result["how"] = f"not checked: {listed}"
                return result
            result["found"][name] = listed
    _judge(result)
    return result


def find_cuobjdump(cuda_home: str | None, sites: Iterable[str] = ()) -> str | None:
    """Path of a `cuobjdump`: of the toolkit that built, of PATH, or of a package in one of the folders; or None."""
    folders = [os.path.join(cuda_home, "bin")] if cuda_home else []
    folders += [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(folder)]
    folders += [os.path.join(site, inside) for site in sites for inside in _IN_SITES]
    return which("cuobjdump", folders)


def parse_listing(text: str) -> list[str]:
    """`sm_90`, `sm_90a`, `compute_90` … of the output of `cuobjdump --list-elf` or `--list-ptx`: sorted, each once.

    A line is `ELF file    1: amp_C.1.sm_90.cubin` or `PTX file    1: amp_C.1.sm_90.ptx`; others are messages.
    """
    matches = {("sm_" if match.group(1) == "ELF" else "compute_") + match.group(2) for match in _LISTED.finditer(text)}
    return sorted(matches, key=_order)


def _order(name: str) -> tuple[str, int, str]:
    kind, _, number = name.partition("_")
    digits = number.rstrip("af")
    return kind, int(digits), number[len(digits) :]


def missing(present: list[str], wanted: Iterable[str]) -> tuple[list[str], list[str]]:
    """(wanted architectures that nothing in `present` serves, notes about those that only a lower minor serves).

    Machine code runs on its own compute capability and on higher minor versions of the same major one (CUDA C++
    Programming Guide, Binary Compatibility); code with an `a` only on exactly its own, with an `f` on its family. PTX
    alone is compiled on the node at the first start, which is not what was built for: it does not count.
    """
    lacking, notes = [], []
    for arch in wanted:
        major, minor, special, ptx = _WANTED.findall(arch)[0]  # `architectures` has checked its form
        exact = f"sm_{major}{minor}{special}"
        serving = [name for name in present if _serves(name, major, int(minor), special)]
        if not serving or (ptx and f"compute_{major}{minor}" not in present):
            lacking.append(arch)
        elif not any(name.rstrip("af") == exact.rstrip("af") for name in serving):
            notes.append(f"{arch} is served by {', '.join(serving)}")
    return lacking, notes


def _serves(name: str, major: str, minor: int, special: str) -> bool:
    match = _FOUND.match(name)
    if match is None or match.group(1) != major:
        return False
    theirs, suffix = int(match.group(2)), match.group(3)
    if special or suffix == "a":
        return theirs == minor and (not special or suffix == special)
    return theirs <= minor


def _judge(result: Json) -> None:
    """Raises NodeError `arch-missing` where device code lacks a wanted architecture; adds `notes`."""
    wrong: dict[str, list[str]] = {}
    for name, present in sorted(result["found"].items()):
        lacking, texts = missing(present, result["wanted"]) if present else ([], [])
        if texts:
            result.setdefault("notes", []).extend(f"{name}: {text}" for text in texts)
        if lacking:
            wrong[name] = lacking
    if not wrong:
        return
    first = sorted(wrong)[0]
    raise NodeError(
        "arch-missing",
        f"{first} has no device code for {', '.join(wrong[first])}",
        why=(
            f"it has {', '.join(result['found'][first])}; {len(wrong)} of {len(result['found'])} "
            "extensions lack a wanted architecture"
        ),
        hint="this source sets its own architectures and ignores TORCH_CUDA_ARCH_LIST: it needs a flag or a patch",
        details={"missing": wrong, "found": result["found"], "wanted": result["wanted"]},
    )


def modules(wheel: str, ends: str = r"\.so\Z") -> dict[str, str]:
    """Import name -> member, for every shared object in a wheel; `ends`: how such a file is named."""
    result = {}
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if re.search(ends, member):
                *folders, file = re.sub(r"\A[^/]+\.data/[^/]+/", "", member).split("/")
                result[".".join([*folders, file.split(".")[0]])] = member
    return result


def _unpacked(wheel: str, folder: str) -> dict[str, str]:
    """Import name and place of every shared object of a wheel, also with a version, unpacked below `folder`."""
    by_module: dict[str, str] = {}
    try:
        members = modules(wheel, r"\.so(\.[0-9.]+)?\Z")
        with zipfile.ZipFile(wheel) as archive:
            for module, member in members.items():
                by_module[module] = archive.extract(member, os.path.join(folder, str(len(by_module))))
    except (OSError, zipfile.BadZipFile) as error:
        raise NodeError(
            "wheel-unreadable", f"{wheel} is not a wheel", why=str(error), exit_code=Exit.BUILD_FAILED
        ) from error
    return by_module


def _list(program: str, path: str) -> list[str] | str:
    """The architectures in one shared object; a str says why they could not be read."""
    codes: list[str] = []
    complaint = ""
    for option in ("--list-elf", "--list-ptx"):
        done = proc.run([program, option, path], timeout=_DEADLINE)
        if _NO_CODE in done.out + done.err:
            return []
        if not done.ok:
            lines = [line.strip() for line in (done.out + "\n" + done.err).splitlines() if line.strip()]
            why = "it took too long" if done.timed_out else lines[-1][:200] if lines else f"exit {done.rc}"
            return f"cuobjdump of {os.path.basename(path)}: {why}"
        codes += parse_listing(done.out)
        complaint = complaint or (done.err.strip() or done.out.strip())[-200:]
    return sorted(codes, key=_order) if codes else f"cuobjdump of {os.path.basename(path)}: {complaint or 'no answer'}"
