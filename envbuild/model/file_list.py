"""The list of files that a Merkle root is made from: path to [tag, sha256, size, executable]."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from envbuild.node.merkle import root_of

Files = Mapping[str, Sequence[Any]]
# An environment of 100,000 files has a list of 16 MB.
LIMIT = 64 * 1024 * 1024
_DIGEST = re.compile(r"(?:[0-9a-f]{64})?\Z")
_TAG = re.compile(r"[a-z]{1,16}\Z")  # how a file was hashed, as node/merkle.py says
_GZIP = 16 + zlib.MAX_WBITS
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


def pack(files: Files) -> bytes:
    """The list as gzip of JSON, in columns (path, tag, sha256, ...); equal lists give equal bytes."""
    # Most of it are digests, in which nothing repeats; paths do, and by themselves pack better. zlib's filtered
    # strategy takes a tenth off.
    stream = zlib.compressobj(9, zlib.DEFLATED, _GZIP, 9, zlib.Z_FILTERED)
    columns = zip(*((path, *row) for path, row in sorted(files.items())), strict=True)
    text = json.dumps(list(columns), separators=(",", ":")).encode()
    return stream.compress(text) + stream.flush()


def unpack(data: bytes) -> Files:
    """The list in what `pack` made, or a node (rows). Raises ValueError for what is none, or is larger than 64 MiB."""
    try:
        found: Any = json.loads(text(data))
        if isinstance(found, list):
            found = {path: row for path, *row in zip(*found, strict=True)}
    except (RecursionError, TypeError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(found, dict) or not all(isinstance(path, str) and _is_row(found[path]) for path in found):
        raise ValueError("not a list of files")
    return found


def text(data: bytes) -> bytes:
    """The JSON of a packed list. Raises ValueError for what is not one whole stream, or is larger than 64 MiB."""
    stream = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        found = stream.decompress(data, LIMIT)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not stream.eof or stream.unused_data:
        raise ValueError(f"not one whole stream of at most {LIMIT} bytes")
    return found


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 4:
        return False
    tag, digest, size, executable = row
    if not (isinstance(tag, str) and isinstance(digest, str)):
        return False
    named = _TAG.match(tag) is not None and _DIGEST.match(digest) is not None
    return named and {type(size), type(executable)} <= {int, bool}


def root(files: Files) -> str:
    """The Merkle root (sha256, hex) of the list."""
    return root_of(dict(files))  # type: ignore[arg-type]
