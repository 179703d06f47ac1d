"""Real interpreters of several versions, for tests of the node program."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest


@cache
def find_python(minor: str) -> str | None:
    """A working `python3.X` of PATH or of pyenv; shims that lead nowhere do not count."""
    versions = Path(os.environ["ENVBUILD_TEST_PYENV"]) / "versions"
    candidates = [str(path / "bin" / f"python{minor}") for path in sorted(versions.glob(f"{minor}.*"))]
    candidates += [shutil.which(f"python{minor}")]  # last: a shim of pyenv is a hundred processes of bash
    for path in candidates:
        if path and Path(path).exists():
            done = subprocess.run([path, "-I", "-S", "-c", "import sys; print(sys.executable)"], capture_output=True)
            if done.returncode == 0:
                return done.stdout.decode().strip()
    return None


# Looked for at import, before a test changes HOME.
FOUND = {minor: find_python(minor) for minor in ("3.6", "3.8", "3.13")}


def require_python(minor: str) -> str:
    """The interpreter, or a skip that says what is missing."""
    path = FOUND[minor]
    if path is None:
        pytest.skip(f"no Python {minor} on PATH or in pyenv: the node program is not proven on it here")
    return path
