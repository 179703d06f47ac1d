"""A bundle as a tar file or a folder: written, read as a whole, or put into a folder. Nothing of it is executed.

It has its index first, then every file. Who lists a file has hashed it. The index is `bundle.json`, in one form only:
what the bundle is for, and every file of it by path, sha256 and bytes.

`version`, `stack`, `profile`, `machines` (as `uname -m` says it), `variants` (labels), `files`, and `digest`: sha256
over all that, by which the bundle is known. A file has `path`, `sha256`, `bytes`, `what`; a built wheel also `key`
(its build key) and `source`. The path says what a file is:

    wheels/FILE                       `wheel`: a locked package, as a wheel or as its source archive
    built/KEY/FILE.whl, build.json    `built wheel`: an entry of a wheel store
    sources/FILE.bundle               `source`: a git bundle with the commit and its tree, no history
    conda/CHANNEL/SUBDIR/FILE         `conda package`
    tools/FILE                        `tool`: uv as a wheel
    tools/HEX-FILE.tar.gz             `interpreter`: a standalone Python
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from envbuild.node import hashing, paths
from envbuild.node.bundle import plain_tar
from envbuild.node.protocol import Json, NodeError, has_fields
from envbuild.node.read_text import opened

if TYPE_CHECKING:
    from pathlib import Path

    Member = tuple[str, int, Iterator[bytes]]
    Place = str | Path

NAME = "bundle.json"
VERSION = 1
LARGEST_INDEX = 64 * 1024 * 1024
MOST_FILES = 100_000
LARGEST = 64 << 30
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,254}"
_FORMS = {
    "wheel": r"wheels/" + _PART,
    "built wheel": r"built/[0-9a-f]{64}/" + _PART,
    "source": r"sources/" + _PART + r"\.bundle",
    "conda package": r"conda(/" + _PART + r"){3}",
    "tool": r"tools/" + _PART,
    "interpreter": r"tools/" + _PART,
}
LIMITS = plain_tar.Limits(
    re.compile("%s(/%s){0,3}" % (_PART, _PART)),
    MOST_FILES + 1,
    lambda name: LARGEST_INDEX if name == NAME else LARGEST,
    MOST_FILES * LARGEST,
    exact=True,
)


def read_index(path: Place) -> Json:
    """The index of a bundle, whose other files are not read. Raises NodeError as `verify` does."""
    with _opened(path) as listed:
        return _first(path, listed)


def verify(path: Place, folder: str = "", digest: str | None = None) -> Json:
    """Read every byte of a bundle, written below `folder` where there is one; its index.

    `digest`: only the bundle of this digest. Raises NodeError `bundle-damaged`, `bundle-unsafe` (exit 5),
    `bundle-missing` (2).
    """
    with _opened(path) as listed:
        index = _first(path, listed)
        if digest is not None and index["digest"] != digest:
            raise damaged(path, f"it is another bundle: {index['digest']:.12}, not {digest:.12}")
        expected = iter(index["files"])
        for name, size, parts in listed:
            file = next(expected, None)
            if file is None or file["path"] != name:
                raise damaged(path, f"{name} is there, and its index does not list it here")
            place = os.path.join(folder, name) if folder else os.devnull
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "xb" if folder else "wb") as out:
                _check(path, file, name, size, parts, out)
            if folder:
                os.chmod(place, 0o644)  # noqa: S103 - wheels are read by whoever may read the prefix
        missing = next(expected, None)
        if missing is not None:
            raise damaged(path, f"its index lists {missing['path']}, which is not there")
        return index


def unpack(path: Place, folder: Place, digest: str | None = None) -> Json:
    """Put all files of a bundle below `folder`, once every byte was checked; its index.

    Nothing of a bad bundle gets a place there. `digest` as for `verify`. Raises NodeError as `verify`, and `disk-full`
    (exit 75).
    """
    os.makedirs(folder, exist_ok=True)
    staging = tempfile.mkdtemp(prefix=".bundle-", dir=folder)
    try:
        with paths.coded_errors(str(folder)):
            index = verify(path, staging, digest)
            for file in index["files"]:
                place = os.path.join(folder, file["path"])
                os.makedirs(os.path.dirname(place), exist_ok=True)
                os.replace(os.path.join(staging, file["path"]), place)
        return index
    finally:
        paths.remove_tree(staging)


def extract(path: Place, wanted: Mapping[str, Place]) -> None:
    """Write files of a bundle, by their paths in it, to where `wanted` says, each checked first; raises as `unpack`."""
    with _opened(path) as listed:
        rows = {file["path"]: file for file in _first(path, listed)["files"]}
        for name, size, parts in listed:
            if name not in wanted:
                continue
            half = f"{wanted[name]}.part"
            try:
                with open(half, "xb") as out:
                    _check(path, rows.get(name), name, size, parts, out)
                os.replace(half, wanted[name])
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(half)


def _check(path: Place, file: Json | None, name: str, size: int, parts: Iterator[bytes], out: IO[bytes]) -> None:
    if file is None or size != file["bytes"]:
        raise damaged(path, f"{name} has {size} bytes, its index says otherwise")
    digest, _ = hashing.write(parts, out)
    if digest != file["sha256"]:
        raise damaged(path, f"{name} has sha256 {digest:.12}, not {file['sha256']:.12}")


def _first(path: Place, listed: Iterator[Member]) -> Json:
    """The index, which comes first."""
    name, _size, parts = next(listed, ("", 0, iter(())))
    if name != NAME:
        raise damaged(path, f"it does not begin with {NAME}")
    return parse_index(b"".join(parts), path)


@contextlib.contextmanager
def _opened(path: Place) -> Iterator[Iterator[Member]]:
    """The members of a bundle, its index first; what is hostile in it becomes a NodeError."""
    try:
        if os.path.isdir(path):
            yield _folder(path)
            return
        with _file(path) as stream:
            yield plain_tar.members(stream, LIMITS)
    except plain_tar.HostileError as error:
        name = ascii(error.name)[1:-1][:200]
        why = f"{name}: {error.why}" if name else error.why
        make = damaged if error.kind == "damaged" else unsafe
        raise make(path, why) from None


def _folder(top: Place) -> Iterator[Member]:
    """The files of a folder in the order of a bundle's tar file."""
    sizes = plain_tar.tree(top, LIMITS)
    for name in sorted(sizes, key=lambda path: (path != NAME, path)):
        with _file(os.path.join(top, name), follow=False) as stream:
            yield name, sizes[name], hashing.blocks(stream)


@contextlib.contextmanager
def _file(path: Place, follow: bool = True) -> Iterator[IO[bytes]]:
    """A regular file, never waited for. Raises NodeError `bundle-missing` (exit 2)."""
    try:
        stream = opened(path, follow)
    except OSError as error:
        raise NodeError(
            "bundle-missing",
            f"cannot read the bundle {path}",
            why=error.strerror or str(error),
            hint="give the file or the folder that `envbuild bundle create STACK -o FILE` wrote",
        ) from None
    with stream:
        yield stream


def to_tar(out: IO[bytes], index: Json, sources: Mapping[str, Place]) -> None:
    """Write the bundle of `index` as a tar file; `sources` are its files, by their paths in it.

    Raises OSError, and NodeError `hash-mismatch` (exit 5) for a file that changes meanwhile.
    """
    data = encode_index(index)
    plain_tar.write(out, NAME, len(data), [data])
    for row in index["files"]:
        plain_tar.write(out, row["path"], row["bytes"], _parts(sources[row["path"]], row))
    out.write(plain_tar.END)


def to_folder(folder: Place, index: Json, sources: Mapping[str, Place]) -> None:
    """The same as the new folder `folder`."""
    os.mkdir(folder)
    for row in index["files"]:
        place = os.path.join(folder, row["path"])
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "xb") as out:
            out.writelines(_parts(sources[row["path"]], row))
    with open(os.path.join(folder, NAME), "xb") as out:
        out.write(encode_index(index))


def _parts(source: Place, row: Json) -> Iterator[bytes]:
    """The contents of a file that goes into a bundle as the row of its index says."""
    with open(source, "rb", buffering=0) as stream:
        before, left = os.fstat(stream.fileno()), row["bytes"]
        while left:
            part = stream.read(min(left, plain_tar.CHUNK))
            if not part:
                break
            left -= len(part)
            yield part
        after = os.fstat(stream.fileno())
    if left or after.st_size != row["bytes"] or after.st_mtime_ns != before.st_mtime_ns:
        raise NodeError(
            "hash-mismatch",
            f"{source} changed while it was read",
            why="it has %d bytes, %d were expected" % (after.st_size, row["bytes"]),
            hint="run the same command again",
        )


def make_index(stack: str, profile: str, machines: list[str], variants: list[str], files: list[Json]) -> Json:
    """The index of these files, by their paths. Raises NodeError `bundle-unsafe` (exit 5) for what none may hold."""
    index: Json = {"version": VERSION, "stack": stack, "profile": profile}
    index.update(machines=sorted(set(machines)), variants=sorted(set(variants)))
    index["files"] = sorted(files, key=lambda file: file["path"])
    index["digest"] = _digest(index)
    problem = _problem(index)
    if problem:
        raise unsafe("the bundle", problem)
    return index


def encode_index(index: Json) -> bytes:
    """The bytes of `bundle.json`."""
    return _canonical(index) + b"\n"


def parse_index(data: bytes, path: object) -> Json:
    """The index in the bytes of `bundle.json`. Raises NodeError `bundle-damaged`, `bundle-unsafe` (exit 5)."""
    try:
        index = json.loads(data.decode("ascii"))
        same = isinstance(index, dict) and encode_index(index) == data
    except (ValueError, RecursionError):
        index, same = None, False
    if not isinstance(index, dict) or index.get("version") != VERSION:
        raise damaged(path, f"its {NAME} is not one that this envbuild reads")
    if not same or index.get("digest") != _digest(index):
        raise damaged(path, f"its {NAME} was changed")
    problem = _problem(index)
    if problem:
        raise unsafe(path, problem)
    return index


def _canonical(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def _digest(index: Json) -> str:
    return hashlib.sha256(_canonical({key: value for key, value in index.items() if key != "digest"})).hexdigest()


def _problem(index: Json) -> str:
    """What is wrong with the contents of an index; empty when nothing is."""
    if not has_fields(index, stack=str, profile=str, machines=list, variants=list, files=list):
        return f"{NAME} lacks a field"
    names = plain_tar.Names(LIMITS)
    paths = []
    for file in index["files"]:
        if not isinstance(file, dict) or not has_fields(file, path=str, sha256=str, bytes=int, what=str):
            return f"{NAME} has a row without path, sha256, bytes or what"
        path, form = file["path"], _FORMS.get(file["what"], "")
        if not re.fullmatch(form, path) or not re.fullmatch("[0-9a-f]{64}", file["sha256"]) or file["bytes"] < 0:
            return f"{path[:200]} is no {file['what'][:40]} of a bundle"
        try:
            names.file(path, file["bytes"])
        except plain_tar.HostileError as error:
            return f"{path[:200]}: {error.why}"
        paths.append(path)
    return "" if paths == sorted(paths) else "its files do not stand in the order of their paths"


def damaged(path: object, why: str) -> NodeError:
    """`bundle-damaged` (exit 5)."""
    return NodeError(
        "bundle-damaged",
        f"{path} differs from its index",
        why=why,
        hint="carry the file here again, or make it again: `envbuild bundle create STACK -o FILE`",
    )


def unsafe(path: object, why: str) -> NodeError:
    """`bundle-unsafe` (exit 5)."""
    return NodeError(
        "bundle-unsafe",
        f"{path} is not a bundle, and envbuild uses nothing from it",
        why=why,
        hint="do not unpack it before you know who made it",
    )
