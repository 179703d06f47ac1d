"""Reads the files that people write, before anything parses them: regular files, bounded, never waited for."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from envbuild.errors import EnvbuildError

MAX_BYTES = 1_000_000


def read_manifest(path: Path) -> bytes:
    """The bytes of a regular file of at most `MAX_BYTES`; a FIFO or device is refused without waiting for it."""
    name = str(path)
    try:
        # Non-blocking, because opening a FIFO would wait for its writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise EnvbuildError("manifest-missing", f"no such file: {name}", why=f"{name}: not found") from None
    except (OSError, ValueError) as error:
        raise EnvbuildError("manifest-unreadable", f"cannot read {name}", why=f"{name}: {error}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise EnvbuildError(
                "manifest-not-a-file",
                f"{name} is not a regular file",
                why=f"{name}: a folder, FIFO, socket or device",
                hint="name a YAML file",
            )
        if status.st_size > MAX_BYTES:
            raise too_large(name, status.st_size)
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            content = stream.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise too_large(name, len(content))
    return content


def refuse(code: str, name: str, line: int, column: int, problem: str, hint: str = "") -> EnvbuildError:
    """The error for one place (line and column from 1) of one file."""
    return EnvbuildError(
        code,
        f"{name}: {problem}",
        why=f"{name}:{line}:{column}: {problem}",
        hint=hint,
        details={"file": name, "line": line, "column": column},
    )


def too_large(name: str, size: int) -> EnvbuildError:
    """The error for a file of `size` bytes."""
    return EnvbuildError(
        "manifest-too-large",
        f"{name} is larger than {MAX_BYTES} bytes",
        why=f"{name}:1:1: {size} bytes",
        hint="a manifest is a few kilobytes; is this the right file?",
    )
