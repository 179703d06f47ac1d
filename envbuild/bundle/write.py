"""Writes a bundle file or folder, whole or not at all. Equal contents give equal bytes."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from envbuild.bundle.collect import Piece
from envbuild.bundle.reading import coded
from envbuild.errors import EnvbuildError, writing
from envbuild.node.bundle import archive, index


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
    found = {each.path: each for each in pieces}
    sources = {path: str(each.source) for path, each in found.items()}
    half = output.with_name(f".{output.name}.{secrets.token_hex(6)}.part")
    try:
        with coded(), writing(output):
            rows = [each.row() for each in found.values()]
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
