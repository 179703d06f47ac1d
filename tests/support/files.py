"""Files and the folders above them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_file(path: Path, content: str | bytes = "") -> Path:
    """A file with the folders above it; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_files(top: Path, files: Mapping[str, str | bytes]) -> Path:
    """Files by their paths below a folder; returns the folder."""
    for path, content in files.items():
        write_file(top / path, content)
    return top
