"""Reads lock files (`record.py` writes them), and the digests of the stack file that a lock keeps."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envbuild.errors import EnvbuildError
from envbuild.model.common import mistakes
from envbuild.model.lock import LOCK_VERSION, Lock, canonical_json
from envbuild.model.stack import Profile
from envbuild.regular_file import parse_toml, read_file
from envbuild.text import unsafe_at

MAX_BYTES = 16 * 1024 * 1024
# Lists that become [[variant]], [[variant.package]], [[variant.source]] and [[variant.working_tree]].
TABLES = {"variants": "variant", "packages": "package", "sources": "source", "trees": "working_tree"}
# A table of its own, which may hold such lists: [variant.conda].
NESTED = "conda"


def read_lock(path: Path) -> Lock:
    """Read and check one lock file. Raises EnvbuildError:

    `lock-missing`, `file-unreadable`, `lock-invalid` (exit 2), and
    `lock-digest-mismatch` (exit 5) when a variant's digest does not match its contents.
    """
    try:
        text = read_file(path, MAX_BYTES).decode("utf-8")
    except FileNotFoundError as error:
        raise EnvbuildError(
            "lock-missing",
            f"there is no lock file {path}",
            hint=f"create it: `envbuild lock create STACK --output {path}`",
        ) from error
    except OSError as error:
        raise EnvbuildError("file-unreadable", f"{path} cannot be read", why=error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        why = f"byte {error.start}: {error.reason}"
        raise EnvbuildError("lock-invalid", f"{path} is not UTF-8", why=why) from error
    return parse_lock(text, str(path))


@lru_cache(maxsize=32)
def parse_lock(text: str, name: str) -> Lock:
    """The same from text; messages call it `name`. Cached by text, because one command asks several times."""
    again = "restore the file, or run `envbuild lock create STACK`"
    try:
        data = parse_toml(text)
    except (ValueError, RecursionError) as error:  # a number too long, tables too deep: not all is a TOMLDecodeError
        raise EnvbuildError("lock-invalid", f"{name} is not valid TOML", why=str(error), hint=again) from error
    version = data.get("version")
    if isinstance(version, int) and not isinstance(version, bool) and version > LOCK_VERSION:
        what = f"{name} has lock version {version}; this envbuild reads {LOCK_VERSION}"
        raise EnvbuildError("lock-invalid", what, hint="install a newer envbuild")
    bad = unsafe_at(data)
    if bad is not None:
        why = f"{bad}: control characters, invisible characters and line separators are not allowed"
        raise EnvbuildError("lock-invalid", f"{name} is not a valid lock", why=why, hint=again)
    try:
        as_json = json.dumps(_with_model_names(data), separators=(",", ":"), ensure_ascii=False)
        return Lock.model_validate_json(as_json)
    except ValidationError as error:
        problems = "; ".join(mistakes(error))
        if "the digest does not match" in problems:
            what = f"{name} was changed after it was written"
            raise EnvbuildError("lock-digest-mismatch", what, why=problems, hint=again) from error
        raise EnvbuildError("lock-invalid", f"{name} is not a valid lock", why=problems, hint=again) from error
    except (TypeError, ValueError) as error:  # dates, nan and inf, which TOML has and a lock has not
        raise EnvbuildError("lock-invalid", f"{name} is not a valid lock", why=str(error)) from error


def _with_model_names(data: dict[str, Any]) -> dict[str, Any]:
    """`[[variant]]` becomes `variants` and so on; only where tables are, never inside `environment` or `provided`."""
    long = {short: name for name, short in TABLES.items()}
    out: dict[str, Any] = {}
    for key, value in data.items():
        tables = key in long and isinstance(value, list)
        if tables:
            value = [_with_model_names(row) if isinstance(row, dict) else row for row in value]
        elif key == NESTED and isinstance(value, dict):
            value = _with_model_names(value)
        out[long.get(key, key)] = value
    return out


def field_digests(profile: Profile) -> dict[str, str]:
    """Field name to sha256 (hex) over its canonical JSON; a field equal to its default is left out, at any depth."""
    data = profile.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {name: hashlib.sha256(canonical_json(value)).hexdigest() for name, value in sorted(data.items())}
