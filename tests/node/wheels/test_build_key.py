"""The build key changes with everything that decides the bits, and with nothing else."""

from __future__ import annotations

import copy
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.node.wheels.build_key import build_key, key_inputs, read_toolchain
from tests.node.wheel_support import ARCH, PACKAGES, PATCHES, SOURCE, TOOLCHAIN, VARIANT
from tests.support.programs import executable

Parts = tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str], list[str], dict[str, str]]


CONDA = [
    {"name": "pytorch", "version": "2.6.0", "build": "cpu_py311_0", "sha256": "1" * 64, "size": 1},
    {"name": "numpy", "version": "2.2.0", "build": "py311_0", "sha256": "2" * 64, "channel": "conda-forge"},
]


def parts() -> Parts:
    variant = {**VARIANT, "conda": {"packages": CONDA}}
    return copy.deepcopy((SOURCE, variant, TOOLCHAIN, ARCH, PATCHES, PACKAGES))


def key(given: Parts) -> str:
    return build_key(key_inputs(*given))


def assign(place: int, *path: Any, value: Any) -> Callable[[Parts], None]:
    def change(given: Parts) -> None:
        at: Any = given[place]
        for step in path[:-1]:
            at = at[step]
        assert at[path[-1]] != value
        at[path[-1]] = value

    return change


CHANGING: dict[str, Callable[[Parts], None]] = {
    "name": assign(0, "name", value="apex-fork"),
    "commit": assign(0, "commit", value="1" * 40),
    "tree": assign(0, "tree", value="1" * 40),
    "submodule commit": assign(0, "submodules", 0, "commit", value="1" * 40),
    "submodule tree": assign(0, "submodules", 0, "tree", value="1" * 40),
    "submodule path": assign(0, "submodules", 0, "path", value="other"),
    "no submodule": assign(0, "submodules", value=[]),
    "patch": assign(4, 0, value="1" * 64),
    "folder of the project": assign(0, "path", value="other"),
    "kind": assign(0, "build", "kind", value="kernels"),
    "flag": assign(0, "build", "flags", value=["cpp_ext"]),
    "order of flags": assign(0, "build", "flags", value=["cuda_ext", "cpp_ext"]),
    "variable of the build": assign(0, "build", "environment", value={}),
    "kernel source": assign(0, "build", "modules", 0, "sources", value=["b.cpp"]),
    "kernel flag": assign(0, "build", "modules", 0, "cxx_flags", value=["-O2"]),
    "python": assign(1, "python", value="3.12"),
    "platform": assign(1, "platform", value="linux_aarch64"),
    "torch": assign(1, "torch", value="2.4.0"),
    "flavour": assign(1, "flavour", value="cu121"),
    "version of a package that the build sees": assign(5, "setuptools", value="70.0"),
    "package that the build sees": lambda given: given[5].update(wheel="0.37"),
    "package that was not there": assign(5, "ninja", value="1.13"),
    "architectures": lambda given: given[3].append("10.0"),
    "no architecture": lambda given: given[3].clear(),
    **{
        f"toolchain {name}": assign(2, name, value="x") for name in ("cc", "cxx", "ld", "libc", "nvcc", "mpi", "python")
    },
    "variable of the node": assign(2, "environment", "CFLAGS", value="-O3"),
    **{
        f"{field} of a conda package": assign(1, "conda", "packages", 0, field, value="3" * 64)
        for field in ("name", "version", "build", "sha256")
    },
    "conda package": lambda given: given[1]["conda"]["packages"].pop(),
    "no conda package": assign(1, "conda", value={"packages": []}),
}
KEEPING: dict[str, Callable[[Parts], None]] = {
    "where the source comes from": assign(0, "git", value="https://mirror.example.org/apex"),
    "where a submodule comes from": assign(0, "submodules", 0, "git", value="https://mirror.example.org/c"),
    "branch": lambda given: given[0].update(ref="main"),
    "install as a path": assign(0, "install", value="path"),
    "generated files": assign(0, "generated", value=[]),
    "what is checked": assign(0, "build", "extensions", value=["amp_C", "xentropy"]),
    "memory of a job": assign(0, "build", "memory_per_job", value=8.0),
    "label": assign(1, "id", value="other"),
    "digest of the variant": assign(1, "digest", value="0" * 64),
    "smoke list": assign(1, "smoke", value=[]),
    "index": assign(1, "packages", 0, "index", value="mirror"),
    "package of the stack that the build does not see (D108)": lambda given: given[1]["packages"].append(
        {"name": "six", "version": "1.17"}
    ),
    "package of the base that the build does not see": assign(1, "provided", "numpy", value="2.0"),
    "variable of the stack that no tool reads": assign(1, "environment", "NVTE_FRAMEWORK", value="jax"),
    "order of architectures": lambda given: given[3].reverse(),
    "channel of a conda package": assign(1, "conda", "packages", 1, "channel", value="mirror"),
    "size of a conda package": assign(1, "conda", "packages", 0, "size", value=None),
    "order of conda packages": lambda given: given[1]["conda"]["packages"].reverse(),
    "architecture twice": lambda given: given[3].append("8.0"),
    "fields nobody said": lambda given: given[0]["build"].update(later=None),
}


def key_after(change: Callable[[Parts], None]) -> str:
    given = parts()
    change(given)
    return key(given)


def test_everything_that_decides_the_bits_gives_a_key_of_its_own() -> None:
    changed = {key(parts()): "nothing"}
    for name, change in CHANGING.items():
        assert changed.setdefault(key_after(change), name) == name


@pytest.mark.parametrize("name", KEEPING)
def test_what_does_not_decide_the_bits_keeps_the_key(name: str) -> None:
    assert key_after(KEEPING[name]) == key(parts())


def test_a_variant_without_conda_has_the_key_that_it_had_before_conda_packages_counted() -> None:
    without = parts()
    del without[1]["conda"]
    assert "conda" not in key_inputs(*without)
    assert key(without) == key_after(CHANGING["no conda package"])


def test_neither_place_nor_umask_nor_prefix_is_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, old = set(), os.umask(0)
    try:
        for umask, place in ((0o077, str(tmp_path)), (0o002, "/nowhere")):
            os.umask(umask)
            for name in ("HOME", "TMPDIR", "PWD"):
                monkeypatch.setenv(name, place)
            given = parts()
            given[2].update(read_toolchain(sys.executable, None, dict(os.environ)))
            keys.add(key(given))
            monkeypatch.chdir(tmp_path)
    finally:
        os.umask(old)
    (only,) = keys
    assert re.fullmatch("[0-9a-f]{64}", only)


def test_the_toolchain_of_a_node_is_read_from_what_the_build_would_run(tmp_path: Path) -> None:
    for name, says in {
        "cc": "cc (Tiny) 1.0\nmore",
        "c++": "c++ (Tiny) 1.0",
        "ld": "ld (Tiny) 1",
        "mpicc": "cc -I/opt/mpi/include",
    }.items():
        executable(tmp_path / name, f"#!/bin/sh\nprintf '%s\\n' '{says}'\n")
    cuda = tmp_path / "cuda" / "bin"
    cuda.mkdir(parents=True)
    said = "nvcc: NVIDIA (R)\nCuda compilation tools, release 12.4, V12.4.131\nBuild cuda_12.4.r12.4/compiler.1_0\n"
    executable(cuda / "nvcc", f"#!/bin/sh\nprintf '%s' '{said}'\n")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CC": "cc -m64", "CFLAGS": "-O1", "HOME": "/nowhere"}
    found = read_toolchain(sys.executable, str(cuda.parent), env)
    assert found["cc"] == "cc (Tiny) 1.0"
    assert (found["cxx"], found["ld"], found["mpi"]) == ("c++ (Tiny) 1.0", "ld (Tiny) 1", "cc -I/opt/mpi/include")
    assert found["nvcc"] == "release 12.4, V12.4.131; Build cuda_12.4.r12.4/compiler.1_0"
    assert found["environment"] == {"CC": "cc -m64", "CFLAGS": "-O1"}
    assert "cpython" in found["python"]
    assert re.match(r"(glibc|musl) ", found["libc"])


def test_variables_of_the_node_that_choose_what_is_compiled_are_read(tmp_path: Path) -> None:
    choose = ["APEX_CUDA_EXT", "DS_BUILD_OPS", "FLASH_ATTENTION_FORCE_CXX11_ABI", "NVCC_CCBIN", "MPICFG"]
    others = {"PATH": str(tmp_path), "NVCC_THREADS": "4", "APEX_PARALLEL_BUILD": "8", "HOME": "/nowhere"}
    found = read_toolchain(sys.executable, None, dict.fromkeys(choose, "1") | others)
    assert found["environment"] == dict.fromkeys(choose, "1")


def test_a_node_without_compilers_says_so_with_nothing(tmp_path: Path) -> None:
    found = read_toolchain(sys.executable, None, {"PATH": str(tmp_path), "CC": "'unbalanced"})
    assert [found[name] for name in ("cc", "cxx", "ld", "nvcc", "mpi")] == [""] * 5
