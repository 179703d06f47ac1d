"""A small bundle of every kind of file, as bytes, as a file and as a folder."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

from envbuild.node.bundle import index, plain_tar
from tests.support.files import write_files

KEY = "ab" * 32
LONG = "wheels/" + "a" * 90 + "-1.0-cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
FILES = {
    "wheels/alpha-1.0-py3-none-any.whl": ("wheel", b"alpha" * 1000),
    LONG: ("wheel", b"long"),
    f"built/{KEY}/beta-2.0-py3-none-any.whl": ("built wheel", b"beta"),
    f"built/{KEY}/build.json": ("built wheel", b"{}"),
    "sources/gamma-1234.bundle": ("source", b"git" * 700),
    "conda/main/linux-64/_delta-1.0-0.conda": ("conda package", b"delta"),
    "tools/0123456789ab-cpython.tar.gz": ("interpreter", b""),
}


def rows(files: dict[str, tuple[str, bytes]] = FILES) -> list[dict[str, Any]]:
    """The rows of an index."""
    return [
        {"path": path, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "what": what}
        for path, (what, data) in files.items()
    ]


def made(files: dict[str, tuple[str, bytes]] = FILES) -> bytes:
    """A good bundle."""
    told = index.make("tiny", "exact", ["x86_64"], ["cpu"], rows(files))
    return packed({index.NAME: index.encode(told), **{path: files[path][1] for path in sorted(files)}})


def packed(files: dict[str, bytes]) -> bytes:
    """A tar file of these members, whatever they are."""
    out = io.BytesIO()
    for name, data in files.items():
        plain_tar.write(out, name, len(data), [data])
    return out.getvalue() + plain_tar.END


def forged(more: bytes, listed: list[dict[str, Any]] | None = None) -> bytes:
    """A bundle whose index holds together, followed by members that somebody else wrote."""
    told: dict[str, Any] = {"version": 1, "stack": "tiny", "profile": "exact", "machines": ["x86_64"], "variants": []}
    told["files"] = listed or []
    told["digest"] = hashlib.sha256(canonical(told)).hexdigest()
    return packed({index.NAME: canonical(told) + b"\n"})[: -len(plain_tar.END)] + more + plain_tar.END


def canonical(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def unpacked(folder: Path, files: dict[str, tuple[str, bytes]] = FILES) -> Path:
    """The same as a folder."""
    told = index.make("tiny", "exact", ["x86_64"], ["cpu"], rows(files))
    return write_files(folder, {index.NAME: index.encode(told), **{path: data for path, (_, data) in files.items()}})
