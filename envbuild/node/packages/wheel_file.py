"""A wheel as a file: whether it is the package that it is named after, and holds what its own RECORD says.

Nothing of it is unpacked or run.
"""

import csv
import io
import os
import re
import stat
import zipfile
import zlib

from envbuild.node import hashing
from envbuild.node.packages import installed
from envbuild.node.protocol import Json, NodeError, log

_ALGORITHMS = ("sha256", "sha384", "sha512")
_TEXT_LIMIT = 64 << 20
_DATA = ("", "purelib", "platlib", "scripts", "headers", "data")


def check(path: str, wanted: Json) -> int:
    """Compare every member that RECORD names with its hash there; returns how many agree.

    `wanted`: `file`, `package`, `version`. A RECORD that is wrong about the wheel's own metadata is only noted: torch's
    was written before its wheels were renamed. Raises NodeError `artifact-damaged`, `record-mismatch`, `wheel-unsafe`
    (exit 5).
    """
    refuse_unsafe(path)
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if len(set(names)) != len(names):
                raise _damaged(wanted, "a member is in it twice")
            found = [name for name in names if name.count("/") == 1 and name.endswith(".dist-info/RECORD")]
            if len(found) != 1:
                raise _damaged(wanted, "it has %d RECORD files" % len(found))
            folder = found[0].rpartition("/")[0]
            _check_identity(archive, folder, wanted)
            return _check_members(archive, folder, wanted)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, NotImplementedError) as error:
        raise _damaged(wanted, "%s: %s" % (type(error).__name__, str(error)[:200])) from error


def refuse_unsafe(path: str) -> None:
    """Raise NodeError `wheel-unsafe` (exit 5) when a member of the wheel would lie elsewhere or is no plain file.

    uv drops such members silently. What is no zip file at all is left to whoever reads its contents.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = [(each.filename, _why_unsafe(each)) for each in archive.infolist()]
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return
    for name, why in found:
        if why:
            raise unsafe(os.path.basename(path), name, why)


def unsafe(wheel: str, member: str, why: str) -> "NodeError":
    """The error `wheel-unsafe` (exit 5) about a member of `wheel` (its name, or words for it)."""
    return NodeError(
        "wheel-unsafe",
        "%s holds %r, %s" % (wheel, member[:200], why),
        hint="no honest build makes such a file: do not use it, nor the index or mirror that it is from",
    )


def _why_unsafe(member: "zipfile.ZipInfo") -> str:
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


def _text(archive: "zipfile.ZipFile", name: str, wanted: Json) -> str:
    if archive.getinfo(name).file_size > _TEXT_LIMIT:
        raise _damaged(wanted, "%s is larger than %d MiB" % (name, _TEXT_LIMIT >> 20))
    return archive.read(name).decode("utf-8", "replace")


def _check_identity(archive: "zipfile.ZipFile", folder: str, wanted: Json) -> None:
    """The names in METADATA are those that the lock asked for."""
    said: dict[str, str] = {}
    for key, value in installed.headers(_text(archive, folder + "/METADATA", wanted).split("\n")):
        said.setdefault(key, value)
    name, version = said.get("name", ""), said.get("version", "")
    same = installed.normal_name(name) == installed.normal_name(wanted["package"])
    if not same or installed.normal_version(version) != installed.normal_version(wanted["version"]):
        raise NodeError(
            "record-mismatch",
            "%s says that it is %s %s" % (wanted["file"], name or "nothing", version),
            why="the lock asks for %s %s" % (wanted["package"], wanted["version"]),
            hint="do not use this index or mirror",
        )


def _check_members(archive: "zipfile.ZipFile", folder: str, wanted: Json) -> int:
    members = set(archive.namelist())
    agree, wrong = 0, []
    for row in csv.reader(io.StringIO(_text(archive, folder + "/RECORD", wanted))):
        if len(row) < 2 or not row[1] or row[0].endswith(".pyc"):
            continue
        algorithm, _, expected = row[1].partition("=")
        if row[0] not in members or algorithm not in _ALGORITHMS:
            wrong.append("%s (%s)" % (row[0], "missing" if row[0] not in members else algorithm))
        elif _digest(archive, row[0], algorithm) == expected.rstrip("="):
            agree += 1
        elif row[0].startswith(folder + "/"):
            log("%s: its own RECORD is wrong about %s" % (wanted["file"], row[0]))
        else:
            wrong.append("%s (changed)" % row[0])
    if wrong:
        raise NodeError(
            "record-mismatch",
            "%s is not what its own RECORD says: %s" % (wanted["file"], wrong[0]),
            why="%d of %d members differ" % (len(wrong), len(wrong) + agree),
            hint="it was damaged or changed on its way; fetch it again, or do not use this index or mirror",
            details={"members": wrong[:20]},
        )
    return agree


def _digest(archive: "zipfile.ZipFile", name: str, algorithm: str) -> str:
    with archive.open(name) as member:
        return hashing.for_record(hashing.digest_of_stream(member, algorithm))


def _damaged(wanted: Json, why: str) -> "NodeError":
    return NodeError("artifact-damaged", "invalid wheel %s" % wanted["file"], why=why, hint="fetch it again")
