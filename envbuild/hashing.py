"""Hashes of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from envbuild.errors import EnvbuildError


def sha256_of(path: Path) -> str:
    """sha256 (hex) of a file.

    Raises EnvbuildError `file-unreadable` (exit 70).
    """
    try:
        with path.open("rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest()
    except OSError as error:
        raise EnvbuildError("file-unreadable", f"cannot read {path}", why=str(error.strerror or error)) from error
