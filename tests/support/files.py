"""Files and the folders above them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal


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


def write_tar(
    path: Path,
    files: Mapping[str, str | bytes],
    mode: Literal["w", "w:gz"] = "w",
    more: Iterable[tarfile.TarInfo] = (),
) -> Path:
    """A tar file of these files and of `more` members without contents; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for member in more:
            archive.addfile(member)
    return path
