"""Evidence read from a file, strictly."""

from __future__ import annotations

import errno
from pathlib import Path

from pydantic import ValidationError

from envbuild.errors import EnvbuildError
from envbuild.model.common import first_mistake
from envbuild.model.evidence import EVIDENCE_VERSION, Evidence
from envbuild.regular_file import read_file
from envbuild.report import strict_json

LIMIT = 64 * 1024 * 1024


def read_bytes(path: Path) -> bytes:
    """A regular file of at most 64 MiB. Raises EnvbuildError `evidence-missing`, `evidence-invalid`."""
    try:
        return read_file(path, LIMIT)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise _invalid(path, f"it is larger than {LIMIT:,} bytes") from error
        raise EnvbuildError(
            "evidence-missing",
            f"cannot read {path}",
            why=str(error),
            hint="give a run (`envbuild run list` names them), its evidence.json, or its report.html",
        ) from error


def read_evidence(data: bytes, path: Path) -> Evidence:
    """Evidence from the bytes of a file; `path` is what messages call it.

    Raises EnvbuildError `evidence-invalid`, or `evidence-version` for another schema version.
    """
    try:
        found = strict_json.parse(data)
    except ValueError as error:
        raise _invalid(path, str(error)) from error
    if not isinstance(found, dict):
        raise _invalid(path, "it is not a JSON object")
    _check_version(path, found.get("schema_version"))
    try:
        return Evidence.from_plain(found)
    except ValidationError as error:
        raise _invalid(path, f"{first_mistake(error)} (and {error.error_count() - 1} more)") from error


def _invalid(path: Path, why: str) -> EnvbuildError:
    return EnvbuildError(
        "evidence-invalid", f"{path} is not evidence", why=why, hint="give the evidence.json of a run directory"
    )


def _check_version(path: Path, version: object) -> None:
    if version == EVIDENCE_VERSION:
        return
    raise EnvbuildError(
        "evidence-version",
        f"{path} has evidence schema {str(version)[:40]!r}",
        why=_why(version),
        hint="use the envbuild version that wrote it (the field `envbuild` says which)",
    )


def _why(version: object) -> str:
    major, _, _ = str(version).partition(".")
    own = EVIDENCE_VERSION.partition(".")[0]
    if major.isdigit() and len(major) < 6 and int(major) > int(own):
        return (
            f"a newer envbuild wrote it: this one reads schema {EVIDENCE_VERSION}, and a new major number means other"
        )
    return f"this envbuild reads schema {EVIDENCE_VERSION}; another number may mean something else"
