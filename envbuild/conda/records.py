"""One record of a channel's repodata as a lock has it; a record that does not fit its own file name is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pydantic import ValidationError

from envbuild.errors import EnvbuildError
from envbuild.model.common import mistakes
from envbuild.model.conda import CondaPackage

if TYPE_CHECKING:
    from rattler import RepoDataRecord

VIRTUAL = "__"


def package_of(record: RepoDataRecord, channel: str, subdir: str) -> CondaPackage:
    """The record as a lock has it. Raises EnvbuildError `conda-record-invalid`, `hash-unrecorded` (exit 5)."""
    file = record.file_name
    if record.sha256 is None:
        raise EnvbuildError(
            "hash-unrecorded",
            f"{file} has no recorded sha256",
            why=f"the repodata of {channel} states none",
            hint="index the channel again: `rattler-index` and `conda index` write sha256",
        )
    if record.subdir not in (subdir, "noarch"):
        raise _invalid(file, channel, f"it is for {record.subdir}, and {subdir} was asked for")
    try:
        return CondaPackage.from_plain(
            {
                "name": record.name.normalized,
                "version": str(record.version),
                "build": str(record.build),
                "channel": channel,
                "subdir": record.subdir,
                "file": file,
                "sha256": record.sha256.hex(),
                "size": record.size,
                "requires": sorted(text for text in record.depends if text.startswith(VIRTUAL)),
            }
        )
    except ValidationError as error:
        raise _invalid(file, channel, "; ".join(mistakes(error))) from error


def _invalid(file: str, channel: str, why: str) -> EnvbuildError:
    return EnvbuildError(
        "conda-record-invalid",
        f"the repodata of {channel} has an invalid record of {file}",
        why=why,
        hint="tell who keeps the channel, or take another one; nothing of it was used",
    )


def from_the_future(record: RepoDataRecord) -> str | None:
    """A sentence for a record that says it was made after today."""
    made = record.timestamp
    if not isinstance(made, datetime) or made < datetime.now(UTC) + timedelta(days=1):
        return None
    return f"{record.file_name} says it was made on {made.date()}, after today: `as_of` cannot be held against it"
