"""The bytes of a file as they are in its conda package: rattler wrote the prefix into it, this takes that back.

A text names the prefix wherever it named the placeholder; its first line may have become another where `#!` and the
prefix are too long for the kernel, or hold a space. In a binary file each string that ends with NUL keeps its place,
filled up with NULs.
"""

import hashlib
import re
from collections.abc import Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap

_TRAMPOLINE = re.compile(rb"\A#!/bin/sh\n'''exec' \"(.+?)\"( .*?)? \"\$0\" \"\$@\" #'''\n")
_ENV = re.compile(rb"\A#!/usr/bin/env ")


class Placeholder:
    """What a package says of one file: the prefix that stands in the archive, the file's sha256 there, and how."""

    __slots__ = ("prefix", "sha256", "text")

    def __init__(self, prefix: bytes, sha256: str, text: bool) -> None:
        """`text`: it is replaced as in a text, else as in a binary file. `sha256` is empty for what rattler wrote."""
        self.prefix = prefix
        self.sha256 = sha256
        self.text = text

    def digest(self, data: "bytes | mmap.mmap", root: bytes) -> str:
        """sha256 (hex) of `data`, the contents of an installed file under `root`, with the placeholder in its place.

        It is `sha256` where nothing else was changed.
        """
        if not self.text:
            return _sha256(_binary(data, root, self.prefix))
        found = _sha256([_text(data[:], root, self.prefix)])
        if found != self.sha256 and _ENV.match(data):
            program = b"#!" + self.prefix + b"/bin/"
            found = _sha256([_text(_ENV.sub(lambda _: program, data[:]), root, self.prefix)])
        return found


def _sha256(pieces: "Iterator[bytes] | list[bytes]") -> str:
    total = hashlib.sha256()
    for piece in pieces:
        total.update(piece)
    return total.hexdigest()


def _text(data: bytes, root: bytes, prefix: bytes) -> bytes:
    found = _TRAMPOLINE.match(data)
    if found is not None:
        data = b"#!" + found.group(1) + (found.group(2) or b"") + b"\n" + data[found.end() :]
    return data.replace(root, prefix)


def _binary(data: "bytes | mmap.mmap", root: bytes, prefix: bytes) -> "Iterator[bytes]":
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
