"""Reads bundles on this machine, through the reader of the node program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.node.bundle import archive
from envbuild.node.protocol import NodeError


@contextmanager
def coded() -> Iterator[None]:
    """Errors of the node program's own code, as they are told here."""
    try:
        yield
    except NodeError as error:
        raise EnvbuildError.from_dict(error.as_dict()) from error


def read_index(path: Path) -> dict[str, Any]:
    """What a bundle says that it holds. Raises EnvbuildError as `verify` does."""
    with coded():
        return archive.read_index(str(path))


def verify(path: Path) -> dict[str, Any]:
    """The index of a bundle every byte of which was read.

    Raises EnvbuildError `bundle-damaged`, `bundle-unsafe` (exit 5), `bundle-missing` (2).
    """
    with coded():
        return archive.verify(str(path))


def unpack(path: Path, folder: Path, digest: str | None = None) -> dict[str, Any]:
    """All files of a bundle below `folder`, each checked; its index. Raises EnvbuildError as `verify` does."""
    with coded():
        return archive.unpack(str(path), str(folder), digest)


def extract(path: Path, wanted: dict[str, Path]) -> None:
    """Files of a bundle, each checked, to where `wanted` says. Raises EnvbuildError as `verify` does."""
    with coded():
        archive.extract(str(path), {name: str(place) for name, place in wanted.items()})
