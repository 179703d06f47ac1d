"""Writes lock files: TOML for people, the same bytes every time, written atomically."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomlkit

from envbuild.errors import writing
from envbuild.lock.files import NESTED, TABLES
from envbuild.model.lock import Lock
from envbuild.node import paths

HEADER = (
    "A lock of envbuild: exact contents and their sha256, no addresses.",
    "Written by `envbuild lock create`; the digests make an edit by hand an error.",
)
_NAMED = ("created_with", "data", "manifest_fields", "environment", "provided")
# Sub-tables come last: a plain key after one would belong to it.
_LAST = (*_NAMED, NESTED, *TABLES)


def render_lock(lock: Lock) -> str:
    """The text of a lock file: fields in the order of the model, names sorted, no empty fields."""
    document = tomlkit.document()
    for line in HEADER:
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    return tomlkit.dumps(_filled(document, lock.to_json_dict()))


def _filled(table: Any, data: dict[str, Any]) -> Any:
    for key in [key for key in data if key not in _LAST] + [key for key in _LAST if key in data]:
        value = data[key]
        # That a scan found nothing is not that nobody looked.
        if value in ({}, []) and key != "uses":
            continue
        if key in TABLES:
            rows = tomlkit.aot()
            for item in value:
                rows.append(_filled(tomlkit.table(), item))
            table.add(TABLES[key], rows)
        elif key == NESTED:
            table.add(key, _filled(tomlkit.table(), value))
        elif key in _NAMED:
            names = tomlkit.table()
            for name in sorted(value):
                names.add(name, _plain(value[name]))
            table.add(key, names)
        else:
            table.add(key, _plain(value))
    return table


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        inline = tomlkit.inline_table()
        for key, item in value.items():
            if item not in ({}, []):
                inline.append(key, _plain(item))
        return inline
    if isinstance(value, list):
        array = tomlkit.array()
        array.extend(_plain(item) for item in value)
        return array.multiline(bool(value) and isinstance(value[0], dict))
    return value


def write_lock(path: Path, lock: Lock) -> None:
    """Write a lock file, whole or not at all. Raises EnvbuildError `output-unwritable` (exit 2)."""
    with writing(path):
        paths.write_whole(str(path), render_lock(lock).encode())
