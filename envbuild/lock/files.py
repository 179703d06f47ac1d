"""Reads and writes lock files: TOML for people, the same bytes every time, written atomically."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from envbuild.errors import EnvbuildError
from envbuild.model.lock import LOCK_VERSION, Lock, canonical_json
from envbuild.model.stack import Profile
from envbuild.node import paths
from envbuild.regular_file import read_file
from envbuild.text import unsafe_at

if TYPE_CHECKING:
    from tomlkit.items import InlineTable, Table

MAX_BYTES = 16 * 1024 * 1024
HEADER = (
    "A lock of envbuild: exact contents and their sha256, no addresses.",
    "Written by `envbuild lock create`; the digests make an edit by hand an error.",
)
# Lists that become [[variant]], [[variant.package]], [[variant.source]] and [[variant.working_tree]].
_TABLES = {"variants": "variant", "packages": "package", "sources": "source", "trees": "working_tree"}
# A table of its own, which may hold such lists: [variant.conda].
_NESTED = "conda"
_NAMED = ("created_with", "manifest_fields", "environment", "provided")


def read_lock(path: Path) -> Lock:
    """Read and check one lock file. Raises EnvbuildError:

    `lock-missing`, `file-unreadable`, `lock-invalid` (exit 2), and
    `lock-digest-mismatch` (exit 5) when a variant's digest does not match its contents.
    """
    return parse_lock(lock_text(path), str(path))


@lru_cache(maxsize=4)
def parse_lock(text: str, name: str) -> Lock:
    """The same from text; `name` is what messages call it. Once a text: one command asks several times."""
    return _validated(_lock_json(text, name), name)


def _lock_json(text: str, name: str) -> str:
    """The JSON that the model reads. Raises EnvbuildError `lock-invalid` (exit 2)."""
    import tomli

    try:
        data = tomli.loads(text)  # tomllib, compiled: a lock has up to 3,000 lines
    except (ValueError, RecursionError) as error:  # a number too long, tables too deep: not all is a TOMLDecodeError
        raise EnvbuildError(
            "lock-invalid", f"{name} is not valid TOML", why=str(error), hint="restore the file, or create it again"
        ) from error
    _check_version(data, name)
    bad = unsafe_at(data)
    if bad is not None:
        why = f"{bad}: control characters, invisible characters and line separators are not allowed"
        raise EnvbuildError("lock-invalid", f"{name} is not a valid lock", why=why, hint="create it again")
    try:
        return json.dumps(_with_model_names(data), separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError) as error:  # dates, nan and inf, which TOML has and a lock has not
        raise EnvbuildError("lock-invalid", f"{name} is not a valid lock", why=str(error)) from error


def lock_text(path: Path) -> str:
    """The text of a lock file. Raises EnvbuildError `lock-missing`, `file-unreadable`, `lock-invalid` (exit 2)."""
    try:
        return read_file(path, MAX_BYTES).decode("utf-8")
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


def _check_version(data: dict[str, Any], name: str) -> None:
    version = data.get("version")
    if isinstance(version, int) and not isinstance(version, bool) and version > LOCK_VERSION:
        raise EnvbuildError(
            "lock-invalid",
            f"{name} has lock version {version}; this envbuild reads {LOCK_VERSION}",
            hint="install a newer envbuild",
        )


def _with_model_names(data: dict[str, Any]) -> dict[str, Any]:
    """`[[variant]]` becomes `variants` and so on; only where tables are, never inside `environment` or `provided`."""
    long = {short: name for name, short in _TABLES.items()}
    out: dict[str, Any] = {}
    for key, value in data.items():
        tables = key in long and isinstance(value, list)
        if tables:
            value = [_with_model_names(row) if isinstance(row, dict) else row for row in value]
        elif key == _NESTED and isinstance(value, dict):
            value = _with_model_names(value)
        out[long.get(key, key)] = value
    return out


def _validated(as_json: str | bytes, name: str) -> Lock:
    try:
        return Lock.model_validate_json(as_json)
    except ValidationError as error:
        problems = [f"{'.'.join(str(part) for part in e['loc']) or 'lock'}: {e['msg']}" for e in error.errors()]
        if any("the digest does not match" in problem for problem in problems):
            raise EnvbuildError(
                "lock-digest-mismatch",
                f"{name} was changed after it was written",
                why="; ".join(problems),
                hint="restore the file, or create it again with `envbuild lock create`",
            ) from error
        raise EnvbuildError(
            "lock-invalid",
            f"{name} is not a valid lock",
            why="; ".join(problems),
            hint="restore the file, or create it again with `envbuild lock create`",
        ) from error


def render_lock(lock: Lock) -> str:
    """The text of a lock file: fields in the order of the model, names sorted, no empty fields."""
    import tomlkit

    document = tomlkit.document()
    for line in HEADER:
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    _fill(document, lock.to_json_dict())
    return tomlkit.dumps(document)


def _fill(table: Any, data: dict[str, Any]) -> None:
    # Sub-tables come last: a plain key after one would belong to it.
    last = (*_NAMED, _NESTED, *_TABLES)
    ordered = [key for key in data if key not in last] + [key for key in last if key in data]
    for key in ordered:
        value = data[key]
        # That a scan found nothing is not that nobody looked.
        if value in ({}, []) and key != "uses":
            continue
        if key in _TABLES:
            import tomlkit

            tables = tomlkit.aot()
            for item in value:
                tables.append(_table(item))
            table.add(_TABLES[key], tables)
        elif key == _NESTED:
            table.add(key, _table(value))
        else:
            table.add(key, _named(value) if key in _NAMED else _value(value))


def _table(data: dict[str, Any]) -> Table:
    import tomlkit

    table = tomlkit.table()
    _fill(table, data)
    return table


def _named(data: dict[str, Any]) -> Table:
    import tomlkit

    table = tomlkit.table()
    for key in sorted(data):
        table.add(key, _value(data[key]))
    return table


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return _inline(value)
    if isinstance(value, list):
        import tomlkit

        array = tomlkit.array()
        array.extend(_value(item) for item in value)
        if value and isinstance(value[0], dict):
            array.multiline(True)
        return array
    return value


def _inline(data: dict[str, Any]) -> InlineTable:
    import tomlkit

    table = tomlkit.inline_table()
    for key, value in data.items():
        if value not in ({}, []):
            table.append(key, _value(value))
    return table


def write_lock(path: Path, lock: Lock) -> None:
    """Write a lock file, whole or not at all. Raises EnvbuildError `output-unwritable` (exit 2)."""
    try:
        paths.write_whole(str(path), render_lock(lock).encode())
    except OSError as error:
        why = error.strerror or str(error)
        raise EnvbuildError("output-unwritable", f"{path} cannot be written", why=why) from error


def field_digests(profile: Profile) -> dict[str, str]:
    """Field name to sha256 (hex) over its canonical JSON; a field equal to its default is left out, at any depth."""
    data = profile.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {name: hashlib.sha256(canonical_json(value)).hexdigest() for name, value in sorted(data.items())}
