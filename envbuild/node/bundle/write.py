"""Writing a bundle: its index, then every file as a stream, hashed as it goes by."""

import hashlib
import os
from collections.abc import Iterator

from envbuild.node.bundle import index as bundle_index
from envbuild.node.bundle import plain_tar
from envbuild.node.protocol import Json, NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO


def to_tar(out: "IO[bytes]", index: Json, sources: "dict[str, str]") -> None:
    """Write the bundle of `index` as a tar file; `sources` are its files, by their paths in it.

    Raises OSError, and NodeError as `parts` does.
    """
    data = bundle_index.encode(index)
    plain_tar.write(out, bundle_index.NAME, len(data), [data])
    for row in index["files"]:
        plain_tar.write(out, row["path"], row["bytes"], parts(sources[row["path"]], row))
    out.write(plain_tar.END)


def to_folder(folder: str, index: Json, sources: "dict[str, str]") -> None:
    """The same as the new folder `folder`."""
    os.mkdir(folder)
    for row in index["files"]:
        place = os.path.join(folder, row["path"])
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "xb") as out:
            out.writelines(parts(sources[row["path"]], row))
    with open(os.path.join(folder, bundle_index.NAME), "xb") as out:
        out.write(bundle_index.encode(index))


def parts(source: str, row: Json) -> "Iterator[bytes]":
    """What is in a file; raises NodeError `hash-mismatch` (exit 5) where that is not what the index says."""
    total, size = hashlib.sha256(), 0
    with open(source, "rb", buffering=0) as stream:
        while size <= row["bytes"]:
            part = stream.read(plain_tar.CHUNK)
            if not part:
                break
            total.update(part)
            size += len(part)
            if size <= row["bytes"]:
                yield part
    if (total.hexdigest(), size) != (row["sha256"], row["bytes"]):
        raise NodeError(
            "hash-mismatch",
            "%s changed while it was read" % source,
            why="it has %d bytes and sha256 %.12s, expected %d and %.12s"
            % (size, total.hexdigest(), row["bytes"], row["sha256"]),
            hint="run the same command again",
        )
