"""Asks git about commits of upstream repositories, and fetches only what the question needs.

The user's own configuration applies (`insteadOf`, credential helper, proxy); hooks, prompts and the `ext` transport do
not. A commit is proven by its own hash: git checks every object that it fetches.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.node import proc
from envbuild.node.git_source import REPOSITORY_VARIABLES, STALLED, lost_object, object_missing
from envbuild.regular_file import opened

_TIMEOUT_S = 900
_SETTINGS = (
    "protocol.ext.allow=never", "core.hooksPath=/dev/null", "gc.auto=0", "maintenance.auto=false", *STALLED,
)  # fmt: skip
_SAFE = tuple(word for setting in _SETTINGS for word in ("-c", setting))
# Arguments of one command; a tree of thousands of files must not overflow the kernel's limit.
_BATCH = 400
# What of a commit is fetched: itself, its trees, also its files, or its history without them.
Part = Literal["commit", "trees", "files", "history"]
_OPTIONS: dict[Part, tuple[str, ...]] = {
    "commit": ("--depth=1", "--filter=tree:0"),
    "trees": ("--depth=1", "--filter=blob:none"),
    "files": ("--depth=1",),
    "history": ("--filter=tree:0",),
}


def run_git(
    arguments: list[str], *, cwd: Path | None = None, stdin: bytes | None = None, local: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run git without a terminal; the caller judges the exit status.

    `local`: it may fetch nothing, and has so many seconds.
    Raises EnvbuildError `git-missing` (exit 7) and `source-unreachable` (exit 75) after 15 minutes.
    """
    command = ["git", *_SAFE, *arguments]
    env = {key: value for key, value in os.environ.items() if key not in REPOSITORY_VARIABLES}
    env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    env |= {} if local is None else {"GIT_ALLOW_PROTOCOL": ""}  # gits before 2.45 do not know the variable above
    # Its session has no terminal, so that ssh cannot ask for a password there; at the end its helpers end with it.
    done = proc.run(command, timeout=local or _TIMEOUT_S, env=env, cwd=None if cwd is None else str(cwd), stdin=stdin)
    if done.missing:
        hint = "install git, for example: sudo apt-get install -y git"
        raise EnvbuildError("git-missing", "the git program is not installed", why=done.err, hint=hint)
    if done.timed_out or done.rc is None:
        what = f"git did not finish within {local or _TIMEOUT_S:g} s"
        raise EnvbuildError("source-unreachable", what, hint="try again")
    return subprocess.CompletedProcess(command, done.rc, done.out, done.err)


def output_of(place: Path, *arguments: str, stdin: bytes | None = None) -> str:
    """Output of a git command in a repository. Raises EnvbuildError `git-failed` (exit 75)."""
    done = run_git(list(arguments), cwd=place, stdin=stdin)
    if done.returncode:
        raise _failed(arguments[0], str(place), done.stderr)
    return done.stdout


def git_version() -> str:
    """git's version, as `2.39.5`."""
    return run_git(["--version"]).stdout.split()[2]


@dataclass
class GitReader:
    """Bare repositories below `folder`, one a URL and `Part`, filled on demand. Not for use by several threads.

    Its questions raise EnvbuildError `source-unreachable`, `object-missing` (exit 75), `commit-missing` (exit 5).
    """

    folder: Path
    _there: set[tuple[Path, str]] = field(default_factory=set)
    _trees: dict[tuple[str, str], dict[str, tuple[str, str]]] = field(default_factory=dict)
    _blobs: set[str] = field(default_factory=set)

    def repository(self, url: str, commit: str, part: Part) -> Path:
        """The repository with that part of a commit."""
        place = self.folder / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{part}.git"
        if not place.is_dir():
            place.mkdir(parents=True)
            # The first fetch leaves objects out, and makes the remote the promisor that has them.
            output_of(place, "init", "--quiet", "--bare", "--template=", ".")
            output_of(place, "remote", "add", "origin", url)
        if (place, commit) not in self._there:
            if refused := _fetch(place, url, _OPTIONS[part], [commit]):
                _fetch_everything(place, url, commit, refused)
            kind = output_of(place, "cat-file", "-t", commit).strip()
            if kind != "commit":
                raise _no_commit(url, commit, f"{commit} is a {kind}")
            self._there.add((place, commit))
        return place

    def tree_id(self, url: str, commit: str, part: Part = "commit") -> str:
        """Tree hash of a commit, read from the commit itself (`git show` would want the tree's contents)."""
        text = output_of(self.repository(url, commit, part), "cat-file", "commit", commit)
        return text.split("\n", 1)[0].removeprefix("tree ")

    def day(self, url: str, commit: str) -> date | None:
        """The day of a commit (UTC), as its committer's clock had it."""
        return commit_day(output_of(self.repository(url, commit, "commit"), "cat-file", "commit", commit))

    def tree(self, url: str, commit: str) -> dict[str, tuple[str, str]]:
        """Path to (mode, object id) of everything in a commit."""
        key = (url, commit)
        if key not in self._trees:
            rows = _rows(self.repository(url, commit, "trees"), "ls-tree", "-r", "-z", "--full-tree", commit)
            self._trees[key] = {path: (mode, oid) for (mode, _, oid), path in rows}
        return self._trees[key]

    def write_bundle(self, url: str, commit: str, path: Path) -> None:
        """Write a commit and its tree as a git bundle, without history; equal trees give equal bytes.

        `git bundle create` would want the history, and take over what some server had packed.
        """
        place = self.repository(url, commit, "files")
        with (place / "shallow").open("a", encoding="ascii") as out:
            out.write(f"{commit}\n")
        words = ("--revs", "--quiet", "--threads=1", "--no-reuse-object", "--delta-base-offset", "bundle")
        name = output_of(place, "-c", "pack.packSizeLimit=0", "pack-objects", *words, stdin=commit.encode()).strip()
        with path.open("wb") as bundle, opened(place / f"bundle-{name}.pack") as pack:
            bundle.write(f"# v2 git bundle\n{commit} refs/heads/envbuild\n\n".encode())
            shutil.copyfileobj(pack, bundle)

    def sizes(self, url: str, commit: str) -> dict[str, int]:
        """Path to bytes of every file and link of a commit; a link lies in its inode."""
        rows = _rows(self.repository(url, commit, "files"), "ls-tree", "-r", "-l", "-z", "--full-tree", commit)
        return {
            path: int(size) if mode.startswith("100") else 0 for (mode, _, _, size), path in rows if mode != "160000"
        }

    def has_path(self, url: str, commit: str, path: str) -> bool:
        """Whether the commit has a file or folder of that path."""
        tree = self.tree(url, commit)
        return path in tree or any(name.startswith(path + "/") for name in tree)

    def read(self, url: str, commit: str, path: str) -> str | None:
        """The text of a file (undecodable bytes replaced); None if the commit does not have it."""
        return self.read_all(url, commit, [path])[path] if path in self.tree(url, commit) else None

    def read_all(self, url: str, commit: str, paths: Iterable[str]) -> dict[str, str]:
        """The texts of files that are there, fetched together."""
        oids = {path: self.tree(url, commit)[path][1] for path in paths}
        place = self._with_blobs(url, commit, set(oids.values()))
        return {path: output_of(place, "cat-file", "blob", oid) for path, oid in oids.items()}

    def submodules(self, url: str, commit: str) -> dict[str, str]:
        """Path to commit of the gitlinks in a commit."""
        return {path: oid for path, (mode, oid) in sorted(self.tree(url, commit).items()) if mode == "160000"}

    def submodule_urls(self, url: str, commit: str) -> dict[str, str]:
        """Submodule path to URL, from `.gitmodules`; empty when there is no such file."""
        if ".gitmodules" not in self.tree(url, commit):
            return {}
        blob = self.tree(url, commit)[".gitmodules"][1]
        done = run_git(["config", "--blob", blob, "--null", "--list"], cwd=self._with_blobs(url, commit, {blob}))
        settings: dict[str, dict[str, str]] = {"path": {}, "url": {}}
        for entry in done.stdout.split("\0") if done.returncode == 0 else []:
            key, _, value = entry.partition("\n")
            section, _, rest = key.partition(".")
            name, _, word = rest.rpartition(".")
            if section == "submodule" and word in settings:
                settings[word][name] = value
        urls = settings["url"]
        return {path: urls[name] for name, path in settings["path"].items() if name in urls}

    def contains(self, url: str, commit: str, ancestor: str) -> bool:
        """Whether `ancestor` is the commit or in its history; an unknown one is not."""
        place = self.repository(url, commit, "history")
        return run_git(["merge-base", "--is-ancestor", ancestor, commit], cwd=place).returncode == 0

    def grep(self, url: str, commit: str, pattern: str, pathspec: str = "", syntax: str = "-E") -> list[str]:
        """Paths of the text files that a pathspec (empty: all) names and a pattern of that syntax matches in."""

        def is_asked(path: str) -> bool:
            below = path == pathspec or path.startswith(f"{pathspec}/")
            return not pathspec or below or fnmatchcase(path, pathspec)

        blobs = {oid for path, (mode, oid) in self.tree(url, commit).items() if mode[:3] == "100" and is_asked(path)}
        place = self._with_blobs(url, commit, blobs)
        paths = ["--", pathspec] if pathspec else []
        done = run_git(["grep", "-I", "-l", "-z", syntax, "-e", pattern, commit, *paths], cwd=place)
        if done.returncode > 1:
            raise _failed("grep", url, done.stderr)
        return sorted(name.partition(":")[2] for name in done.stdout.split("\0") if name)

    def _with_blobs(self, url: str, commit: str, oids: set[str]) -> Path:
        """The repository with the trees of a commit, and with these of its files."""
        place = self.repository(url, commit, "trees")
        missing = sorted(oids - self._blobs)
        for start in range(0, len(missing), _BATCH):
            batch = missing[start : start + _BATCH]
            if why := _fetch(place, url, ("--filter=blob:none",), batch):
                # The commit's own tree names these files, so it is the copy that is not whole.
                lost = next((oid for oid in batch if oid in why), batch[0])
                raise EnvbuildError.from_dict(object_missing(url, lost, why).as_dict())
            self._blobs.update(batch)
        return place


def commit_day(text: str) -> date | None:
    """The committer's day (UTC) in the text of a commit object."""
    match = re.search(r"^committer .*> ([0-9]{1,11}) [+-][0-9]{4}$", text, re.MULTILINE)
    return datetime.fromtimestamp(int(match[1]), UTC).date() if match else None


@contextmanager
def git_reader() -> Iterator[GitReader]:
    """A reader over a temporary folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="envbuild-git-") as folder:
        yield GitReader(Path(folder))


def _rows(place: Path, *arguments: str) -> Iterator[tuple[list[str], str]]:
    """The rows of `ls-tree -z`: the words before the path, and the path."""
    for line in filter(None, output_of(place, *arguments).split("\0")):
        head, path = line.split("\t", 1)
        yield head.split(), path


def _fetch(place: Path, url: str, options: Iterable[str], wanted: list[str]) -> str:
    """Fetch objects by their hashes into a repository: why the other side, which answers, does not give them, or ""."""
    command = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", *options, "origin", *wanted]
    done = run_git(command, cwd=place)
    if done.returncode == 0:
        return ""
    _refuse_incomplete(url, done)
    head = run_git(["ls-remote", "--quiet", "origin", "HEAD"], cwd=place)
    if head.returncode:
        raise _unreachable(url, head.stderr)
    return done.stderr.strip() or f"git fetch ended with exit code {done.returncode}"


def _fetch_everything(place: Path, url: str, commit: str, why: str) -> None:
    """A server may refuse to serve a commit by its hash; then every branch and tag is fetched and searched."""
    words = ["fetch", "--quiet", "--update-shallow", "origin", "+refs/*:refs/remotes/origin/*"]
    everything = run_git(words, cwd=place)
    _refuse_incomplete(url, everything)
    if everything.returncode or run_git(["cat-file", "-e", commit], cwd=place).returncode:
        raise _no_commit(url, commit, why)


def _no_commit(url: str, commit: str, why: str) -> EnvbuildError:
    return EnvbuildError(
        "commit-missing",
        f"{url} has no commit {commit}",
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


def _failed(verb: str, what: str, why: str) -> EnvbuildError:
    why = why.strip()[-1000:]
    return EnvbuildError("git-failed", f"git {verb} failed for {what}", why=why, exit_code=ExitCode.TRY_AGAIN)


def resolve_ref(url: str, ref: str) -> str | None:
    """The commit a branch or tag (annotated tags peeled) is at now; None when there is no such ref.

    Raises EnvbuildError `source-unreachable` (exit 75).
    """
    names = [f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", ref]
    commits = _refs(url, f"refs/heads/{ref}", f"refs/tags/{ref}*", ref)
    return next((commits[name] for name in names if name in commits), None)


def resolve_tags(url: str, prefix: str) -> dict[str, str]:
    """The commit of each tag that begins with a prefix, by what follows the prefix. Raises as `resolve_ref`."""
    commits = _refs(url, f"refs/tags/{prefix}*")
    whole = {name.removesuffix("^{}").removeprefix(f"refs/tags/{prefix}") for name in commits}
    both = {tag: f"refs/tags/{prefix}{tag}" for tag in whole}
    return {tag: commits.get(f"{name}^{{}}", commits[name]) for tag, name in both.items()}


def _refs(url: str, *patterns: str) -> dict[str, str]:
    done = run_git(["ls-remote", "--quiet", "--", url, *patterns])
    if done.returncode:
        raise _unreachable(url, done.stderr)
    rows = [line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line]
    return {name: commit for commit, name in rows}
