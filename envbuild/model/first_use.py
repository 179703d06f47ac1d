"""A file whose hash is missing from the lock, as it was when this user first used it."""

from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field

from envbuild.model.common import Level, Name, PackageName, Public, Sha256, StrictModel, Text
from envbuild.model.lock import ArtifactFile, LockedPackage, Variant

WITNESS = "first use on "


class FirstUse(StrictModel):
    """What was seen: file, sha256 (hex) and size in bytes, of which package, from which index (its *name*), when.

    `found` says in words where it came from (`the index pytorch-cpu`, `a find-links folder`), `first_used` is RFC 3339
    in UTC, `run` the id of the run.
    """

    file: Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]*$")]
    sha256: Sha256
    size: Annotated[int, Field(ge=0)]
    package: PackageName
    version: Text
    index: Name
    found: Text
    first_used: Annotated[Text, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z$")]
    run: Text

    @property
    def witness(self) -> str:
        """What a lock says of the hash: `first use on 2026-11-21 by this user`."""
        return f"{WITNESS}{self.first_used[:10]} by this user"


class TrustedFile(StrictModel):
    """A file of an environment whose hash rests on a first use alone; `witness` says whose and of which day."""

    file: Public[str]
    sha256: Public[str]
    index: Public[str]
    witness: str
    size: Public[int | None] = None
    level: Public[Level] = "trusted"


def is_trusted(file: ArtifactFile) -> bool:
    """True when nobody but a first user vouches for the hash."""
    return file.witness is not None and file.witness.startswith(WITNESS)


@lru_cache
def trusted_files(variant: Variant | None) -> tuple[TrustedFile, ...]:
    """The files of a variant whose hashes rest on a first use."""
    return tuple(
        TrustedFile(file=file.file, sha256=file.sha256, index=package.index, witness=file.witness or "", size=file.size)
        for package in (variant.packages if variant else ())
        for file in package.files
        if is_trusted(file)
    )


def fetch_row(package: LockedPackage, file: ArtifactFile) -> dict[str, Any]:
    """The file as the verb `fetch` is asked for it."""
    return {"package": package.name, "version": package.version, "index": package.index, "file": file.file}


def fill_package(package: LockedPackage, uses: dict[str, FirstUse]) -> LockedPackage:
    """The package with the hashes of first uses where the lock has none."""
    if not any(file.sha256 == "unrecorded" and file.file in uses for file in package.files):
        return package
    files = tuple(_filled(file, uses.get(file.file)) for file in package.files)
    return package.model_copy(update={"files": files})


def _filled(file: ArtifactFile, use: FirstUse | None) -> ArtifactFile:
    if use is None or file.sha256 != "unrecorded":
        return file
    known = {"sha256": use.sha256, "size": use.size, "witness": use.witness, "reason": None}
    return file.model_copy(update=known)
