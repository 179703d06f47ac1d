"""Tiny real wheels, made without a build tool; equal arguments give equal bytes."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

Date = tuple[int, int, int, int, int, int]
# The begin of a PEP 517 backend of a few lines, which calls `write_wheel`, so that builds need no package index.
PACK = Path(__file__).read_text()


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes | str],
    *,
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
    scripts: Mapping[str, str] | None = None,
    date: Date = (2020, 1, 1, 0, 0, 0),
) -> Path:
    """Write `name-version-tag.whl` with `files` and a true RECORD. `scripts`: console script -> `module:function`."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    contents = {path: data if isinstance(data, bytes) else data.encode() for path, data in files.items()}
    contents[f"{info}/METADATA"] = metadata.encode()
    contents[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    if scripts:
        lines = "".join(f"{script} = {function}\n" for script, function in scripts.items())
        contents[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}".encode()
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in contents.items():
            entry = zipfile.ZipInfo(path, date)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return wheel


def sha256(path: Path) -> str:
    """sha256 (hex) of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def tampered(wheel: Path, member: str = "__init__.py", new: bytes = b"import os\n") -> None:
    """Change a member of a wheel, a module say, and leave its RECORD as it was."""
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, new if name.endswith(member) else data)
