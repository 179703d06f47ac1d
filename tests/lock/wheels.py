"""Wheels for locks: one module that says its version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.wheels import sha256, write_wheel

__all__ = ["make_wheel", "sha256"]


def make_wheel(
    folder: Path, name: str, version: str, *, tag: str = "py3-none-any", requires: Sequence[str] = (), body: str = ""
) -> Path:
    """Write `name-version-tag.whl` with one module that says its version; returns its path."""
    files = {f"{name.replace('-', '_')}.py": f'version = "{version}"\n{body}'}
    return write_wheel(folder, name, version, files, tag=tag, requires=requires)
