"""The one reader of files that somebody else wrote or named: regular files of a bounded size, never waited for."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.node import hashing
from envbuild.node.read_text import opened as opened

LARGEST = 64 * 1024 * 1024


def read_file(path: Path, limit: int = LARGEST, *, follow: bool = True) -> bytes:
    """The bytes of a regular file; raises OSError as `opened`, and EFBIG for one of more than `limit` bytes."""
    with opened(path, follow=follow) as file:
        data = file.read(limit + 1)  # files of /proc have no size to ask for
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit:,} bytes", str(path))
    return data


def read_text(path: Path) -> str:
    """The text of a file, which others may have written in another encoding. Raises EnvbuildError `file-unreadable`."""
    try:
        return read_file(path).decode("utf-8", "replace")
    except OSError as error:
        raise unreadable(path, error) from error


_DEEPEST_KEY = 100
# Starts at the first part of a key alone, so that text without one costs linear time.
_KEY_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_DEEP_KEY = re.compile(rf"(?<![A-Za-z0-9_.\"'-])(?:{_KEY_PART}){{{_DEEPEST_KEY}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """The data of a TOML text.

    Raises ValueError for what is none, and for a key of more than 100 parts, on which the parser spends the square of
    their number; RecursionError for values that are nested too deep.
    """
    import tomli  # tomllib, compiled: a lock has up to 3,000 lines

    if _DEEP_KEY.search(text):
        raise ValueError(f"a key of more than {_DEEPEST_KEY} parts")
    return tomli.loads(text)


def unreadable(path: Path, error: OSError) -> EnvbuildError:
    """`file-unreadable` (exit 2)."""
    return EnvbuildError("file-unreadable", f"cannot read {path}", why=error.strerror or str(error))


def sha256_of(path: Path) -> str:
    """sha256 (hex) of a regular file. Raises EnvbuildError `file-unreadable` (exit 2)."""
    try:
        return hashing.digest_of(path)
    except OSError as error:
        raise unreadable(path, error) from error


MAX_BYTES = 1_000_000


def read_manifest(path: Path) -> bytes:
    """The bytes of a regular file of at most `MAX_BYTES`; a FIFO or device is refused without waiting for it."""
    try:
        return read_file(path, MAX_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise too_large(str(path)) from None
        raise unreadable(path, error) from None


def refuse(code: str, name: str, line: int, column: int, problem: str, hint: str = "") -> EnvbuildError:
    """The error for one place (line and column from 1) of one file."""
    return EnvbuildError(
        code,
        f"{name}: {problem}",
        why=f"{name}:{line}:{column}",
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
