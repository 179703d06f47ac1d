"""Writing a bundle: its index, then every file, copied by the kernel where it can. Who lists a file has hashed it."""

import errno
import os

from envbuild.node.bundle import index as bundle_index
from envbuild.node.bundle import plain_tar
from envbuild.node.protocol import Json, NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

_CANNOT = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


def to_tar(out: "IO[bytes]", index: Json, sources: "dict[str, str]") -> None:
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


def to_folder(folder: str, index: Json, sources: "dict[str, str]") -> None:
    """The same as the new folder `folder`."""
    os.mkdir(folder)
    for row in index["files"]:
        place = os.path.join(folder, row["path"])
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "xb") as out:
            _copy(sources[row["path"]], row, out)
    with open(os.path.join(folder, bundle_index.NAME), "xb") as out:
        out.write(bundle_index.encode(index))


def _copy(source: str, row: Json, out: "IO[bytes]") -> None:
    """Append a file, whose bytes never come into this process where the file system can do that."""
    with open(source, "rb", buffering=0) as stream:
        before, left = os.fstat(stream.fileno()), row["bytes"]
        out.flush()
        while left:
            done = _in_kernel(stream.fileno(), out.fileno(), left)
            if not done:
                part = stream.read(min(left, plain_tar.CHUNK))
                out.write(part)
                out.flush()
                done = len(part)
            if not done:
                break
            left -= done
        after = os.fstat(stream.fileno())
    if left or after.st_size != row["bytes"] or after.st_mtime_ns != before.st_mtime_ns:
        raise NodeError(
            "hash-mismatch",
            "%s changed while it was read" % source,
            why="it has %d bytes, %d were expected" % (after.st_size, row["bytes"]),
            hint="run the same command again",
        )


def _in_kernel(source: int, out: int, left: int) -> int:
    """How many bytes the kernel has copied; 0 where it cannot."""
    try:
        return os.copy_file_range(source, out, left)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        return 0
