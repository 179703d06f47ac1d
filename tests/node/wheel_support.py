"""Wheels and build inputs for tests of the wheel store."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from envbuild.node.wheels.build_key import key_inputs
from envbuild.node.wheels.store import Store
from tests.support.wheels import write_wheel

SOURCE: dict[str, Any] = {
    "name": "apex",
    "git": "https://git.example.org/apex",
    "commit": "a" * 40,
    "tree": "b" * 40,
    "submodules": [{"path": "third/cutlass", "git": "https://git.example.org/c", "commit": "c" * 40, "tree": "d" * 40}],
    "patches": ["apex-cuda-check"],
    "patch_pins": [{"name": "apex-cuda-check", "digest": "e" * 64, "least": 1, "most": 1}],
    "path": "sub",
    "install": "wheel",
    "generated": ["apex/version.py"],
    "build": {
        "kind": "wheel",
        "flags": ["cpp_ext", "cuda_ext"],
        "environment": {"APEX_PARALLEL": "1"},
        "modules": [{"name": "fused", "sources": ["a.cpp"], "cxx_flags": ["-O3"]}],
        "extensions": ["amp_C"],
        "memory_per_job": 2.5,
    },
}
VARIANT: dict[str, Any] = {
    "id": "py311-cu124",
    "digest": "f" * 64,
    "python": "3.11",
    "platform": "linux_x86_64",
    "torch": "2.4.1",
    "flavour": "cu124",
    "packages": [{"name": "torch", "version": "2.4.1", "index": "pytorch-cu124", "files": []}],
    "provided": {"numpy": "1.26.4"},
    "environment": {"NVTE_FRAMEWORK": "pytorch", "NCCL_TOPO_FILE": {"path": "/opt/x.xml", "if": "exists"}},
    "smoke": [{"name": "sound"}],
}
TOOLCHAIN: dict[str, Any] = {
    "cc": "gcc (Debian) 12.2.0",
    "cxx": "c++ (Debian) 12.2.0",
    "ld": "GNU ld 2.40",
    "libc": "glibc 2.36",
    "nvcc": "release 12.4, V12.4.131",
    "mpi": "gcc -I/opt/mpi/include -lmpi",
    "python": "cpython-311-x86_64-linux-gnu",
    "machine": "x86_64",
    "environment": {"CFLAGS": "-O2"},
}
ARCH = ["8.0", "9.0"]
PATCHES = ["e" * 64]
PACKAGES = {"torch": "2.4.1", "setuptools": "69.0", "numpy": "1.26.4", "ninja": ""}


def inputs(**source: Any) -> dict[str, Any]:
    """The inputs of SOURCE with other fields; without an argument always the same."""
    return key_inputs({**copy.deepcopy(SOURCE), **source}, VARIANT, TOOLCHAIN, ARCH, PATCHES, PACKAGES)


def wheel(folder: Path, content: str = "VERSION = 1\n", name: str = "apex", version: str = "0.1") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_wheel(folder, name, version, {f"{name}/__init__.py": content.encode()})


def filled(path: Path, top: Path, **source: Any) -> tuple[Store, str]:
    """A store at `path` with one entry; returns it and the entry's key."""
    store = Store(str(path), create=True)
    entry = store.put(inputs(**source), str(wheel(top / "dist")), {"seconds": 12.0, "extensions": ["amp_C"]})
    return store, entry.key
