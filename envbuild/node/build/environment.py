"""What a build sees: variables, packages and no network.

Variables: the environment's own programs first, the target's GPUs, and nothing that varies. Of the packages those that
it asks for and what these require, in a venv of its own. The build key names these and no others, so that stacks which
agree in them share a wheel. An environment of conda packages is seen whole: its compilers and libraries lie among its
packages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from envbuild.node import git_source, paths, proc
from envbuild.node.build.programs import editable
from envbuild.node.conda import activation
from envbuild.node.packages import installed
from envbuild.node.protocol import Json, NodeError, log
from envbuild.node.variables import for_build

_COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++")
_PLACE = "/envbuild"
# Ways to have no network: as root; as a user who may make user namespaces (own id, then, with older programs, as its
# root).
_WAYS = (("-n",), ("-c", "-n"), ("-r", "-n"))
_WHERE = "/usr/bin:/bin:/usr/sbin:/sbin"
# What a setup.py of this field imports and does not declare: it is made for pip's --no-build-isolation. Megatron's
# imports its own package, which imports regex.
_UNDECLARED = ("numpy", "ninja", "packaging", "pybind11", "regex", "setuptools", "torch", "wheel")
_REQUIRES = re.compile(r"(?ms)^\s*requires\s*=\s*\[(.*?)\]\s*(?:#.*)?$")
_EXTRAS = re.compile(r"\s*[\w.-]+\s*\[([^\]]*)\]")
_FOR_EXTRA = re.compile(r"\bextra\s*==\s*[\"']([^\"']*)")
# The interpreter's packages, each: folder, name, version, requirements, and the files that its installer has recorded;
# else its modules and the file or folder of its metadata.
_ASK = r"""
import json, os, re, sys
from importlib import metadata
packages = []
for each in metadata.distributions():
    info = str(each._path)
    try:
        name, version, requires = each.metadata["Name"], each.version, each.requires
    except (KeyError, TypeError):  # a folder with no metadata in it
        name = version = requires = None
    name = name or os.path.basename(info).split("-")[0]
    files = [str(path) for path in each.files or ()] if each.read_text("RECORD") else []
    if not files:
        tops = (each.read_text("top_level.txt") or "").split() or [re.sub(r"[-.]", "_", name)]
        files = [top + end for top in tops for end in ("", ".py")] + [os.path.basename(info)]
    files = [path for path in files if not path.startswith("/") and not path.endswith(".pyc")]
    packages.append((os.path.dirname(info), name, version or "?", requires or [], files))
base = getattr(sys, "_base_executable", None) or os.path.realpath(sys.executable)
print(json.dumps({"packages": packages, "base": base, "version": "%d.%d" % sys.version_info[:2]}))
"""


class Toolchain(NamedTuple):
    """What a build on this node can use; asked once, see `look`.

    `prefix_map`: the compiler's option that takes folders out of files, without its value. `objtemp`: nvcc has
    `-objtemp`. `nvcc`, `strip`, `ccache`: paths or None.
    """

    prefix_map: str = "-fdebug-prefix-map"
    objtemp: bool = False
    nvcc: str | None = None
    strip: str | None = None
    ccache: str | None = None


def look(env: dict[str, str], cuda_home: str | None) -> Toolchain:
    """Ask the programs that a build with the variables `env` would use."""
    path = env.get("PATH", os.defpath)
    compiler = env.get("CC", "").split() or ["cc"]
    help_ = proc.run(compiler + ["--help=common"], timeout=20.0, env=env)
    version = proc.run(compiler + ["-dumpversion"], timeout=20.0, env=env).out.strip()
    number = re.match(r"\d+", version)
    # gcc 8 and clang 10 have it; clang's -dumpversion is its own version since 11 and 4.2.1 before.
    new = "-ffile-prefix-map" in help_.out or (number is not None and int(number.group()) >= 8)
    nvcc = os.path.join(cuda_home, "bin", "nvcc") if cuda_home else shutil.which("nvcc", path=path)
    if nvcc is not None and not os.access(nvcc, os.X_OK):
        nvcc = None
    objtemp = nvcc is not None and "-objtemp" in proc.run([nvcc, "--help"], timeout=60.0, env=env).out
    prefix_map = "-ffile-prefix-map" if new else "-fdebug-prefix-map"
    return Toolchain(prefix_map, objtemp, nvcc, shutil.which("strip", path=path), shutil.which("ccache", path=path))


def toolkit(cuda_home: str | None) -> str | None:
    """The folder of the toolkit whose nvcc is `cuda_home`/bin/nvcc; that may be a script that starts one elsewhere.

    torch and setup.py take headers and libraries from that folder, so it must be the real one.
    """
    if cuda_home is None or os.path.isfile(os.path.join(cuda_home, "include", "cuda_runtime.h")):
        return cuda_home
    nvcc = os.path.join(cuda_home, "bin", "nvcc")
    done = proc.run([nvcc, "--dryrun", "-x", "cu", os.devnull, "-o", os.devnull], timeout=60.0)
    match = re.search(r"(?m)^#\$ TOP=(\S.*?)\s*$", done.out + "\n" + done.err)
    top = os.path.normpath(match.group(1)) if match else ""
    return top if os.path.isfile(os.path.join(top, "bin", "nvcc")) else cuda_home


def no_repository(above: str) -> dict[str, str | None]:
    """Variables that keep a setup.py's git calls out of repositories that are not its own; a built tree is none.

    `above`: the folder that holds the tree; git looks no higher.
    """
    alone: dict[str, str | None] = dict.fromkeys(git_source.REPOSITORY_VARIABLES)
    return dict(alone, GIT_CEILING_DIRECTORIES=above)


def variables(
    environment: str,
    stack: Json,
    own: Json,
    arch_list: list[str],
    cuda_home: str | None,
    programs: str | None = None,
) -> dict[str, str | None]:
    """What a build sees beyond this node's own variables; the source's `own` win over the stack's, these over conda's.

    `environment`: the folder of the environment; `programs`: that of its programs. A stack's variables that are not
    plain text are not for builds.
    """
    seen = {name: value for name, value in os.environ.items() if for_build(name, value)}
    # Without the environment's place as a search path in what is linked: it would be another in each prefix, and the
    # environment's interpreter finds its libraries itself.
    run_path = re.compile(rf"-Wl,-rpath,{re.escape(environment)}/\S+\s*")
    of_conda = activation.onto(environment, seen).items()
    extra: dict[str, str | None] = {name: run_path.sub("", value) for name, value in of_conda}
    path = extra.pop("PATH", None) or os.environ.get("PATH", "/usr/bin:/bin")
    extra.update({name: value for name, value in stack.items() if isinstance(value, str)})
    folders = [programs or os.path.join(environment, "bin")]
    if cuda_home:
        extra["CUDA_HOME"] = cuda_home
        folders.append(os.path.join(cuda_home, "bin"))
    if arch_list:
        extra["TORCH_CUDA_ARCH_LIST"] = ";".join(arch_list)
    extra.update(own)
    extra.update(
        PATH=":".join(folders + [path] + paths.base_programs(environment)),
        VIRTUAL_ENV=environment,
        # Set by a job or a user, these would let other modules or a debugger into the build.
        PYTHONSAFEPATH=None,
        PYTHONINSPECT=None,
        PYTHONBREAKPOINT=None,
    )
    return extra


def equal_files(env: dict[str, str], tools: Toolchain, places: dict[str, str]) -> dict[str, str]:
    """Compiler flags with which the same source gives the same file in other folders.

    `places`: folder -> the name that stands for it. A folder whose name an option cannot hold is left as it is. They go
    into CPPFLAGS, which every distutils and setuptools appends: CFLAGS and CXXFLAGS take the place of Python's own
    flags, -O3 and -DNDEBUG among them, in newer setuptools (80.9 does so, 69.0.2 appends).
    """
    flags = [
        f"{tools.prefix_map}={folder}={_PLACE}/{name}"
        for folder, name in places.items()
        if re.match(r"[^\s=,'\"\\$]+\Z", folder)
    ]
    out = {"CPPFLAGS": " ".join([env.get("CPPFLAGS", "")] + flags).strip()} if flags else {}
    words = ["-Xcompiler " + flag for flag in flags] + (["-objtemp"] if tools.objtemp else [])
    if tools.nvcc is not None and words:
        out["NVCC_APPEND_FLAGS"] = " ".join([env.get("NVCC_APPEND_FLAGS", "")] + words).strip()
    return out


def shared_runtime(env: dict[str, str], folder: str) -> dict[str, str]:
    """Variables that link C++ code with the shared libstdc++ where the compiler's own folders have only a static one.

    A copy of libstdc++ inside an extension shares some of its symbols with the one of the process and not others, and
    writing a number to std::cout is then a SIGSEGV. `folder`: an empty folder that lives as long as the build.
    """
    compiler = env.get("CXX", "").split() or ["c++"]
    places = [
        proc.run(compiler + ["-print-file-name=" + name], timeout=20.0, env=env).out.strip()
        for name in ("libstdc++.so", "libstdc++.so.6")
    ]
    # A compiler answers with a bare name where it has no such file.
    if os.path.isabs(places[0]) or not os.path.isabs(places[1]):
        return {}
    os.symlink(places[1], os.path.join(folder, "libstdc++.so"))
    log(f"{compiler[0]} has no shared libstdc++ of its own: linking with {places[1]}")
    return {"LDFLAGS": (env.get("LDFLAGS", "") + " -L" + folder).strip()}


def cached(env: dict[str, str], tools: Toolchain, folder: str) -> dict[str, str]:
    """Variables that put ccache before the compilers, by links in the new folder `folder`; empty without ccache."""
    if tools.ccache is None or env.get("CCACHE_DISABLE"):
        return {}
    os.makedirs(folder)
    for name in _COMPILERS:
        if shutil.which(name, path=env.get("PATH", os.defpath)):
            os.symlink(tools.ccache, os.path.join(folder, name))
    out = {"PATH": folder + ":" + env.get("PATH", os.defpath)}
    if tools.nvcc is not None and not env.get("PYTORCH_NVCC"):
        out["PYTORCH_NVCC"] = f"{tools.ccache} {tools.nvcc}"
    return out


def no_network(ways: Sequence[Sequence[str]] = _WAYS) -> tuple[list[str], str]:
    """Words to put before a command so that it has no network, and what to say: `off`, or `on: ` and why."""
    program = shutil.which("unshare") or shutil.which("unshare", path=_WHERE)
    if program is None:
        return [], "on: this node has no unshare"
    why = ""
    for way in ways:
        words = [program] + list(way) + ["--"]
        done = proc.run(words + ["true"], timeout=10.0)
        if done.ok:
            return words, "off"
        lines = (done.err or done.out).strip().splitlines()
        why = lines[-1][:200] if lines else "unshare failed"
    return [], "on: " + why


class Distribution(NamedTuple):
    """One that an interpreter sees: `files` relative to its `folder`, `requires` what its metadata says."""

    folder: str
    version: str
    requires: list[str]
    files: list[str]

    def wants(self, extra: str) -> Iterator[tuple[str, str]]:
        """Names that it requires for an extra (empty: always), each with every extra of it that is asked for."""
        for requirement in self.requires:
            if extra in ([installed.normal_name(name) for name in _FOR_EXTRA.findall(requirement)] or [""]):
                extras = _EXTRAS.match(requirement)
                for asked in ["", *(extras.group(1).split(",") if extras else ())]:
                    yield installed.required_name(requirement), installed.normal_name(asked.strip())


class Packages:
    """All that the interpreter `python` of an environment sees; `distributions` by normal name."""

    def __init__(self, python: str) -> None:
        """Ask it. Raises NodeError `build-failed`."""
        done = proc.run([python, "-I", "-c", _ASK])
        if not done.ok:
            raise NodeError("build-failed", f"{python} does not run", why=done.err[-500:])
        answer = json.loads(done.out)
        self.base: str = answer["base"]
        self.version: str = answer["version"]
        self.distributions: dict[str, Distribution] = {}
        for folder, name, *more in answer["packages"]:
            # The first on the path is the one that is imported.
            self.distributions.setdefault(installed.normal_name(name), Distribution(folder, *more))

    def versions(self) -> dict[str, str]:
        """Version by name."""
        return {name: distribution.version for name, distribution in self.distributions.items()}

    def closure(self, wanted: set[str]) -> dict[str, str]:
        """Version by name of what is `wanted` and all that this requires; an empty one for what is not there."""
        reached: set[tuple[str, str]] = set()
        left = {(name, "") for name in wanted}
        while left:
            reached |= left
            pairs = [(self.distributions[name], extra) for name, extra in left if name in self.distributions]
            left = {pair for distribution, extra in pairs for pair in distribution.wants(extra) if pair[0]} - reached
        absent = Distribution("", "", [], [])
        return {name: self.distributions.get(name, absent).version for name, _ in sorted(reached)}

    def view(self, folder: str, wanted: dict[str, str]) -> str:
        """Make a virtual environment of the `wanted` packages in the new `folder`; returns its interpreter."""
        site = os.path.join(folder, "lib", "python" + self.version, "site-packages")
        programs = os.path.join(folder, "bin")
        os.makedirs(site)
        os.makedirs(programs)
        with open(os.path.join(folder, "pyvenv.cfg"), "w", encoding="utf-8") as stream:
            stream.write(f"home = {os.path.dirname(self.base)}\ninclude-system-site-packages = false\n")
        python = os.path.join(programs, "python")
        for name in ("python", "python3", "python" + self.version):
            os.symlink(self.base, os.path.join(programs, name))
        tops: dict[str, set[str]] = {}
        for name, package in self.distributions.items():
            for path in package.files:
                tops.setdefault(path.split("/")[0], set()).add(name)
        for name in sorted(wanted.keys() & self.distributions.keys()):
            package = self.distributions[name]
            for path in package.files:
                top = path.split("/")[0]
                # A folder of one package alone is linked whole.
                alone = top != ".." and len(tops[top]) == 1
                _link(package.folder, top if alone else path, site, python)
        return python


def wanted(project: str, source: Json) -> set[str]:
    """The packages that a build asks for: in pyproject.toml, in the lock and the stack, and what nobody declares.

    `source`: the lock's record. Its `needs` hold what the lock has for this build alone, from setup.py too.
    """
    text = _REQUIRES.search(editable.section(project))
    declared = re.findall(r"\"([^\"\n]*)\"|'([^'\n]*)'", text.group(1)) if text else []
    asked = [first or second for first, second in declared]
    asked += [*(source.get("needs") or []), *((source.get("build") or {}).get("requires") or [])]
    return {installed.required_name(text) for text in asked}.union(_UNDECLARED) - {""}


def _link(above: str, path: str, site: str, python: str) -> None:
    """Link one file or folder of a package to the same place in the view; a script runs the view's interpreter."""
    source, place = os.path.join(above, path), os.path.normpath(os.path.join(site, path))
    inside = place.startswith(os.path.dirname(os.path.dirname(python)) + "/")
    if os.path.lexists(place) or not inside or not os.path.exists(source):
        return
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.dirname(place) == os.path.dirname(python):
        with open(source, "rb") as stream:
            first, rest = stream.readline(4096), stream.read()
        if first.startswith(b"#!") and b"python" in first:
            with open(place, "wb") as stream:
                stream.write(b"#!" + os.fsencode(python) + b"\n" + rest)
            os.chmod(place, 0o755)  # noqa: S103 - a program, in a folder of the build
            return
    os.symlink(source, place)
