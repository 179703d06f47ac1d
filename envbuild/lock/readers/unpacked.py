"""What a wheel or a source tree takes on a disk, read from its own listing: nothing is unpacked, nothing is kept."""

from __future__ import annotations

import io
import os
import zipfile
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from envbuild.lock.readers.git import fetched
from envbuild.model.lock import LockedSource, LockedSubmodule
from envbuild.model.unpacked import Unpacked
from envbuild.node import pip_config
from envbuild.node.packages import index_client
from envbuild.node.protocol import NodeError

# The listing is the end of a wheel: that of most lies in the first length, that of torch (12,248 files) in the second.
_TAILS = (1 << 16, 1 << 22, 1 << 26)


def of_wheel(url: str) -> Unpacked | None:
    """What a wheel takes at an http(s) or file URL; None where it cannot be asked, for a lock without it is as good."""
    parts = urlsplit(url)
    if not parts.path.endswith(".whl"):
        return None
    try:
        if parts.scheme == "file":
            return _listed(Path(unquote(parts.path)))
        return _remote(url) if parts.scheme in ("http", "https") else None
    except (NodeError, OSError, ValueError, zipfile.BadZipFile, NotImplementedError):  # the last: of zipfile
        return None


def _remote(url: str) -> Unpacked | None:
    for length in _TAILS:
        tail = index_client.tail(url, length, _certificates(), timeout=10)
        if tail is None:
            return None
        try:
            return _listed(io.BytesIO(tail))
        except zipfile.BadZipFile:
            continue
    return None


@cache
def _certificates() -> str:
    return pip_config.read(os.environ).cert


def _listed(wheel: Path | io.BytesIO) -> Unpacked:
    with zipfile.ZipFile(wheel) as archive:
        return Unpacked.of({member.filename: member.file_size for member in archive.infolist() if not member.is_dir()})


def of_source(source: LockedSource) -> Unpacked:
    """What the tree of a source takes with those of its submodules. Raises as `fetched` does, and `git-failed`."""
    sizes: dict[str, int] = {}
    parts: dict[str, LockedSource | LockedSubmodule] = {"": source}
    parts.update({f"{part.path}/": part for part in source.submodules})
    for place, part in parts.items():
        with fetched(part.git, part.commit, files=True) as repository:
            listing = repository.git("ls-tree", "-r", "-l", "-z", "--full-tree", part.commit)
        for line in filter(None, listing.split("\0")):
            head, path = line.split("\t", 1)
            mode, _, _, size = head.split()
            if mode != "160000":  # a submodule is listed on its own; a link lies in its inode
                sizes[place + path] = int(size) if mode.startswith("100") else 0
    return Unpacked.of(sizes)
