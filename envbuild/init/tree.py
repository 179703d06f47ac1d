"""The input of `--from`: a file, a folder or a commit of a repository, as names and texts.

Links are not followed, sizes and counts are bounded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from envbuild.errors import EnvbuildError
from envbuild.init.draft import Origin
from envbuild.init.readers.requirement import git_address
from envbuild.init.statement import without_credentials
from envbuild.lock.readers.git import GitReader, commit_day, git_reader, resolve_ref, run_git
from envbuild.lock.sources import absolute_url
from envbuild.node.git_source import PASSED
from envbuild.regular_file import read_file

MOST_FILES = 100_000
LARGEST = 2_000_000
_MODULES = ".gitmodules"
_DEADLINE = 30.0  # for git to say the commit of a checkout
_SAFE = ("-c", "core.fsmonitor=false", "-c", "log.showSignature=false")
_ADDRESS = re.compile(r"(?:git\+)?(?:https?|ssh|git)://|git@[\w.-]+:")
_OTHER_ADDRESS = re.compile(r"[a-z][a-z+]*:/", re.IGNORECASE)
_LOCAL = (
    "clone it and give the folder, push it and give its https or ssh address, or give a local repository such an "
    "address: `git config --global url.FOLDER/.insteadOf https://HOST/OWNER/`"
)


@dataclass
class Tree:
    """Files by their paths, read when asked for; `left_out` says what was not read and why."""

    origin: Origin
    files: tuple[str, ...]
    _read: Callable[[str], bytes]
    folder: Path | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    alone: bool = False  # one file that was named, whatever checkout it lies in
    _texts: dict[str, str | None] = field(default_factory=dict)

    def text(self, path: str) -> str | None:
        """The text of a file; None, noted under `left_out`, of what is too large, binary or not readable."""
        if path not in self._texts:
            self._texts[path] = self._text(path)
        return self._texts[path]

    def _text(self, path: str) -> str | None:
        try:
            data = self._read(path)
        except OSError as error:
            self.left_out[path] = (error.strerror or str(error)).lower()
            return None
        if b"\0" in data[:8192]:
            self.left_out[path] = "it is binary"
            return None
        return data.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def is_address(reference: str) -> bool:
    """Whether an input is a repository elsewhere."""
    return bool(_ADDRESS.match(reference))


@contextmanager
def opened(reference: str) -> Iterator[Tree]:
    """The tree of an input, while it is read.

    Raises EnvbuildError `init-source`, `file-unreadable` (exit 2), and what reading from git raises.
    """
    if is_address(reference):
        url, ref = split_ref(reference.removeprefix("git+"))
        with git_reader() as reader:
            yield of_commit(url, ref, reader)
        return
    path = Path(reference).expanduser()
    if _OTHER_ADDRESS.match(reference) and not path.exists():
        scheme = reference.partition(":")[0]
        raise EnvbuildError("init-source", f"{scheme} addresses are not taken, https and ssh are", hint=_LOCAL)
    if (path / "HEAD").is_file() and (path / "objects").is_dir():
        raise EnvbuildError("init-source", f"{path} is a bare repository, which is no folder of code", hint=_LOCAL)
    if path.is_dir():
        yield of_folder(path)
    elif path.exists():
        yield of_file(path)
    else:
        raise EnvbuildError(
            "init-source",
            f"there is no file or folder {without_credentials(reference)}",
            hint="name a page, a folder, or https://HOST/OWNER/NAME@REF",
        )


def split_ref(address: str) -> tuple[str, str]:
    """An address and the ref behind its last `@`, which is neither that of `git@HOST` nor of a user's name."""
    head, separator, ref = address.rpartition("@")
    if separator and "/" in head.partition("://")[2] + head.partition("@")[2].replace(":", "/") and "/" in head:
        if re.match(r"(?:https?|ssh|git)://[^/]*$", head):
            return address, ""
        return head, ref
    return address, ""


def of_file(path: Path) -> Tree:
    """One file. Raises EnvbuildError `file-unreadable` (exit 2) for one that is too large, binary or not there."""
    origin = _origin(path.absolute().parent, path.stem)

    def content(_: str) -> bytes:
        return read_file(path, LARGEST)

    tree = Tree(origin, (path.name,), content, alone=True)
    if tree.text(path.name) is None:
        hint = f"give a text file of at most {LARGEST // 1_000_000} MB"
        raise EnvbuildError("file-unreadable", f"cannot read {path}", why=tree.left_out[path.name], hint=hint)
    return tree


def of_folder(folder: Path) -> Tree:
    """A checkout or any folder. Raises EnvbuildError `file-unreadable` (exit 2) for what cannot be listed."""
    left_out: dict[str, str] = {}
    files = tuple(sorted(_walk(folder, left_out)))
    origin = _origin(folder.absolute(), folder.resolve().name)

    def content(path: str) -> bytes:
        return read_file(folder / path, LARGEST, follow=False)

    tree = Tree(origin, files, content, folder, left_out)
    for path in re.findall(r"(?m)^\s*path\s*=\s*(\S+)\s*$", tree.text(_MODULES) or "" if _MODULES in files else ""):
        if not any(file.startswith(f"{path}/") for file in files):
            left_out[path] = "it is a submodule that is not checked out: `git submodule update --init` does that"
    return tree


def _walk(folder: Path, left_out: dict[str, str]) -> Iterator[str]:
    pending, count = [""], 0
    while pending:
        inside = pending.pop()
        try:
            entries = list(os.scandir(folder / inside))
        except OSError as error:
            if not inside:
                raise EnvbuildError("file-unreadable", f"cannot read {folder}", why=error.strerror or "") from error
            left_out[inside] = (error.strerror or "").lower()
            continue
        for entry in entries:
            path = f"{inside}/{entry.name}".lstrip("/")
            if entry.is_symlink():
                left_out[path] = "it is a link"
            elif entry.is_dir(follow_symlinks=False):
                if entry.name not in PASSED:
                    pending.append(path)
            elif entry.is_file(follow_symlinks=False):
                count += 1
                if count > MOST_FILES:
                    left_out["…"] = f"more than {MOST_FILES:,} files"
                    return
                yield path


def of_commit(url: str, ref: str, reader: GitReader) -> Tree:
    """A commit of a repository; `ref` is a branch, a tag, a full hash, or empty for the default branch.

    Raises EnvbuildError `init-source` (exit 2) for an address that is none, `commit-missing` (exit 5), and what reading
    from git raises.
    """
    address = git_address(url)
    if address is None or ref.startswith("-"):
        raise EnvbuildError(
            "init-source",
            "the repository's address or ref is not valid",
            hint="write https://HOST/OWNER/NAME, or add @REF: a branch, a tag or a full commit",
        )
    commit = ref if re.fullmatch(r"[0-9a-f]{40}", ref) else resolve_ref(address.url, ref or "HEAD")
    if commit is None:
        hint = "write all 40 digits of a commit" if re.fullmatch(r"[0-9a-f]{4,39}", ref) else ""
        raise EnvbuildError("commit-missing", f"{address.url} has no branch or tag {ref}", hint=hint)
    listed = reader.tree(address.url, commit)
    left_out = {path: "it is a link" for path, (mode, _) in listed.items() if mode == "120000"}
    plain = [path for path, (mode, _) in listed.items() if mode.startswith("100")]
    files = [path for path in plain if PASSED.isdisjoint(path.split("/")[:-1])]
    if len(files) > MOST_FILES:
        left_out["…"] = f"more than {MOST_FILES:,} files"
    urls = reader.submodule_urls(address.url, commit)
    below = {
        path: f"{absolute_url(address.url, urls[path])}@{oid}"
        for path, oid in reader.submodules(address.url, commit).items()
        if path in urls
    }
    day = reader.day(address.url, commit)
    origin = Origin(PurePosixPath(address.url).name, address.url, commit, day, tuple(below.items()))

    def content(path: str) -> bytes:
        text = reader.read(address.url, commit, path) or ""
        if len(text) > LARGEST:
            raise OSError(f"larger than {LARGEST:,} bytes")
        return text.encode()

    tree = Tree(origin, tuple(sorted(files)[:MOST_FILES]), content, left_out=left_out)
    wanted = [path for path in tree.files if path.endswith(".py")]
    reader.read_all(address.url, commit, wanted)  # in a few fetches, not one a file
    return tree


def _origin(folder: Path, name: str) -> Origin:
    """Repository, commit and day of a checkout, by commands of git that run nothing of its configuration."""

    def git(*arguments: str) -> str:
        done = run_git([*_SAFE, *arguments], cwd=folder, local=_DEADLINE)
        return done.stdout if done.returncode == 0 else ""

    commit = git("rev-parse", "--verify", "HEAD").strip()
    address = git_address(git("config", "--get", "remote.origin.url").strip()) if commit else None
    day = commit_day(git("cat-file", "commit", commit)) if commit else None
    return Origin(PurePosixPath(address.url).name if address else name, address.url if address else "", commit, day)
