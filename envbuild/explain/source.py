"""Where a document's text comes from: a file of the user's, or its pinned place in git."""

from __future__ import annotations

from pathlib import Path

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.explain.gitread import git_reader
from envbuild.model.stack import Stack

_LARGEST = 2_000_000


def read_document(stack: Stack, file: Path | None) -> str:
    """The text of `file`, or of the stack's document at its commit.

    Raises EnvbuildError `document-unknown`, `document-unreadable` (exit 2), `document-missing` (exit 5) and what
    reading from git raises (`source-unreachable`, exit 75).
    """
    if file is not None:
        return _from_file(file)
    document = stack.document
    if document is None or document.commit is None or document.path is None:
        raise EnvbuildError(
            "document-unknown",
            f"the stack {stack.name} does not say where its document is",
            hint="name the document's file with --document",
        )
    with git_reader() as git:
        text = git.read(document.url, document.commit, document.path)
    if text is None:
        raise EnvbuildError(
            "document-missing",
            f"{document.url} has no {document.path} at {document.commit[:12]}",
            hint="name the document's file with --document",
            exit_code=ExitCode.INTEGRITY,
        )
    return text


def _from_file(file: Path) -> str:
    try:
        if file.stat().st_size > _LARGEST:
            raise EnvbuildError("document-unreadable", f"{file} is larger than {_LARGEST} bytes")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EnvbuildError(
            "document-unreadable", f"cannot read {file}", why=str(error), hint="name a UTF-8 text file"
        ) from error
