"""The page carries the evidence that it was made from, and its signature, as data that no browser runs."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.report.evidence_file import LIMIT

SIGNATURE = "evidence.dsse.json"
"""the file of the signature, beside the evidence"""
JSON, PACKED = "application/json", "application/x-xz;base64"
# Evidence beyond this is packed, so that a page of many nodes stays small.
_LARGE = 512 * 1024
_BLOCK = re.compile(rf'<script type="({JSON}|{PACKED})" id="(evidence|signature)">\n(.*?)\n</script>', re.DOTALL)
_ESCAPES = {b"<": b"\\u003c", b">": b"\\u003e", b"&": b"\\u0026"}


@dataclass(frozen=True)
class Carried:
    """The evidence byte for byte, and the signature's envelope where there is one."""

    evidence: bytes
    envelope: bytes | None


def embeddable(text: bytes) -> bytes:
    """JSON that means the same and cannot end the element that it stands in: these characters are in strings only."""
    for sign, escape in _ESCAPES.items():
        text = text.replace(sign, escape)
    return text


def block(text: bytes) -> tuple[str, str]:
    """Type and text of the element that carries `text`, JSON."""
    data = embeddable(text)
    if len(data) <= _LARGE:
        return JSON, data.decode().strip("\n")
    import lzma

    return PACKED, base64.b64encode(lzma.compress(data, preset=1)).decode()


def _unpack(text: str) -> bytes:
    import lzma

    packed = base64.b64decode(text, validate=True)
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=LIMIT)
    try:
        data = unpacker.decompress(packed, LIMIT + 1)
    except lzma.LZMAError as error:
        raise ValueError(str(error)) from error
    if len(data) > LIMIT or not unpacker.eof:
        raise ValueError(f"it is truncated, or larger than {LIMIT:,} bytes")
    if unpacker.unused_data or base64.b64encode(packed).decode() != text:
        raise ValueError("something follows its end")
    return data


def around(html: str) -> str:
    """A page without what it carries packed, which need not have the same bytes everywhere. The rest is compared."""
    return _BLOCK.sub(lambda found: found[0] if found[1] == JSON else f'<script type="{PACKED}" id="{found[2]}">', html)


def carried(html: str, path: Path) -> Carried:
    """What a page carries. Raises EnvbuildError `report-page-invalid` (exit 5) where that is not exactly one thing."""
    found = _BLOCK.findall(html)
    names = [name for _, name, _ in found]
    if names not in (["evidence"], ["evidence", "signature"]) or html.count("<script") != len(found):
        raise invalid(path, "it does not carry evidence.json exactly once" + ("" if names else " (is it truncated?)"))
    try:
        blocks = {name: _unpack(text) if form == PACKED else text.encode() + b"\n" for form, name, text in found}
    except (ValueError, OSError, EOFError) as error:
        raise invalid(path, f"its evidence cannot be unpacked: {error}") from error
    return Carried(blocks["evidence"], blocks.get("signature"))


def invalid(path: Path, why: str) -> EnvbuildError:
    """The error for a page that is no page of ours."""
    return EnvbuildError(
        "report-page-invalid",
        f"{path} is no report that can be checked",
        why=why,
        hint="give a run directory, its evidence.json or its report.html as envbuild wrote them",
    )
