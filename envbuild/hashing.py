"""Hashes of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from envbuild.regular_file import opened, unreadable


def sha256_of(path: Path) -> str:
    """sha256 (hex) of a regular file.

    Raises EnvbuildError `file-unreadable` (exit 2).
    """
    try:
        with opened(path) as source:
            return hashlib.file_digest(source, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error
