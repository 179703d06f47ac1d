"""Real git repositories, made with an identity of their own whatever the user's configuration says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.files import write_files
from tests.support.programs import completed

_SETTINGS = (
    "user.name=T", "user.email=t@example.org", "protocol.file.allow=always", "init.defaultBranch=main",
    "maintenance.auto=false",
)  # fmt: skip


def git(folder: Path, *args: str) -> str:
    """Run git in `folder`, which is made where it is missing; returns what it printed, stripped."""
    folder.mkdir(parents=True, exist_ok=True)
    options = [word for setting in _SETTINGS for word in ("-c", setting)]
    command = ["git", *options, "-C", str(folder), *args]
    return completed(command, check=True).stdout.strip()


def make_repository(folder: Path, files: Mapping[str, str]) -> tuple[str, str]:
    """Create or extend a repository by one commit; returns (commit, tree)."""
    if not (folder / ".git").exists():
        git(folder, "init", "-q", "-b", "main", "--template=")
    write_files(folder, files)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "x")
    commit, tree = git(folder, "rev-parse", "HEAD", "HEAD^{tree}").splitlines()
    return commit, tree


def lose_file(folder: Path, path: str) -> str:
    """Make a repository incomplete: the object of one file is gone, the commit and its tree stay; the object's id."""
    lost = git(folder, "rev-parse", f"HEAD:{path}")
    (folder / ".git" / "objects" / lost[:2] / lost[2:]).unlink()
    return lost
