"""A real torch CPU environment for tests, built once and kept under the system's temporary folder.

`torch_environment()` returns its path or skips the test, saying why. Safe with several test processes at once.
"""

from __future__ import annotations

import ast
import fcntl
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.programs import completed

TORCH = "2.13.0+cpu"
PYTHON = "3.11"
IMPORTS = "import torch, torch._dynamo, torch.distributed.run"
_INDEX = "https://download.pytorch.org/whl/cpu"


def find_links() -> list[str]:
    """The find-links places of pip's configuration, in order."""
    listing = completed([sys.executable, "-m", "pip", "config", "list"])
    places: list[str] = []
    for line in listing.stdout.splitlines():
        key, _, value = line.partition("=")
        if key.endswith(".find-links"):
            places += str(ast.literal_eval(value)).split()
    return list(dict.fromkeys(places))


def python311() -> str | None:
    """Full path of a CPython 3.11; None when there is none."""
    candidates = [sys.executable] if sys.version_info[:2] == (3, 11) else []
    for name in (
        shutil.which("python3.11"),
        *sorted(map(str, Path.home().glob(".pyenv/versions/3.11.*/bin/python3.11"))),
    ):
        candidates += [name] if name else []
    for candidate in candidates:
        real = completed(
            [
                candidate,
                "-c",
                "import sys; print(getattr(sys, '_base_executable', sys.executable)); print(sys.version_info[:2])",
            ]
        )
        lines = real.stdout.splitlines()
        if real.returncode == 0 and lines[1:] == ["(3, 11)"]:
            return lines[0]
    return None


def _uv() -> str | None:
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if beside.exists() else shutil.which("uv")


def _build(environment: Path, uv: str, python: str) -> str | None:
    """Build it; the last lines of what went wrong, or None."""
    shutil.rmtree(environment, ignore_errors=True)
    places = find_links()
    install = [uv, "pip", "install", "--python", str(environment / "bin" / "python"), f"torch=={TORCH}"]
    for place in places:
        install += ["--find-links", place]
    local = any(Path(place).is_dir() and list(Path(place).glob("torch-2.13.0+cpu-cp311-*.whl")) for place in places)
    if not local:
        install += ["--index", _INDEX, "--index-strategy", "unsafe-best-match"]
    for command in ([uv, "venv", "--python", python, str(environment)], install):
        done = completed(command, timeout=280)
        if done.returncode:
            return done.stderr[-600:]
    # The smoke test writes no byte code: without any, each of its imports of torch compiles 1,600 files, 4 s of CPU.
    subprocess.run([str(environment / "bin" / "python"), "-I", "-c", IMPORTS], capture_output=True, check=False)
    return None


@functools.lru_cache(maxsize=1)
def _environment() -> tuple[Path | None, str]:
    uv, python = _uv(), python311()
    if uv is None or python is None:
        return None, "no uv" if uv is None else f"no CPython {PYTHON}"
    root = Path(tempfile.gettempdir()) / f"envbuild-tests-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    environment = root / f"torch-{TORCH}-cp311"
    with (root / "torch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (environment / ".complete").exists():
            problem = _build(environment, uv, python)
            if problem:
                return None, problem
            (environment / ".complete").touch()
    return environment, ""


def torch_environment() -> Path:
    """Folder of a venv with torch 2.13.0+cpu on Python 3.11; skips the test when it is not available."""
    environment, problem = _environment()
    if environment is None:
        pytest.skip(f"torch {TORCH} for Python {PYTHON} is not available here: {problem}")
    return environment
