"""Bundle files and folders: read through the reader of the node program, written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from envbuild.bundle.collect import Piece
from envbuild.errors import EnvbuildError, writing
from envbuild.node.bundle import archive, index
from envbuild.node.protocol import NodeError


@contextmanager
def coded() -> Iterator[None]:
    """Turns errors of the node program's code into errors of this machine."""
    try:
        yield
    except NodeError as error:
        raise EnvbuildError.from_dict(error.as_dict()) from error


def read_index(path: Path) -> dict[str, Any]:
    """The index of a bundle, without reading its files. Raises EnvbuildError as `verify` does."""
    with coded():
        return archive.read_index(str(path))


def verify(path: Path) -> dict[str, Any]:
    """The index of a bundle, after reading every byte of it.

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


class Contents(NamedTuple):
    """What a bundle says of itself beside its files: machines as `uname -m` has them, labels of variants."""

    stack: str
    profile: str
    machines: tuple[str, ...]
    variants: tuple[str, ...]


def write_bundle(output: Path, contents: Contents, pieces: Iterable[Piece]) -> dict[str, Any]:
    """Write the bundle `output`: a tar file where its name ends in `.tar`, else a folder; returns its index.

    Raises EnvbuildError `output-exists`, `output-unwritable` (exit 2), `hash-mismatch`, `bundle-unsafe` (5).
    """
    if os.path.lexists(output):
        raise EnvbuildError("output-exists", f"{output} is there", hint="remove it, or name another with --output")
    by_path = {piece.path: piece for piece in pieces}
    sources = {path: str(item.source) for path, item in by_path.items()}
    half = output.with_name(f".{output.name}.{secrets.token_hex(6)}.part")
    try:
        with coded(), writing(output):
            rows = [item.row() for item in by_path.values()]
            made = index.make(contents.stack, contents.profile, [*contents.machines], [*contents.variants], rows)
            if output.suffix == ".tar":
                with half.open("xb") as out:
                    archive.to_tar(out, made, sources)
            else:
                archive.to_folder(str(half), made, sources)
            half.rename(output)
    finally:
        if half.is_dir():
            shutil.rmtree(half)
        half.unlink(missing_ok=True)
    return made
