"""The one place that knows where shipped files are, in a checkout or in an installed wheel."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from envbuild.errors import EnvbuildError

_PACKAGE = Path(__file__).resolve().parent


def _shipped(name: str) -> Path:
    """What lies at the top of a checkout and under `_data/` in a wheel."""
    installed = _PACKAGE / "_data" / name
    return installed if installed.exists() else _PACKAGE.parent / name


def catalog() -> Path:
    """Stacks, targets and compatibility data."""
    return _PACKAGE / "catalog"


def playbooks() -> Path:
    """`provision.yml` and its roles."""
    return _shipped("playbooks")


def lockfiles() -> Path:
    """The locks of the shipped stacks."""
    return _shipped("lockfiles")


def user_locks() -> Path:
    """This user's copies of shipped locks, with the hashes that `lock record` added."""
    import platformdirs

    return platformdirs.user_data_path("envbuild") / "locks"


def artifact_cache() -> Path:
    """The folder on this machine that keeps what was fetched for nodes: `packages/<sha256>/<file>` and `sources/`."""
    import platformdirs

    return platformdirs.user_cache_path("envbuild") / "artifacts"


def artifact(sha256: str, name: str, cache: Path) -> Path:
    """Where the cache keeps a file, whether it has it or not."""
    return cache / "packages" / sha256 / name


def containers() -> Path:
    """Generated Dockerfiles and build contexts of the shipped stacks."""
    return _shipped("containers")


def error_table() -> Path:
    """Every error code with its messages."""
    return _shipped("docs/reference/errors.md")


def node_package() -> Path:
    """The source of the node program."""
    return _PACKAGE / "node"


def own_commit() -> str:
    """The commit that this envbuild was installed from (PEP 610), or that of its checkout; else empty."""
    import json
    import subprocess
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        record = json.loads(distribution("envbuild").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        record = {}
    commit = str(record.get("vcs_info", {}).get("commit_id", ""))
    if not commit and (_PACKAGE.parent / ".git").exists():
        argv = ["git", "-C", str(_PACKAGE.parent), "rev-parse", "HEAD"]
        commit = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    return commit if len(commit) == 40 else ""


def program(name: str) -> Path | None:
    """A program of this interpreter's environment, else the one on PATH; None where neither has it."""
    import shutil

    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.is_file() and os.access(beside, os.X_OK) else shutil.which(name)
    return None if path is None else Path(path)


def uv_bin() -> str:
    """Full path of the uv that envbuild depends on. Raises EnvbuildError `uv-missing`."""
    from uv import find_uv_bin

    try:
        return os.fsdecode(find_uv_bin())
    except FileNotFoundError as error:
        raise EnvbuildError(
            "uv-missing",
            "the uv program is not installed",
            why=str(error),
            hint="install envbuild's dependencies again",
        ) from error


def fabfile_folder() -> Path:
    """The folder whose `fabfile.py` has the tasks for fab."""
    return _PACKAGE / "fab"
