"""Wheels of nothing but a name and a version, for what something else installs: the resolver counts with them."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

from packaging.version import InvalidVersion, Version


def versions(there: Mapping[str, str], by: str) -> dict[str, str]:
    """The versions of stand-ins, which no index has: `1.26.4+conda`. What is no version of Python's has none."""
    found = {}
    for name, text in there.items():
        try:
            found[name] = f"{Version(text).public}+{by}"
        except InvalidVersion:
            continue
    return found


def write(folder: Path, wanted: Mapping[str, str]) -> None:
    """One wheel a name, which needs nothing."""
    folder.mkdir()
    for name, version in wanted.items():
        stem = f"{name.replace('-', '_')}-{version}"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            about = f"{stem}.dist-info"
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
