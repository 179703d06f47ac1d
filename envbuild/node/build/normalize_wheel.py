"""A wheel after its build: which extensions it holds; stripped, and its members in one order and of one time."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import time
import zipfile

from envbuild.node import hashing, merkle, paths, proc
from envbuild.node.protocol import Json

_TIME = time.gmtime(paths.EPOCH)[:6]
_DATA = re.compile(r"\A[^/]+\.data/(?:plat|pure)lib/")
_STRIP_DEADLINE = 300.0


def modules(wheel: str) -> dict[str, str]:
    """Import name -> member, for every shared object in a wheel."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for name in names:
        if name.endswith(".so"):
            folder, _, file = _DATA.sub("", name).rpartition("/")
            module = file.split(".")[0]
            found[folder.replace("/", ".") + "." + module if folder else module] = name
    return found


def settle(wheel: str, out: str, strip: str | None, scratch: str) -> str:
    """Write `wheel` into the folder `out` under its own name: stripped, its members sorted and dated 1980.

    `strip`: the program, None to leave symbols in. `scratch`: an existing folder. RECORD is written anew. Returns the
    path; raises OSError, zipfile.BadZipFile.
    """
    target = os.path.join(out, os.path.basename(wheel))
    temporary = target + ".new"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        names = sorted({name for name in source.namelist() if not name.endswith("/")}, key=_order)
        record = next(name for name in names if name.count("/") == 1 and name.endswith(".dist-info/RECORD"))
        objects = set(modules(wheel).values())
        rows = []
        for name in names:
            if name == record:
                continue
            data = source.read(name)
            if name in objects and strip is not None:
                data = _stripped(data, strip, scratch)
            rows.append((name, merkle.record_digest(hashlib.sha256(data).hexdigest()), str(len(data))))
            _add(archive, name, data, source.getinfo(name).external_attr >> 16)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows + [(record, "", "")])
        _add(archive, record, text.getvalue().encode("utf-8"), 0o644)
    os.rename(temporary, target)
    return target


def _order(name: str) -> tuple[bool, bool, str]:
    """The package before its metadata, RECORD last."""
    return (".dist-info/" in name, name.endswith(".dist-info/RECORD"), name)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.create_system = 3
    entry.external_attr = (0o100755 if mode & 0o111 else 0o100644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)


def _stripped(data: bytes, strip: str, scratch: str) -> bytes:
    """A shared object without the symbols that loading it does not need; as it was when `strip` refuses it."""
    path = os.path.join(scratch, "object.so")
    with open(path, "wb") as stream:
        stream.write(data)
    try:
        done = proc.run([strip, "--strip-unneeded", path], timeout=_STRIP_DEADLINE)
        if not done.ok:
            return data
        with open(path, "rb") as stream:
            return stream.read()
    finally:
        os.unlink(path)


def compare(one: str, other: str) -> Json:
    """`equal`: two wheels have the same name and bytes; `different`: members that differ or that only one has."""
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        both = set(first.namelist()) & set(second.namelist())
        found = set(first.namelist()) ^ set(second.namelist())
        found.update(name for name in both if first.read(name) != second.read(name))
    same = os.path.basename(one) == os.path.basename(other) and hashing.digest_of(one) == hashing.digest_of(other)
    return {"equal": same and not found, "different": sorted(found)}
