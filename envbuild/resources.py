"""The one place that knows where shipped files are, in a checkout or in an installed wheel."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError

_PACKAGE = Path(__file__).resolve().parent
SOURCE_STAMP = "_data/source.json"


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


def pages() -> dict[str, Path]:
    """The pages of the documentation, each by the name that hints have for it (`docs/offline.md`)."""
    top = _shipped("docs")
    paths = (path for folder in ("", "reference/", "tutorials/") for path in sorted(top.glob(f"{folder}*.md")))
    return {f"docs/{path.relative_to(top).as_posix()}": path for path in paths}


def node_package() -> Path:
    """The source of the node program."""
    return _PACKAGE / "node"


def shipped() -> dict[str, Path]:
    """What lies at the top of a checkout and under `_data/` in a wheel, by name."""
    return {name: _shipped(name) for name in ("playbooks", "lockfiles", "containers")} | pages()


def own_source() -> dict[str, Any]:
    """The commit and the https address that this envbuild is from, as PEP 610 has them; empty where unknown.

    Of an installation from a repository, else stamped into its wheel, else of its checkout.
    """
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    stamp = _PACKAGE / SOURCE_STAMP
    try:
        record = json.loads(distribution("envbuild").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        record = {}
    if "vcs_info" in record:
        commit = str(record["vcs_info"].get("commit_id", ""))
        return {"url": https_address(str(record["url"])), "vcs_info": {"vcs": "git", "commit_id": commit}}
    return json.loads(stamp.read_text()) if stamp.is_file() else checkout_source(_PACKAGE.parent)


def own_commit() -> str:
    """The commit of this envbuild; empty where unknown."""
    return str(own_source().get("vcs_info", {}).get("commit_id", ""))


def checkout_source(root: Path) -> dict[str, Any]:
    """The same of a checkout without changes; without the address where a remote branch has not got the commit."""
    import subprocess

    def git(*argv: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *argv], capture_output=True, text=True, timeout=10, check=False)
        return done.stdout.strip()

    # Below the folder of another repository, git would answer for that one.
    commit = git("describe", "--always", "--abbrev=40", "--dirty", "--exclude=*") if (root / ".git").exists() else ""
    if not re.fullmatch("[0-9a-f]{40}", commit):
        return {}
    published = git("branch", "--remotes", "--contains", "HEAD")
    address = https_address(git("remote", "get-url", "origin")) if published else ""
    return {"url": address, "vcs_info": {"vcs": "git", "commit_id": commit}}


def https_address(url: str) -> str:
    """An https address without credentials, that of `git@HOST:PATH` too; empty for what nobody else can reach."""
    url = re.sub(r"^(?:ssh://)?git@([\w.-]+)[:/](?!\d+/)", r"https://\1/", url)
    url = re.sub(r"^https://[^/@]*@", "https://", url)
    return url if re.fullmatch(r"https://[\w.-]+(:\d+)?/[\w./~+-]+", url) else ""


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
