"""Stand-ins with which an Apex-shaped setup.py really runs: an empty torch, an nvcc that only says its version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from envbuild.catalog.patches import load_patch
from envbuild.node.build import patch_sources
from envbuild.node.protocol import NodeError
from tests.support.fails import fails
from tests.support.files import write_file, write_files
from tests.support.programs import completed, executable

_TORCH = """
import os, sys, types
__version__ = os.environ["TORCH_VERSION"]
version = types.SimpleNamespace(cuda=os.environ.get("TORCH_CUDA") or None)
cuda = types.SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(is_available=lambda: False))
"""
_EXTENSION = """
import os
CUDA_HOME = os.environ.get("CUDA_HOME")
class BuildExtension:
    with_options = classmethod(lambda cls, **options: cls)
CppExtension = CUDAExtension = lambda *args, **options: (args, options)
def load(**options):
    raise AssertionError("not called while setup.py is read")
"""
_SETUPTOOLS = """
def find_packages(**options):
    return []
def setup(**options):
    print("REACHED SETUP", len(options["ext_modules"]))
"""
_NVCC = """#!/bin/sh
echo 'nvcc: NVIDIA (R) Cuda compiler driver'
echo 'Cuda compilation tools, release {version}, V{version}.48'
"""


def samples(patch: str) -> list[dict[str, Any]]:
    """Files in the shapes that the sources of a patch had, written for these tests: `path` and text `before`.

    `refused`: what is another shape in it, which the patch leaves alone; `beside`: other files of that source.
    """
    known: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "edits" / f"{patch}.json").read_text())
    return known


def shape(folder: Path, patch: str, number: int = 0) -> Path:
    """The sample of that number, written where its source has such a file; returns its path."""
    sample = samples(patch)[number]
    return write(folder, sample["path"], sample["before"])


# Form of Apex's setup.py in benchmarks/records/patches-tried-apex.md -> number of its sample, and the places of
# apex-cuda-minor-parse and of apex-cuda-home-none in it.
_FORMS = {
    "1 warns only": (1, 1, 0),
    "2 raises": (0, 1, 0),
    "3 raises at length": (2, 1, 0),
    "4 parser moved": (10, 2, 1),
    "5 call renamed": (8, 2, 1),
    "6 threads": (9, 1, 1),
    "7 full version": (4, 0, 1),
    "8 ruff": (3, 0, 1),
}
_APEX = [sample["before"] for sample in samples("apex-cuda-check")]
APEX = {form: (_APEX[number], minor, none) for form, (number, minor, none) in _FORMS.items()}
NO_CHECK, RUFF = _APEX[14], _APEX[3]


def write(folder: Path, path: str, text: str) -> Path:
    """A file of that text, with the folders above it; returns its path."""
    return write_file(folder / path, text)


def run(program: str, *paths: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program with `paths` on its module path, and no variables of this machine that choose a GPU's code."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("TORCH_", "CUDA_"))}
    env = {**clean, "PYTHONPATH": os.pathsep.join(map(str, paths)), **environment}
    return completed([sys.executable, "-c", program], env=env, timeout=60)


def run_setup(folder: Path, *flags: str, torch_cuda: str | None, nvcc: str | None) -> subprocess.CompletedProcess[str]:
    """Run `folder/setup.py` among the stand-ins; `nvcc` None: no CUDA toolkit is there."""
    stubs = folder.parent / f"{folder.name}-stubs"
    torch_files = {"__init__.py": _TORCH, "utils/__init__.py": "", "utils/cpp_extension.py": _EXTENSION}
    write_files(stubs / "torch", torch_files)
    write_file(stubs / "setuptools/__init__.py", _SETUPTOOLS)
    environment = {**os.environ, "PYTHONPATH": str(stubs), "TORCH_CUDA": torch_cuda or "", "TORCH_VERSION": "1.10.0"}
    environment.pop("CUDA_HOME", None)
    if nvcc is not None:
        executable(stubs / "cuda" / "bin" / "nvcc", _NVCC.format(version=nvcc))
        environment["CUDA_HOME"] = str(stubs / "cuda")
    return completed([sys.executable, "-W", "ignore", "setup.py", *flags], cwd=folder, env=environment, timeout=60)


def apply(folder: Path, name: str, *, check: bool = False, **facts: Any) -> dict[str, Any]:
    """Apply a patch of the catalog, whatever the commit."""
    patch = load_patch(name)
    (result,) = patch_sources.apply(str(folder), [patch.spec(patch.expected())], facts, check=check)
    return result


def refused(folder: Path, name: str, files: dict[str, str], code: str = "patch-hits") -> NodeError:
    """The error of a patch of the catalog that does not fit these files, which stay as they are."""
    write_files(folder, files)
    with fails(code, 4) as caught:
        apply(folder, name)
    assert {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.*") if path.is_file()} == files
    return caught.value
