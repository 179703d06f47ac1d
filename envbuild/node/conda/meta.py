"""What `conda-meta` says of an environment: which package each file is of, and its contents in the archive.

`tidy` gives each record a form that does not depend on the place, the time or the source of the archives.

`Placeholder` gives the bytes of a file as they are in its package: rattler wrote the prefix into it. A text names the
prefix wherever it named the placeholder; its first line may have become another where `#!` and the prefix are too long
for the kernel, or hold a space. In a binary file each string that ends with NUL keeps its place, filled up with NULs.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from envbuild.node import paths, read_text
from envbuild.node.packages import installed
from envbuild.node.protocol import Json

if TYPE_CHECKING:
    import mmap

    from envbuild.node import merkle

FOLDER = "conda-meta"
_ENTRY_POINT = "unix_python_entry_point"
_PLACE_AND_TIME = ("url", "extracted_package_dir", "package_tarball_full_path", "link", "requested_spec",
                   "requested_specs", "timestamp", "auth")  # fmt: skip
_DIST = re.compile(r"\Alib/python[^/]+/site-packages/([^/]+?)(?:-[^/]*)?\.(?:dist|egg)-info(?:/|\Z)")
_TRAMPOLINE = re.compile(rb"\A#!/bin/sh\n'''exec' \"(.+?)\"( .*?)? \"\$0\" \"\$@\" #'''\n")
_ENV = re.compile(rb"\A#!/usr/bin/env ")


def label(package: Json) -> str:
    """A package as it is named to people: name, version and build."""
    return f"{package['name']} {package['version']} {package['build']}"


def names(environment: str) -> list[str]:
    """`name-version-build` of every conda package, sorted; empty where the environment has none. Reads no file."""
    files = read_text.names(os.path.join(environment, FOLDER))
    return sorted(name[: -len(".json")] for name in files if name.endswith(".json"))


def read(environment: str) -> list[Json]:
    """The records of an environment, by file name; one that cannot be read is left out."""
    every = [paths.read_json(os.path.join(environment, FOLDER, name + ".json")) for name in names(environment)]
    return [record for record in every if isinstance(record, dict) and isinstance(record.get("name"), str)]


def lacking(environment: str, variant: Json) -> list[str]:
    """Which conda packages of `variant` the environment does not have, as `name-version-build`."""
    locked = (variant.get("conda") or {}).get("packages") or []
    return sorted({"{name}-{version}-{build}".format(**package) for package in locked} - set(names(environment)))


def _rows(record: Json) -> list[Json]:
    return list((record.get("paths_data") or {}).get("paths") or [])


def owners(environment: str) -> dict[str, str]:
    """Path -> name, version and build of its package."""
    return {row["_path"]: label(record) for record in read(environment) for row in _rows(record)}


def replaced(environment: str) -> dict[str, Placeholder]:
    """Path -> its placeholder, of every file that names the prefix, entry points among them."""
    return {
        row["_path"]: Placeholder(
            os.fsencode(row.get("prefix_placeholder") or "@environment@"),
            str(row.get("sha256") or ""),
            row.get("file_mode") != "binary",
        )
        for record in read(environment)
        for row in _rows(record)
        if row.get("prefix_placeholder") or row.get("path_type") == _ENTRY_POINT
    }


def distributions(environment: str) -> dict[str, str]:
    """Python distribution (normal name) -> the conda package that holds its metadata."""
    by_name = {}
    for path, owner in owners(environment).items():
        match = _DIST.match(path)
        if match is not None:
            by_name[installed.normal_name(match.group(1))] = owner
    return by_name


def check(environment: str, entries: dict[str, merkle.Entry]) -> tuple[int, list[Json]]:
    """Compare the files of conda packages with what is in their archives; returns as `installed.check` does.

    `entries` are of a scan that knew `replaced`, so nothing is read twice.
    """
    checked: int = 0
    wrong: list[Json] = []
    for record in read(environment):
        for row in _rows(record):
            kind = _differs(row, entries.get(row["_path"]), environment)
            checked += kind is None and bool(row.get("sha256"))
            if kind:
                file = {"package": record["name"], "version": record.get("version"), "path": row["_path"]}
                wrong.append(dict(file, kind=kind))
    return checked, wrong


def _differs(row: Json, entry: merkle.Entry | None, environment: str) -> str | None:
    if entry is None:
        present = row["_path"].endswith(".pyc") or os.path.lexists(os.path.join(environment, row["_path"]))
        return None if present else "missing"
    if not row.get("sha256") or entry.tag == "link":
        return None
    digest = entry.digest if row.get("prefix_placeholder") else entry.raw
    return None if digest == row["sha256"] else "changed"


def tidy(environment: str, channels: dict[str, str]) -> None:
    """Write every record anew; `channels`: package -> name of its channel. Byte code and copies of shared files go."""
    for stem in names(environment):
        path = os.path.join(environment, FOLDER, stem + ".json")
        record = paths.read_json(path) or {}
        record = {key: value for key, value in record.items() if key not in _PLACE_AND_TIME}
        rows = list(_tidied(_rows(record)))
        record.update(channel=channels[record["name"]], files=[row["_path"] for row in rows])
        record["paths_data"] = {"paths_version": 1, "paths": rows}
        os.unlink(path)  # rattler lets its owner alone read it
        paths.write_json(path, record)
    for name in ("__clobbers__", "CACHEDIR.TAG"):
        paths.remove_tree(os.path.join(environment, name))
    # conda takes a folder without it for no environment.
    with open(os.path.join(environment, FOLDER, "history"), "w"):
        pass
    _settle(environment)


def _tidied(rows: list[Json]) -> Iterator[Json]:
    for row in rows:
        row["_path"] = row.pop("original_path", row["_path"])
        # How long the prefix is, and what stands in files that name it, differs from place to place.
        row.pop("sha256_in_prefix", None)
        row.pop("size_in_bytes", None)
        if row.get("path_type") in (_ENTRY_POINT, "softlink"):
            row.pop("sha256", None)
        if not (row["_path"].endswith(".pyc") and "/__pycache__/" in row["_path"]):
            yield row


def _settle(environment: str) -> None:
    """As in a virtual environment: no byte code, which was made elsewhere, and modes as the umask has them."""
    mask = paths.umask()
    for folder, names, files in os.walk(environment):
        if "__pycache__" in names:
            names.remove("__pycache__")
            paths.remove_tree(os.path.join(folder, "__pycache__"))
        for name in files:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            wanted = (0o777 if mode & stat.S_IXUSR else 0o666) & ~mask
            if stat.S_ISREG(mode) and stat.S_IMODE(mode) != wanted:
                os.chmod(path, wanted)


class Placeholder(NamedTuple):
    """What a package says of one file: the `prefix` that stands in the archive, and the file's `sha256` there.

    `text`: it is replaced as in a text, else as in a binary file. `sha256` is empty for what rattler wrote.
    """

    prefix: bytes
    sha256: str
    text: bool

    def digest(self, data: bytes | mmap.mmap, root: bytes) -> str:
        """sha256 (hex) of `data`, the contents of an installed file under `root`, with the placeholder in its place.

        It is `sha256` where nothing else was changed.
        """
        if not self.text:
            return _sha256(_binary(data, root, self.prefix))
        digest = _sha256([_text(data[:], root, self.prefix)])
        if digest != self.sha256 and _ENV.match(data):
            program = b"#!" + self.prefix + b"/bin/"
            digest = _sha256([_text(_ENV.sub(lambda _: program, data[:]), root, self.prefix)])
        return digest


def _sha256(pieces: Iterator[bytes] | list[bytes]) -> str:
    total = hashlib.sha256()
    for piece in pieces:
        total.update(piece)
    return total.hexdigest()


def _text(data: bytes, root: bytes, prefix: bytes) -> bytes:
    match = _TRAMPOLINE.match(data)
    if match is not None:
        data = b"#!" + match.group(1) + (match.group(2) or b"") + b"\n" + data[match.end() :]
    return data.replace(root, prefix)


def _binary(data: bytes | mmap.mmap, root: bytes, prefix: bytes) -> Iterator[bytes]:
    done = 0
    while True:
        start = data.find(root, done)
        if start < 0:
            break
        end = data.find(b"\0", start)
        end = len(data) if end < 0 else end
        string = data[start:end]
        yield data[done:start]
        yield string.replace(root, prefix)
        done = end + string.count(root) * (len(prefix) - len(root))
        yield data[end:done].strip(b"\0")  # empty where nothing was changed
    yield data[done:]
