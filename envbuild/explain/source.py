"""Where a document's text comes from: a file of the user's, the cache, or its pinned place in git."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.lock.readers.git import git_reader
from envbuild.model.stack import Document, Stack
from envbuild.node import paths
from envbuild.regular_file import read_file

_LARGEST = 2_000_000


@dataclass(frozen=True, slots=True)
class DocumentText:
    """A text, and `doubt`: why it may not be the pinned one; empty if it is."""

    text: str
    doubt: str = ""


def read_document(stack: Stack, file: Path | None, *, other: bool = False) -> DocumentText:
    """The text of `file`, or of the stack's document at its commit, compared with the hash that the stack records.

    `other`: take a file that is another text. What git gave is kept in the user's cache where its hash is known.
    Raises EnvbuildError `document-unknown`, `file-unreadable`, `document-differs` (exit 2), `document-missing`,
    `document-changed` (exit 5) and what reading from git raises (`source-unreachable`, exit 75).
    """
    document = stack.document
    if file is not None:
        return _given(file, document, other=other)
    if document is None or document.commit is None or document.path is None:
        raise EnvbuildError(
            "document-unknown",
            f"the stack {stack.name} has no address of its document",
            hint="give the document's file with --document",
        )
    if document.sha256 and (kept := _kept(document.sha256)) is not None:
        return DocumentText(kept)
    text = _from_git(document.url, document.commit, document.path)
    if document.sha256 and _digest(text) != document.sha256:
        raise EnvbuildError(
            "document-changed",
            f"{document.path} of {document.url} is not the text that the findings describe",
            why=f"its sha256 is {_digest(text)[:12]}, the stack records {document.sha256[:12]}",
        )
    if document.sha256:
        with suppress(OSError):  # a cache that cannot be written costs the next run a fetch
            place = _place(document.sha256)
            place.parent.mkdir(parents=True, exist_ok=True)
            paths.write_whole(str(place), text.encode())
    return DocumentText(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _from_git(url: str, commit: str, path: str) -> str:
    try:
        with git_reader() as git:
            text = git.read(url, commit, path)
    except EnvbuildError as error:
        have = f"if you have {path} of commit {commit[:12]}: --document FILE needs no network"
        error.hint = f"{error.hint}; {have}" if error.hint else have
        raise
    if text is None:
        raise EnvbuildError(
            "document-missing",
            f"{url} has no {path} at {commit[:12]}",
            hint="give the document's file with --document",
        )
    return text


def _place(sha256: str) -> Path:
    import platformdirs

    return platformdirs.user_cache_path("envbuild") / "documents" / sha256


def _kept(sha256: str) -> str | None:
    """The text as an earlier run kept it; None where it did not, or it is not that text any more."""
    try:
        text = _place(sha256).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text if _digest(text) == sha256 else None


def _given(file: Path, document: Document | None, *, other: bool) -> DocumentText:
    try:
        text = read_file(file, _LARGEST).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        hint = "name a UTF-8 text file"
        raise EnvbuildError("file-unreadable", f"cannot read {file}", why=str(error), hint=hint) from error
    if document is None or document.sha256 is None:
        unknown = f"Not compared: the stack records no sha256 of its document, and {file.name} was given"
        return DocumentText(text, unknown)
    if _digest(text) == (pinned := document.sha256):
        return DocumentText(text)
    differs = f"its sha256 is {_digest(text)[:12]}, that of the document is {pinned[:12]}"
    if not other:
        raise EnvbuildError(
            "document-differs",
            f"{file} is not the document that the findings describe",
            why=differs,
            hint="remove --document to fetch the original, or add --other-text to annotate this text",
        )
    return DocumentText(text, f"This is not the document that the findings describe: {file.name}, {differs}")
