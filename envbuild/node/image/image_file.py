"""The file of an image (.sif, .sqsh): made under another name, its hash beside it, used only while it has that."""

from __future__ import annotations

import os
from collections.abc import Callable

from envbuild.node import hashing, paths
from envbuild.node.protocol import Json, log
from envbuild.node.read_text import read


def made(path: str, make: Callable[[str], None], recorded: str | None = None, force: bool = False) -> Json:
    """The file at `path` as `path`, `bytes` and `sha256`; `make(other path)` makes it where it is not there and whole.

    `recorded`: its sha256 where it is known from elsewhere. The hash beside it is read by `sha256sum -c` too.
    """
    digest = None if force else _whole(path, recorded)
    if digest is None:
        half = path + ".half"
        _forget(half)  # of a run that was killed
        try:
            make(half)
            digest = hashing.digest_if_readable(half)
            # First: a kill in between leaves a file that is made again.
            paths.write_atomic(path + ".sha256", (f"{digest}  {path}\n").encode("utf-8"))
            os.replace(half, path)
        finally:
            _forget(half)
    return {"path": path, "bytes": os.stat(path).st_size, "sha256": digest}


def _whole(path: str, recorded: str | None) -> str | None:
    """The sha256 of a file that is there and is the one that was made; else None, and the log says why."""
    if not os.path.exists(path):
        return None
    wanted = read(path + ".sha256", 4096).split(" ")[0] or recorded
    found = hashing.digest_if_readable(path)
    if found is not None and found == wanted:
        return found
    expected = f"expected {wanted:.12}" if wanted else "none was recorded"
    log(f"{path} is made again: its sha256 is {found or 'unreadable':.12}, {expected}")
    return None


def _forget(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)
