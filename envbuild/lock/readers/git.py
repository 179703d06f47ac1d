"""Asks git about a source: its tree, its ancestors, its submodules, where a branch is now.

The user's own configuration applies (`insteadOf`, credential helper, proxy); hooks, prompts and the `ext` transport
do not. A commit is proven by its own hash: git checks every object it fetches.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.node import proc
from envbuild.node.git_source import REPOSITORY_VARIABLES, lost_object, object_missing

_TIMEOUT_S = 900
_SETTINGS = ("protocol.ext.allow=never", "core.hooksPath=/dev/null", "gc.auto=0", "maintenance.auto=false")
_SAFE = tuple(word for setting in _SETTINGS for word in ("-c", setting))


def _environ() -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if key not in REPOSITORY_VARIABLES}
    return env | {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}


def run_git(arguments: list[str], *, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run git without a terminal; the caller judges the exit status.

    Raises EnvbuildError `git-missing` (exit 7) and `source-unreachable` (exit 75) after 15 minutes.
    """
    command = ["git", *_SAFE, *arguments]
    # Its session has no terminal, so that ssh cannot ask for a password there; at the end its helpers end with it.
    done = proc.run(command, timeout=_TIMEOUT_S, env=_environ(), cwd=None if cwd is None else str(cwd))
    if done.missing:
        raise EnvbuildError(
            "git-missing",
            "the git program is not installed",
            why=done.err,
            hint="install git, for example: sudo apt-get install -y git",
        )
    if done.timed_out or done.rc is None:
        raise EnvbuildError("source-unreachable", f"git did not finish within {_TIMEOUT_S} s", hint="try again")
    return subprocess.CompletedProcess(command, done.rc, done.out, done.err)


def git_version() -> str:
    """git's version, as `2.39.5`."""
    return run_git(["--version"]).stdout.split()[2]


@dataclass(frozen=True)
class Repository:
    """A temporary bare repository with one commit of a source fetched into it."""

    folder: Path
    url: str
    commit: str

    def git(self, *arguments: str) -> str:
        """Output of a git command in the repository. Raises EnvbuildError `git-failed` (exit 70)."""
        done = run_git(list(arguments), cwd=self.folder)
        if done.returncode:
            raise EnvbuildError(
                "git-failed", f"git {arguments[0]} failed for {self.url}", why=done.stderr.strip()[-1000:]
            )
        return done.stdout

    def tree(self) -> str:
        """Tree hash of the commit, read from the commit itself (`git show` would want the tree's contents)."""
        return self.git("cat-file", "commit", self.commit).split("\n", 1)[0].removeprefix("tree ")

    def contains(self, ancestor: str) -> bool:
        """Whether a commit is an ancestor of (or is) the commit; an unknown commit is not."""
        done = run_git(["merge-base", "--is-ancestor", ancestor, self.commit], cwd=self.folder)
        return done.returncode == 0

    def gitlinks(self) -> dict[str, str]:
        """Submodule path to commit, from the tree."""
        links = {}
        for line in self.git("ls-tree", "-r", "-z", self.commit).split("\0"):
            if line.startswith("160000 "):
                head, path = line.split("\t", 1)
                links[path] = head.split()[2]
        return links

    def submodule_urls(self) -> dict[str, str]:
        """Submodule path to URL, from `.gitmodules`; empty when there is no such file."""
        blob = self.git("ls-tree", "--format=%(objectname)", self.commit, ".gitmodules").strip()
        if not blob:
            return {}
        if run_git(["cat-file", "-e", blob], cwd=self.folder).returncode:
            self.git("fetch", "--quiet", "--no-tags", "--no-filter", "origin", blob)
        done = run_git(["config", "--blob", blob, "--null", "--list"], cwd=self.folder)
        paths: dict[str, str] = {}
        urls: dict[str, str] = {}
        for entry in done.stdout.split("\0") if done.returncode == 0 else []:
            key, _, value = entry.partition("\n")
            if key.startswith("submodule.") and key.endswith(".path"):
                paths[key[len("submodule.") : -len(".path")]] = value
            elif key.startswith("submodule.") and key.endswith(".url"):
                urls[key[len("submodule.") : -len(".url")]] = value
        return {path: urls[name] for name, path in paths.items() if name in urls}


@contextmanager
def fetched(
    url: str, commit: str, *, history: bool = False, trees: bool = False, files: bool = False
) -> Iterator[Repository]:
    """Fetch one commit into a temporary bare repository; with its `history`, with its `trees`, with all its `files`.

    Raises EnvbuildError `source-unreachable`, `object-missing` (exit 75), `commit-missing` (exit 5).
    """
    with tempfile.TemporaryDirectory(prefix="envbuild-git-") as folder:
        place = Path(folder)
        repository = Repository(place, url, commit)
        repository.git("init", "--quiet", "--bare", "--template=", ".")
        repository.git("remote", "add", "origin", url)
        # Only what the questions need: for a tree hash the commit object is enough.
        options = [] if history else ["--depth=1"]
        options += [] if files else ["--filter=blob:none" if trees else "--filter=tree:0"]
        if refused := fetch(place, url, options, [commit]):
            _fetch_everything(repository, refused)
        kind = repository.git("cat-file", "-t", commit).strip()
        if kind != "commit":
            raise _no_commit(repository, f"{commit} is a {kind}")
        yield repository


def fetch(place: Path, url: str, options: list[str], wanted: list[str]) -> str:
    """Fetch objects by their hashes into the repository at `place`, whose `origin` is `url`.

    Why the other side, which answers, does not give them; empty where they are here now. Raises EnvbuildError
    `source-unreachable` and `object-missing` (exit 75).
    """
    command = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", *options, "origin", *wanted]
    done = run_git(command, cwd=place)
    if done.returncode == 0:
        return ""
    _refuse_incomplete(url, done)
    head = run_git(["ls-remote", "--quiet", "origin", "HEAD"], cwd=place)
    if head.returncode:
        raise _unreachable(url, head.stderr)
    return done.stderr.strip() or f"git fetch ended with exit code {done.returncode}"


def _fetch_everything(repository: Repository, why: str) -> None:
    """A server may refuse to serve a commit by its hash; then every branch and tag is fetched and searched."""
    everything = run_git(["fetch", "--quiet", "origin", "+refs/*:refs/remotes/origin/*"], cwd=repository.folder)
    _refuse_incomplete(repository.url, everything)
    found = run_git(["cat-file", "-e", repository.commit], cwd=repository.folder)
    if everything.returncode or found.returncode:
        raise _no_commit(repository, why)


def _no_commit(repository: Repository, why: str) -> EnvbuildError:
    return EnvbuildError(
        "commit-missing",
        f"{repository.url} has no commit {repository.commit}",
        why=why,
        hint="check the commit; a force-push or a deleted branch may have removed it upstream",
    )


def _refuse_incomplete(url: str, done: subprocess.CompletedProcess[str]) -> None:
    """Raises EnvbuildError `object-missing` (exit 75) where a fetch failed because the other side lost an object."""
    lost = lost_object(done.stderr) if done.returncode else ""
    if lost:
        raise EnvbuildError.from_dict(object_missing(url, lost, done.stderr.strip()[-1000:]).as_dict())


def _unreachable(url: str, why: str) -> EnvbuildError:
    """The error for a repository that does not answer."""
    return EnvbuildError(
        "source-unreachable",
        f"{url} cannot be reached",
        why=why.strip()[-1000:],
        hint="check the network, or point git at a mirror: git config url.<mirror>.insteadOf <upstream>",
    )


def resolve_ref(url: str, ref: str) -> str | None:
    """The commit a branch or tag (annotated tags peeled) is at now; None when there is no such ref.

    Raises EnvbuildError `source-unreachable` (exit 75).
    """
    names = [f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", ref]
    done = run_git(["ls-remote", "--quiet", "--", url, f"refs/heads/{ref}", f"refs/tags/{ref}*", ref])
    if done.returncode:
        raise _unreachable(url, done.stderr)
    rows = [line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line]
    found = {name: commit for commit, name in rows}
    return next((found[name] for name in names if name in found), None)
