"""Hashes of files."""

import hashlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

_BLOCK = 1024 * 1024


def digest_of(path: str) -> str:
    """sha256 (hex) of a file; raises OSError."""
    with open(path, "rb") as stream:
        return digest_of_stream(stream)


def digest_of_stream(stream: "BinaryIO") -> str:
    """sha256 (hex) of what is left in a stream; raises OSError."""
    total = hashlib.sha256()
    for block in iter(lambda: stream.read(_BLOCK), b""):
        total.update(block)
    return total.hexdigest()
