"""A real torch CPU environment for tests, built once and kept under the system's temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.node import pip_config
from tests.node.env_support import uv_path
from tests.node.pythons import find_python
from tests.support.once import kept
from tests.support.programs import completed

TORCH = "2.13.0+cpu"
PYTHON = "3.11"
IMPORTS = "import torch, torch._dynamo, torch.distributed.run"
_INDEX = "https://download.pytorch.org/whl/cpu"


def find_links() -> list[str]:
    """The find-links places of pip's configuration, in order."""
    return pip_config.read(os.environ).find_links


def _build(environment: Path) -> str:
    """Build it; the last lines of what went wrong."""
    python = sys.executable if sys.version_info[:2] == (3, 11) else find_python(PYTHON)
    if python is None:
        return f"no CPython {PYTHON}"
    inside, places = str(environment / "bin" / "python"), find_links()
    install = [uv_path(), "pip", "install", "--python", inside, f"torch=={TORCH}"]
    for place in places:
        install += ["--find-links", place]
    local = any(Path(place).is_dir() and list(Path(place).glob("torch-2.13.0+cpu-cp311-*.whl")) for place in places)
    if not local:
        install += ["--index", _INDEX, "--index-strategy", "unsafe-best-match"]
    for command in ([uv_path(), "venv", "--relocatable", "--python", python, str(environment)], install):
        done = completed(command, timeout=280)
        if done.returncode:
            return done.stderr[-600:]
    # The smoke test writes no byte code: without any, each of its imports of torch compiles 1,600 files, 4 s of CPU.
    subprocess.run([inside, "-I", "-c", IMPORTS], capture_output=True, check=False)
    return ""


def torch_environment() -> Path:
    """Folder of a venv with torch 2.13.0+cpu on Python 3.11; skips the test when it is not available."""
    environment, problem = kept(f"torch-{TORCH}-cp311", _build)
    if problem:
        pytest.skip(f"torch {TORCH} for Python {PYTHON} is not available here: {problem}")
    return environment
