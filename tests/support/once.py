"""What several test processes need and one of them makes."""

from __future__ import annotations

import fcntl
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def once(path: Path, make: Callable[[Path], object]) -> Path:
    """`path`, which `make` writes when it is not there; other processes wait, and nobody sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                half = Path(folder) / path.name
                make(half)
                half.rename(path)
    return path


@functools.cache
def kept(name: str, make: Callable[[Path], str]) -> tuple[Path, str]:
    """What is made once on this machine and stays, and why it is not there, as `make` says it; empty where it is."""
    root = Path(tempfile.gettempdir()) / f"envbuild-tests-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)

    def whole(path: Path) -> None:
        if why := make(path):
            raise LookupError(why)

    try:
        return once(root / name, whole), ""
    except LookupError as error:
        return root / name, str(error)
