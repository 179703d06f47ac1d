"""The build key: sha256 over everything that decides the bits of a wheel built from source, and nothing else.

Of the packages it holds those that the build sees (`build/environment.py`), so stacks that agree in them share a wheel.
Left out: where a source came from and where anything lies, the prefix, cache and tmp folders, the umask, labels, smoke
tests, who builds, how many jobs, and what is only checked afterwards (`extensions`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
from collections.abc import Sequence

from envbuild.node import proc, variables
from envbuild.node.probe import system
from envbuild.node.protocol import Json
from envbuild.node.read_text import which

# Raised by hand when the way in which envbuild builds changes the bits of every wheel.
RECIPE = 3
_DEADLINE = 30.0
_ASK = """
import json, sysconfig
print(json.dumps({k: sysconfig.get_config_var(k) or "" for k in ("SOABI", "CC", "CXX")}))
"""


def build_key(inputs: Json) -> str:
    """sha256 (hex) over canonical JSON of `inputs` (see `key_inputs`)."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def key_inputs(
    source: Json, variant: Json, toolchain: Json, arch_list: Sequence[str], patches: Sequence[str], packages: Json
) -> Json:
    """What decides the bits of the wheel of `source` (a locked source) in `variant` (a lock variant), as plain JSON.

    `toolchain`: of `read_toolchain`. `arch_list`: TORCH_CUDA_ARCH_LIST in parts. `patches`: digests of the patches as
    applied, in order (`patch_sources.specs_of` sees that none is missing). `packages`: version by name of those that
    the build sees, empty for one that is not there.
    """
    build = source.get("build") or {}
    conda = (variant.get("conda") or {}).get("packages") or []
    inputs = {
        "recipe": RECIPE,
        # The name stands in the file names that assertions and debug information carry.
        "source": source["name"],
        "commit": source["commit"],
        "tree": source["tree"],
        "submodules": sorted([part["path"], part["commit"], part["tree"]] for part in source.get("submodules") or []),
        "patches": list(patches),
        "path": source.get("path") or "",
        "build": {
            "kind": build.get("kind") or "wheel",
            "flags": list(build.get("flags") or []),
            "environment": dict(build.get("environment") or {}),
            "modules": list(build.get("modules") or []),
        },
        "python": [variant["python"], toolchain.get("python") or ""],
        "platform": variant.get("platform") or toolchain.get("machine") or "",
        "torch": [variant.get("torch") or "", variant.get("flavour") or ""],
        "packages": dict(packages),
        "arch_list": sorted(set(arch_list)),
        "toolchain": {key: toolchain.get(key) or "" for key in ("cc", "cxx", "ld", "libc", "nvcc", "mpi")},
        "environment": dict(toolchain.get("environment") or {}),
    }
    if conda:  # else the key is the one that it always was
        inputs["conda"] = sorted([package[key] for key in ("name", "version", "build", "sha256")] for package in conda)
    return inputs


def other_packages(inputs: Json, versions: dict[str, str]) -> list[str]:
    """Names of the packages that the build of `inputs` saw and that are others among `versions` (by name)."""
    return sorted(name for name, version in inputs["packages"].items() if versions.get(name, "") != version)


def why_not_for(own: Json, other: Json, versions: dict[str, str] | None = None) -> str:
    """Why a wheel that was built of the inputs `other` is none for the node of `own`; empty when it is one.

    The packages of `own` do not count, but those of `other` are to be among `versions`, where these are known. A tool
    that this node does not have cannot make its wheel differ, and a linker or nvcc without a compiler neither: such a
    node could build nothing, and takes what the same lock, libc and GPUs gave elsewhere.
    """
    names = sorted((set(own) | set(other)) - {"toolchain", "packages"})
    wrong = [f"another {name}" for name in names if own.get(name) != other.get(name)]
    if versions is not None:
        wrong += [f"another {name}" for name in other_packages(other, versions)]
    here, others = own.get("toolchain") or {}, other.get("toolchain") or {}
    idle = set() if here.get("cc") or here.get("cxx") else {"ld", "nvcc"}
    for tool in sorted(set(here) | set(others)):
        mine, theirs = here.get(tool) or "", others.get(tool) or ""
        if mine != theirs and (tool == "libc" or (mine and tool not in idle)):
            wrong.append(f"{tool}: {mine or 'none'} here, {theirs or 'none'} there")
    return "; ".join(wrong)


def read_toolchain(python: str, cuda_home: str | None, env: dict[str, str] | None = None) -> Json:
    """What a build on this node would use: the first lines of each tool's version, and the variables that tools read.

    Keys: `cc`, `cxx`, `ld`, `nvcc`, `mpi` (empty where there is none), `libc`, `machine`, `python` (SOABI of the
    interpreter at `python`), `environment`. `env`: the environment of the build (default this process's); its PATH
    counts. `mpi` is what mpicc would run: two MPIs of one release are not one ABI.
    """
    env = dict(os.environ) if env is None else env
    settings = _python_says(python, env)
    cc = env.get("CC") or settings.get("CC") or "cc"
    cxx = env.get("CXX") or "c++"
    nvcc = os.path.join(cuda_home, "bin", "nvcc") if cuda_home else "nvcc"
    return {
        "cc": _first_line(cc, env) or _first_line("cc", env) or _first_line("gcc", env),
        "cxx": _first_line(cxx, env) or _first_line("g++", env),
        "ld": _first_line("ld", env),
        "nvcc": _nvcc_release(_says([nvcc, "--version"], env)),
        "mpi": _says(shlex.split(env.get("MPICC") or "mpicc") + ["-show"], env).strip(),
        "libc": _libc(env),
        "machine": platform.machine(),
        "python": settings.get("SOABI") or "",
        "environment": {name: env[name] for name in sorted(env) if env[name] and variables.decides_bits(name)},
    }


def _says(argv: list[str], env: dict[str, str]) -> str:
    folders = [folder for folder in (env.get("PATH") or os.defpath).split(":") if folder.startswith("/")]
    program = argv[0] if "/" in argv[0] else which(argv[0], folders)
    if not program:
        return ""
    done = proc.run([program] + argv[1:], timeout=_DEADLINE, env=dict(env, LC_ALL="C.UTF-8"))
    return done.out if done.ok else ""


def _first_line(command: str, env: dict[str, str]) -> str:
    try:
        argv = shlex.split(command)
    except ValueError:
        argv = [command]
    lines = _says(argv + ["--version"], env).splitlines() if argv else []
    return lines[0].strip() if lines else ""


def _nvcc_release(text: str) -> str:
    """`release 12.4, V12.4.131` and the line with its build from `nvcc --version`."""
    release = re.search(r"release [^\n]+", text)
    build = re.search(r"^Build [^\n]+", text, re.MULTILINE)
    return "; ".join(match.group(0).strip() for match in (release, build) if match)


def _libc(env: dict[str, str]) -> str:
    if system.glibc():
        return system.glibc()
    done = proc.run(["ldd", "--version"], timeout=_DEADLINE, env=dict(env, LC_ALL="C.UTF-8"))
    return " ".join((done.out + done.err).split("\n")[:2]).strip()


def _python_says(python: str, env: dict[str, str]) -> dict[str, str]:
    done = proc.run([python, "-I", "-S", "-c", _ASK], timeout=_DEADLINE, env=env)
    try:
        settings = json.loads(done.out)
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}
