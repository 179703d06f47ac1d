"""Hashes of files and streams: sha256 in hex, unless an algorithm is named."""

import base64
import hashlib
from collections.abc import Iterable, Iterator

from envbuild.node.read_text import opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from typing import IO

BLOCK = 1024 * 1024


def blocks(stream: "IO[bytes]") -> "Iterator[bytes]":
    """What is left in a stream, 1 MiB at a time; raises OSError."""
    return iter(lambda: stream.read(BLOCK), b"")


def digest_of(path: "str | os.PathLike[str]") -> str:
    """Of a file; raises OSError."""
    with opened(path) as stream:
        return digest_of_stream(stream)


def digest_if_readable(path: str) -> "str | None":
    """Of a file, None where it cannot be read."""
    try:
        return digest_of(path)
    except OSError:
        return None


def digest_of_stream(stream: "IO[bytes]", algorithm: str = "sha256") -> str:
    """Of what is left in a stream; raises OSError."""
    total = hashlib.new(algorithm)
    for block in blocks(stream):
        total.update(block)
    return total.hexdigest()


def write(parts: "Iterable[bytes]", out: "IO[bytes]") -> "tuple[str, int]":
    """Write all parts to `out`; their sha256 and how many bytes they are. Raises OSError."""
    total, size = hashlib.sha256(), 0
    for part in parts:
        total.update(part)
        size += len(part)
        out.write(part)
    return total.hexdigest(), size


def for_record(digest: str) -> str:
    """A digest (hex) as RECORD has it behind its algorithm."""
    return base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode("ascii")
