"""The one reader of files that somebody else wrote or named: regular files of a bounded size, never waited for."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from envbuild.errors import EnvbuildError

LARGEST = 64 * 1024 * 1024


@contextmanager
def opened(path: Path, *, follow: bool = True) -> Iterator[BufferedReader]:
    """A regular file, to be read; `follow`: also through a link. Raises OSError, for a FIFO or device as well."""
    try:
        # Non-blocking, because opening a FIFO would wait for its writer for ever.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
        descriptor = os.open(path, flags)
    except ValueError as error:  # NUL in its name
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield file


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


def unreadable(path: Path, error: OSError) -> EnvbuildError:
    """`file-unreadable` (exit 2)."""
    return EnvbuildError("file-unreadable", f"cannot read {path}", why=error.strerror or str(error))
