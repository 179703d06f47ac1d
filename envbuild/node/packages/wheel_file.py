"""A wheel as a file: whether its members would lie where they belong. Nothing of it is unpacked or run."""

from __future__ import annotations

import os
import re
import stat
import zipfile

from envbuild.node.protocol import NodeError

_DATA = ("", "purelib", "platlib", "scripts", "headers", "data")


def refuse_unsafe(path: str) -> None:
    """Raise NodeError `wheel-unsafe` (exit 5) when a member of the wheel would lie elsewhere or is no plain file.

    uv drops such members silently. What is no zip file at all is left to whoever reads its contents.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [(member.filename, _why_unsafe(member)) for member in archive.infolist()]
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return
    for name, why in members:
        if why:
            raise unsafe(os.path.basename(path), name, why)


def unsafe(wheel: str, member: str, why: str) -> NodeError:
    """The error `wheel-unsafe` (exit 5) about a member of `wheel` (its name, or words for it)."""
    return NodeError(
        "wheel-unsafe",
        f"{wheel} holds {member[:200]!r}, {why}",
        hint="do not use this file or its index or mirror: the file looks like an attack",
    )


def _why_unsafe(member: zipfile.ZipInfo) -> str:
    """What is wrong with a member; empty when nothing is."""
    # `orig_filename` is as written: ZipInfo cuts a name at NUL.
    name = member.orig_filename
    parts = name.split("/")
    if name.startswith("/") or "\\" in name or "\0" in name or re.match(r"[A-Za-z]:", name):
        return "which is not a relative path"
    if ".." in parts:
        return "which leads out of its folder"
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "which is a link or a device"
    if parts[0].endswith(".data") and len(parts) > 1 and parts[1] not in _DATA:
        return "which belongs to no scheme of a wheel"
    return ""
