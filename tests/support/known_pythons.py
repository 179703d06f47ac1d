"""Caches in which uv finds the interpreters of the tests: to ask one takes uv longer than a small resolution."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from uv import find_uv_bin


def tell(cache: Path) -> None:
    """Let a cache of uv know the Python of the tests and the one below it."""
    shutil.copytree(_asked().name, cache, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)


@functools.cache
def _asked() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="uv-cache-")
    for python in {sys.executable, os.path.realpath(sys.executable)}:
        argv = [find_uv_bin(), "python", "find", "--no-config", "--no-project", "--cache-dir", folder.name, python]
        subprocess.run(argv, check=True, capture_output=True)
    return folder
