"""The one refusal of a file without a recorded hash, and of conda packages without a record."""

from __future__ import annotations

from envbuild.errors import EnvbuildError
from envbuild.model.lock import ArtifactFile, Variant

CODE = "hash-unrecorded"


def hash_unrecorded(file: ArtifactFile, command: str) -> EnvbuildError:
    """`hash-unrecorded` (exit 5) for one file, with the reason that the lock gives; `command` records it."""
    return EnvbuildError(
        CODE,
        f"{file.file} has no recorded sha256",
        why=file.reason or "",
        hint=f"`{command}`, where its index is reached, or with `--from DIR` for a folder that has the file",
    )


def conda_unrecorded(variant: Variant) -> EnvbuildError:
    """`conda-unrecorded` (exit 5) for a variant whose conda packages are not recorded yet."""
    return EnvbuildError(
        "conda-unrecorded",
        f"the lock has no conda packages of {variant.id}",
        why=(variant.conda.unrecorded if variant.conda else None) or "",
        hint="`envbuild lock create` records them where the channel can be reached",
    )
