"""A bundle as a tar file or a folder: written, read as a whole, or put into a folder. Nothing of it is executed.

It has its index first, then every file, copied by the kernel where it can. Who lists a file has hashed it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING

from envbuild.node import hashing, paths
from envbuild.node.bundle import index as bundle_index
from envbuild.node.bundle import plain_tar
from envbuild.node.protocol import Json, NodeError
from envbuild.node.read_text import opened

if TYPE_CHECKING:
    from pathlib import Path

    Member = tuple[str, int, Iterator[bytes]]
    Place = str | Path

_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


def read_index(path: Place) -> Json:
    """The index of a bundle, whose other files are not read. Raises NodeError as `verify` does."""
    with _opened(path) as listed:
        return _first(path, listed)


def verify(path: Place) -> Json:
    """Read every byte of a bundle; its index.

    Raises NodeError `bundle-damaged`, `bundle-unsafe` (exit 5), `bundle-missing` (2).
    """
    return _checked(path)


def unpack(path: Place, folder: Place, digest: str | None = None) -> Json:
    """Put all files of a bundle below `folder`, once every byte was checked; its index.

    Nothing of a bad bundle gets a place there. `digest`: only the bundle of this digest. Raises NodeError as `verify`,
    and `disk-full` (exit 75).
    """
    os.makedirs(folder, exist_ok=True)
    staging = tempfile.mkdtemp(prefix=".bundle-", dir=folder)
    try:
        with paths.coded_errors(str(folder)):
            index = _checked(path, staging, digest)
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


def _checked(path: Place, folder: str = "", digest: str | None = None) -> Json:
    """Check every file, and write it below `folder` where there is one."""
    with _opened(path) as listed:
        index = _first(path, listed)
        if digest is not None and index["digest"] != digest:
            raise bundle_index.damaged(path, f"it is another bundle: {index['digest']:.12}, not {digest:.12}")
        expected = iter(index["files"])
        for name, size, parts in listed:
            file = next(expected, None)
            if file is None or file["path"] != name:
                raise bundle_index.damaged(path, f"{name} is there, and its index does not list it here")
            if not folder:
                with open(os.devnull, "wb") as nowhere:
                    _check(path, file, name, size, parts, nowhere)
                continue
            place = os.path.join(folder, name)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "xb") as out:
                _check(path, file, name, size, parts, out)
            os.chmod(place, 0o644)  # noqa: S103 - wheels are read by whoever may read the prefix
        missing = next(expected, None)
        if missing is not None:
            raise bundle_index.damaged(path, f"its index lists {missing['path']}, which is not there")
        return index


def _check(path: Place, file: Json | None, name: str, size: int, parts: Iterator[bytes], out: IO[bytes]) -> None:
    if file is None or size != file["bytes"]:
        raise bundle_index.damaged(path, f"{name} has {size} bytes, its index says otherwise")
    digest, _ = hashing.write(parts, out)
    if digest != file["sha256"]:
        raise bundle_index.damaged(path, f"{name} has sha256 {digest:.12}, not {file['sha256']:.12}")


def _first(path: Place, listed: Iterator[Member]) -> Json:
    """The index, which comes first."""
    name, _size, parts = next(listed, ("", 0, iter(())))
    if name != bundle_index.NAME:
        raise bundle_index.damaged(path, f"it does not begin with {bundle_index.NAME}")
    return bundle_index.parse(b"".join(parts), path)


@contextlib.contextmanager
def _opened(path: Place) -> Iterator[Iterator[Member]]:
    """The members of a bundle, its index first; what is hostile in it becomes a NodeError."""
    try:
        if os.path.isdir(path):
            yield _folder(path)
            return
        with _file(path) as stream:
            yield plain_tar.members(stream, bundle_index.LIMITS)
    except plain_tar.HostileError as error:
        name = ascii(error.name)[1:-1][:200]
        why = f"{name}: {error.why}" if name else error.why
        make = bundle_index.damaged if error.kind == "damaged" else bundle_index.unsafe
        raise make(path, why) from None


def _folder(top: Place) -> Iterator[Member]:
    """The files of a folder in the order of a bundle's tar file."""
    sizes = plain_tar.tree(top, bundle_index.LIMITS)
    for name in sorted(sizes, key=lambda path: (path != bundle_index.NAME, path)):
        with _file(os.path.join(top, name), follow=False) as stream:
            yield name, sizes[name], iter(lambda: stream.read(plain_tar.CHUNK), b"")  # noqa: B023 - read at once


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
    data = bundle_index.encode(index)
    plain_tar.write(out, bundle_index.NAME, len(data), [data])
    for row in index["files"]:
        out.write(plain_tar.header(row["path"], row["bytes"]))
        _copy(sources[row["path"]], row, out)
        out.write(plain_tar.padding(row["bytes"]))
    out.write(plain_tar.END)


def to_folder(folder: Place, index: Json, sources: Mapping[str, Place]) -> None:
    """The same as the new folder `folder`."""
    os.mkdir(folder)
    for row in index["files"]:
        place = os.path.join(folder, row["path"])
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "xb") as out:
            _copy(sources[row["path"]], row, out)
    with open(os.path.join(folder, bundle_index.NAME), "xb") as out:
        out.write(bundle_index.encode(index))


def _copy(source: Place, row: Json, out: IO[bytes]) -> None:
    """Append a file, whose bytes never come into this process where the file system can do that."""
    with open(source, "rb", buffering=0) as stream:
        before, left = os.fstat(stream.fileno()), row["bytes"]
        out.flush()
        while left:
            try:
                done = os.sendfile(out.fileno(), stream.fileno(), None, left)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                done = out.write(stream.read(min(left, plain_tar.CHUNK)))
                out.flush()
            if not done:
                break
            left -= done
        after = os.fstat(stream.fileno())
    if left or after.st_size != row["bytes"] or after.st_mtime_ns != before.st_mtime_ns:
        raise NodeError(
            "hash-mismatch",
            f"{source} changed while it was read",
            why="it has %d bytes, %d were expected" % (after.st_size, row["bytes"]),
            hint="run the same command again",
        )
