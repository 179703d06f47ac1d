"""Reads the files that people write, before anything parses them: regular files, bounded, never waited for."""

from __future__ import annotations

import errno
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.regular_file import read_file

MAX_BYTES = 1_000_000


def read_manifest(path: Path) -> bytes:
    """The bytes of a regular file of at most `MAX_BYTES`; a FIFO or device is refused without waiting for it."""
    name = str(path)
    try:
        return read_file(path, MAX_BYTES)
    except FileNotFoundError:
        raise EnvbuildError("file-unreadable", f"no such file: {name}", why=f"{name}: not found") from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise too_large(name) from None
        raise EnvbuildError("file-unreadable", f"cannot read {name}", why=f"{name}: {error.strerror}") from None


def refuse(code: str, name: str, line: int, column: int, problem: str, hint: str = "") -> EnvbuildError:
    """The error for one place (line and column from 1) of one file."""
    return EnvbuildError(
        code,
        f"{name}: {problem}",
        why=f"{name}:{line}:{column}: {problem}",
        hint=hint,
        details={"file": name, "line": line, "column": column},
    )


def too_large(name: str) -> EnvbuildError:
    """The error for a file of more than `MAX_BYTES`."""
    return EnvbuildError(
        "manifest-invalid",
        f"{name} is larger than {MAX_BYTES} bytes",
        why=f"{name}:1:1: more than a manifest has",
        hint="a manifest is a few kilobytes; is this the right file?",
    )
