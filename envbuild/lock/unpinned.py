"""The one refusal of a file whose hash nobody has recorded."""

from __future__ import annotations

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.lock import ArtifactFile

CODE = "hash-unrecorded"


def hash_unrecorded(file: ArtifactFile) -> EnvbuildError:
    """`hash-unrecorded` (exit 5) for one file, with the reason that the lock gives."""
    return EnvbuildError(
        CODE,
        f"{file.file} has no recorded sha256",
        why=file.reason or "",
        hint="`envbuild provision --trust-first-use` takes it once as it is and records its sha256; or create the lock "
        "again where its index can be reached",
        exit_code=ExitCode.INTEGRITY,
    )
