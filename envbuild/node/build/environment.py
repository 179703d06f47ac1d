"""The variables of a build: the environment's own programs first, the target's GPUs, and nothing that varies."""

from __future__ import annotations

import os
import re
import shutil
from typing import NamedTuple

from envbuild.node import git_source, paths, proc
from envbuild.node.conda import activation
from envbuild.node.protocol import Json, log
from envbuild.node.variables import for_build

_COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++")
_PLACE = "/envbuild"


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
    return Toolchain(
        prefix_map="-ffile-prefix-map" if new else "-fdebug-prefix-map",
        objtemp=objtemp,
        nvcc=nvcc,
        strip=shutil.which("strip", path=path),
        ccache=shutil.which("ccache", path=path),
    )


def toolkit(cuda_home: str | None) -> str | None:
    """The folder of the toolkit whose nvcc is `cuda_home`/bin/nvcc; that may be a script that starts one elsewhere.

    torch and setup.py take headers and libraries from that folder, so it must be the real one.
    """
    if cuda_home is None or os.path.isfile(os.path.join(cuda_home, "include", "cuda_runtime.h")):
        return cuda_home
    nvcc = os.path.join(cuda_home, "bin", "nvcc")
    done = proc.run([nvcc, "--dryrun", "-x", "cu", os.devnull, "-o", os.devnull], timeout=60.0)
    found = re.search(r"(?m)^#\$ TOP=(\S.*?)\s*$", done.out + "\n" + done.err)
    top = os.path.normpath(found.group(1)) if found else ""
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
    extra = _of_conda(environment)
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


def _of_conda(environment: str) -> dict[str, str | None]:
    """What conda packages set, without the environment's place as a search path in what is linked.

    It would be another in each prefix; the environment's interpreter finds its libraries itself.
    """
    there = re.compile(rf"-Wl,-rpath,{re.escape(environment)}/\S+\s*")
    seen = {name: value for name, value in os.environ.items() if for_build(name, value)}
    return {name: there.sub("", value) for name, value in activation.onto(environment, seen).items()}


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
