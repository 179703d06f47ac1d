"""A copy of this checkout with few of its tests, for commands of contributors that work on the whole of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.need import need
from tests.support.programs import completed

TOP = Path(__file__).parents[2]
# A short module of one room, and one with a slow test.
_KEPT = re.compile(r"tests/(resolve/test_health|provision/ansible/test_inventory)\.py")


def small(folder: Path) -> Path:
    """Make the copy, with this checkout's `.venv` and a commit of its own; skips where there is nothing to copy."""
    need("git", "make")
    if not (TOP / ".git").exists() or not (TOP / ".venv" / ".ready").exists():
        pytest.skip("these tests run from no checkout that `make` has set up: .git or .venv/.ready is missing")
    listed = _git(TOP, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, listed):
        if ("/test_" in name and not _KEPT.match(name)) or not (TOP / name).is_file():
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOP / name, folder / name)  # times as well: `make` asks whether .venv is older
    (folder / "tests" / "system-packages.txt").write_text("")  # a test installs none
    (folder / ".venv").symlink_to(TOP / ".venv")
    _git(folder, "init", "-q")
    _git(folder, "add", "-A")
    _git(folder, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "copy")
    return folder


def run(folder: Path, command: str, env: dict[str, str] | None = None) -> str:
    """What a line prints in the copy, which has to end with 0.

    A run of pytest in it keeps its folders to itself: it would tidy away those of the run that this is a test of.
    """
    given = {
        name: value
        for name, value in (os.environ if env is None else env).items()
        if not name.startswith(("PYTEST_", "MAKE", "MFLAGS", "COV_"))
    }
    given["PYTEST_DEBUG_TEMPROOT"] = f"{folder}-pytest"
    Path(given["PYTEST_DEBUG_TEMPROOT"]).mkdir(exist_ok=True)
    words = {"capture_output": True, "text": True, "timeout": 580, "check": False, "stdin": subprocess.DEVNULL}
    done = subprocess.run(["sh", "-c", command], cwd=folder, env=given, **words)  # type: ignore[call-overload]
    assert done.returncode == 0, (command, done.stdout[-3000:], done.stderr[-3000:])
    return str(done.stdout + done.stderr)


def _git(folder: Path, *arguments: str) -> str:
    argv = ["git", "-C", str(folder), *arguments]
    return completed(argv, check=True).stdout
