"""Reads single files of single commits from upstream repositories, fetching no more than what is asked for.

Goes through the user's own git configuration like everything else that speaks to git (`envbuild/lock/readers/git.py`).
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.readers.git import fetch, resolve_ref, run_git
from envbuild.node.git_source import object_missing

# Arguments of one command; a tree of thousands of files must not overflow the kernel's limit.
_BATCH = 400


@dataclass
class GitReader:
    """Bare partial repositories below `folder`, one a URL, filled on demand. Not for use by several threads."""

    folder: Path
    _trees: dict[tuple[str, str], dict[str, tuple[str, str]]] = field(default_factory=dict)
    _histories: set[tuple[str, str]] = field(default_factory=set)
    _blobs: set[str] = field(default_factory=set)

    def tree(self, url: str, commit: str) -> dict[str, tuple[str, str]]:
        """Path to (mode, object id) of everything in a commit.

        Raises EnvbuildError `source-unreachable`, `object-missing` (exit 75), `commit-missing` (exit 5).
        """
        key = (url, commit)
        if key not in self._trees:
            place = self._repository(url, "files")
            self._fetch(place, url, ["--depth=1", "--filter=blob:none"], [commit])
            listing = _output(place, ["ls-tree", "-r", "-z", "--full-tree", commit])
            self._trees[key] = dict(_entry(line) for line in listing.split("\0") if line)
        return self._trees[key]

    def has_path(self, url: str, commit: str, path: str) -> bool:
        """Whether a file or folder of that path is in the commit."""
        tree = self.tree(url, commit)
        return path in tree or any(name.startswith(path + "/") for name in tree)

    def read(self, url: str, commit: str, path: str) -> str | None:
        """The text of a file (undecodable bytes replaced), None when there is no such file. Raises as `tree` does."""
        entry = self.tree(url, commit).get(path)
        if entry is None:
            return None
        place = self._repository(url, "files")
        self._fetch_blobs(place, url, [entry[1]])
        return _output(place, ["cat-file", "blob", entry[1]])

    def read_all(self, url: str, commit: str, paths: Iterable[str]) -> dict[str, str]:
        """The texts of files that are there, fetched together. Raises as `tree` does."""
        oids = {path: self.tree(url, commit)[path][1] for path in paths}
        place = self._repository(url, "files")
        self._fetch_blobs(place, url, sorted(set(oids.values())))
        return {path: _output(place, ["cat-file", "blob", oid]) for path, oid in oids.items()}

    def files_with(self, url: str, commit: str, text: str, under: str | None = None) -> list[str]:
        """Paths of the files below `under` that hold an exact text."""
        tree = self.tree(url, commit)
        inside = {
            path: oid
            for path, (mode, oid) in tree.items()
            if mode.startswith("100") and (under is None or path == under or path.startswith(under + "/"))
        }
        return self._grep(url, commit, set(inside.values()), ["-F", "-e", text], [under] if under else [])

    def python_with(self, url: str, commit: str, pattern: str) -> list[str]:
        """Paths of the Python files that an extended regular expression is found in. Raises as `tree` does."""
        files = {
            oid for path, (mode, oid) in self.tree(url, commit).items() if path.endswith(".py") and mode[:3] == "100"
        }
        return self._grep(url, commit, files, ["-E", "-e", pattern], ["*.py"])

    def _grep(self, url: str, commit: str, blobs: set[str], wanted: list[str], under: list[str]) -> list[str]:
        """Paths of the text files in which something is found; `blobs` are those that have to be here for it."""
        place = self._repository(url, "files")
        self._fetch_blobs(place, url, sorted(blobs))
        done = run_git(["grep", "-I", "-l", "-z", *wanted, commit, *(["--", *under] if under else [])], cwd=place)
        if done.returncode > 1:
            raise _failed("grep", url, done.stderr)
        return sorted(name.partition(":")[2] for name in done.stdout.split("\0") if name)

    def submodules(self, url: str, commit: str) -> list[str]:
        """Paths of the gitlinks in a commit."""
        return sorted(path for path, (mode, _) in self.tree(url, commit).items() if mode == "160000")

    def contains(self, url: str, commit: str, ancestor: str) -> bool:
        """Whether `ancestor` is in the history of `commit`."""
        place = self._repository(url, "history")
        if (url, commit) not in self._histories:
            self._fetch(place, url, ["--filter=tree:0"], [commit])
            self._histories.add((url, commit))
        return run_git(["merge-base", "--is-ancestor", ancestor, commit], cwd=place).returncode == 0

    def remote_ref(self, url: str, ref: str) -> str | None:
        """The commit a branch or tag of the remote is at now, None when there is none of that name."""
        return resolve_ref(url, ref)

    def _repository(self, url: str, purpose: str) -> Path:
        name = hashlib.sha256(url.encode()).hexdigest()[:16]
        place = self.folder / f"{name}-{purpose}.git"
        if not place.is_dir():
            place.mkdir(parents=True)
            # The first fetch leaves objects out, and makes the remote the promisor that has them.
            _output(place, ["init", "--quiet", "--bare", "--template=", "."])
            _output(place, ["remote", "add", "origin", url])
        return place

    def _fetch(self, place: Path, url: str, options: list[str], wanted: list[str]) -> None:
        refused = fetch(place, url, options, wanted)
        if refused:
            raise EnvbuildError(
                "commit-missing",
                f"{url} does not give {wanted[0]}",
                why=refused,
                hint="a force-push or a deleted branch may have removed it upstream",
            )

    def _fetch_blobs(self, place: Path, url: str, oids: list[str]) -> None:
        missing = [oid for oid in oids if oid not in self._blobs]
        for start in range(0, len(missing), _BATCH):
            batch = missing[start : start + _BATCH]
            try:
                self._fetch(place, url, ["--filter=blob:none"], batch)
            except EnvbuildError as error:
                if error.code != "commit-missing":
                    raise
                # The commit's own tree names these files, so it is the copy that is not whole.
                lost = next((oid for oid in batch if oid in error.why), batch[0])
                raise EnvbuildError.from_dict(object_missing(url, lost, error.why).as_dict()) from error
            self._blobs.update(batch)


@contextmanager
def git_reader() -> Iterator[GitReader]:
    """A reader over a temporary folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="envbuild-explain-") as folder:
        yield GitReader(Path(folder))


def _entry(line: str) -> tuple[str, tuple[str, str]]:
    head, path = line.split("\t", 1)
    mode, _, oid = head.split()
    return path, (mode, oid)


def _output(place: Path, arguments: list[str]) -> str:
    done = run_git(arguments, cwd=place)
    if done.returncode:
        raise _failed(arguments[0], str(place), done.stderr)
    return done.stdout


def _failed(verb: str, what: str, why: str) -> EnvbuildError:
    return EnvbuildError("git-failed", f"git {verb} failed for {what}", why=why.strip(), exit_code=ExitCode.TRY_AGAIN)
