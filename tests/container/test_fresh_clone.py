"""What CI does with `containers/`, in a fresh clone of what is committed here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import completed

REPOSITORY = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def dockerfile(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`envbuild image dockerfile` of the clone itself, as `make containers` and `make generated` call it."""
    command = [sys.executable, "-m", "envbuild", "image", "dockerfile", *words]
    env = {**os.environ, "PYTHONPATH": str(clone)}
    return completed(command, cwd=clone, env=env)


def status(clone: Path) -> str:
    words = ["git", "-C", str(clone), "status", "--porcelain", "--untracked-files=all"]
    return completed(words, check=True).stdout


def test_an_edit_by_hand_fails_with_a_diff_that_can_be_read_and_one_command_writes_all_byte_for_byte(
    tmp_path: Path,
) -> None:
    """In the last commit, in a folder of its own."""
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        pytest.skip("the tests are not in a git checkout")
    clone = tmp_path / "clone"
    words = ["git", "clone", "-q", "--no-hardlinks", "--depth", "1", REPOSITORY.as_uri(), str(clone)]
    subprocess.run(words, check=True, capture_output=True)
    path = clone / "containers" / "opt-175b" / "Dockerfile"
    path.write_text(path.read_text().replace("USER 10001:10001", "USER root"))
    done = dockerfile(clone, "--check")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert f"--- {path}" in lines and f"+++ {path} (from the lock)" in lines
    assert "-USER root" in lines and "+USER 10001:10001" in lines
    assert len(lines) < 30, "what agrees takes a line each"
    assert path.read_text().count("USER root") == 1, "a check writes nothing"

    for folder in (clone / "containers").iterdir():
        shutil.rmtree(folder)
    done = dockerfile(clone)
    assert done.returncode == 0, done.stderr
    assert str(clone) in done.stdout
    assert status(clone) == ""
