"""Evidence read from a file, strictly."""

from __future__ import annotations

import errno
import json
import math
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from envbuild.errors import EnvbuildError
from envbuild.model.common import first_mistake
from envbuild.model.evidence import EVIDENCE_VERSION, Evidence
from envbuild.regular_file import read_file

DEEPEST = 64
_DIGITS = 19  # a signed 64-bit integer


def parse(data: bytes) -> Any:
    """The value of a JSON text in UTF-8. Raises ValueError with what is wrong, in words."""
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("it begins with a byte order mark")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: byte {error.start}: {error.reason}") from error
    try:
        found = json.loads(
            text, object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        end = text.rstrip()
        cut = "; it ends in the middle" if error.pos >= len(end) or not end.endswith(("}", "]")) else ""
        raise ValueError(f"it is not JSON: {error}{cut}") from error
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels") from error
    if not _is_flat(found):
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:40]!r} is there twice")
    return made


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > _DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is larger than any number")
    return value


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _is_flat(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            item
            for each in level
            if isinstance(each, (dict, list))
            for item in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return True
    return False


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

    Raises EnvbuildErrfor another schema version too.
    """
    try:
        found = parse(data)
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
        "evidence-invalid",
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
