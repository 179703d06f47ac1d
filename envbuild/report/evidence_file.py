"""Reads evidence from a file, strictly; and the page, which carries the evidence that it was made from.

The page carries its signature too. Browsers run neither.
"""

from __future__ import annotations

import base64
import errno
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envbuild.errors import EnvbuildError
from envbuild.model.common import first_mistake
from envbuild.model.evidence import EVIDENCE_VERSION, Evidence
from envbuild.node.read_text import integer
from envbuild.regular_file import LARGEST, read_file

DEEPEST = 64
_DIGITS = 19  # a signed 64-bit integer


def parse(data: bytes) -> Any:
    """The value of a JSON text in UTF-8. Raises ValueError with the mistake in words."""
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("it begins with a byte order mark")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: byte {error.start}: {error.reason}") from error
    try:
        parsed = json.loads(
            text, object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_float
        )
    except json.JSONDecodeError as error:
        end = text.rstrip()
        cut = "; it ends in the middle" if error.pos >= len(end) or not end.endswith(("}", "]")) else ""
        raise ValueError(f"it is not JSON: {error}{cut}") from error
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels") from error
    if not _is_flat(parsed):
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    return parsed


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice[:40]!r} is there twice")
    return made


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > _DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


def _is_flat(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        nested = [item for item in level if isinstance(item, (dict, list))]
        level = [one for item in nested for one in (item.values() if isinstance(item, dict) else item)]
        if not level:
            return True
    return False


def read_bytes(path: Path) -> bytes:
    """A regular file of at most 64 MiB. Raises EnvbuildError `evidence-missing`, `evidence-invalid`."""
    try:
        return read_file(path)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise _invalid(path, f"it is larger than {LARGEST:,} bytes") from error
        raise EnvbuildError(
            "evidence-missing",
            f"cannot read {path}",
            why="there is none; a run that is refused or ends early writes none"
            if error.errno == errno.ENOENT
            else error.strerror or str(error),
            hint="give a run (`envbuild run list` names them), its evidence.json, or its report.html",
        ) from error


def read_evidence(data: bytes, path: Path) -> Evidence:
    """Evidence from the bytes of a file; messages call it `path`.

    Raises EnvbuildError `evidence-invalid`, for another schema version too.
    """
    try:
        evidence = parse(data)
    except ValueError as error:
        raise _invalid(path, str(error)) from error
    if not isinstance(evidence, dict):
        raise _invalid(path, "it is not a JSON object")
    if (version := evidence.get("schema_version")) != EVIDENCE_VERSION:
        major = integer(str(version).partition(".")[0]) or 0
        why = (
            f"this envbuild reads schema {EVIDENCE_VERSION}"
            if major <= int(EVIDENCE_VERSION.partition(".")[0])
            else f"a newer envbuild wrote it: this one reads schema {EVIDENCE_VERSION}, and a new major version "
            "changes it"
        )
        raise EnvbuildError(
            "evidence-invalid",
            f"{path} has evidence schema {str(version)[:40]!r}",
            why=why,
            hint="use the envbuild version that wrote it (see its field `envbuild`)",
        )
    try:
        return Evidence.from_plain(evidence)
    except ValidationError as error:
        raise _invalid(path, f"{first_mistake(error)} (and {error.error_count() - 1} more)") from error


def _invalid(path: Path, why: str) -> EnvbuildError:
    return EnvbuildError(
        "evidence-invalid", f"{path} is not an evidence file", why=why, hint="give the evidence.json of a run directory"
    )


SIGNATURE = "evidence.json.sig"
"""the file of the signature, beside the evidence"""
JSON, PACKED, TEXT = "application/json", "application/x-xz;base64", "text/plain"
# Evidence beyond this is packed, so that a page of many nodes stays small.
_LARGE = 512 * 1024
_BLOCK = re.compile(rf'<script type="({JSON}|{PACKED}|{TEXT})" id="(evidence|signature)">\n(.*?)\n</script>', re.DOTALL)
_ESCAPES = {b"<": b"\\u003c", b">": b"\\u003e", b"&": b"\\u0026"}


def embeddable(text: bytes) -> bytes:
    """JSON that means the same and cannot end the element that it stands in: these characters are in strings only.

    No signature has them.
    """
    for sign, escape in _ESCAPES.items():
        text = text.replace(sign, escape)
    return text


def block(text: bytes, form: str = JSON) -> tuple[str, str]:
    """Type and text of the element that carries `text`, which is JSON, or a signature."""
    data = embeddable(text)
    if len(data) <= _LARGE:
        return form, data.decode("utf-8", "replace").strip("\n")
    import lzma

    return PACKED, base64.b64encode(lzma.compress(data, preset=1)).decode()


def _unpack(text: str) -> bytes:
    import lzma

    packed = base64.b64decode(text, validate=True)
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=LARGEST)
    try:
        data = unpacker.decompress(packed, LARGEST + 1)
    except lzma.LZMAError as error:
        raise ValueError(str(error)) from error
    if len(data) > LARGEST or not unpacker.eof:
        raise ValueError(f"it is truncated, or larger than {LARGEST:,} bytes")
    if unpacker.unused_data or base64.b64encode(packed).decode() != text:
        raise ValueError("something follows its end")
    return data


def around(html: str) -> str:
    """A page without its packed contents, which may differ in bytes; the rest is compared."""
    return _BLOCK.sub(
        lambda match: match[0] if match[1] != PACKED else f'<script type="{PACKED}" id="{match[2]}">', html
    )


def carried(html: str, path: Path) -> tuple[bytes, bytes | None]:
    """The evidence of a page byte for byte, and its signature, if any.

    Raises EnvbuildError `report-page-invalid` (exit 5) unless there is exactly one.
    """
    blocks_found = _BLOCK.findall(html)
    names = [name for _, name, _ in blocks_found]
    if names not in (["evidence"], ["evidence", "signature"]) or html.count("<script") != len(blocks_found):
        truncated = "" if names else " (is it truncated?)"
        raise page_invalid(path, f"it does not carry evidence.json exactly once{truncated}")
    try:
        blocks = {name: _unpack(text) if form == PACKED else text.encode() + b"\n" for form, name, text in blocks_found}
    except (ValueError, OSError, EOFError) as error:
        raise page_invalid(path, f"its evidence cannot be unpacked: {error}") from error
    return blocks["evidence"], blocks.get("signature")


def page_invalid(path: Path, why: str) -> EnvbuildError:
    """The error for a page that envbuild did not make."""
    return EnvbuildError(
        "report-page-invalid",
        f"{path} is not a report that envbuild can check",
        why=why,
        hint="give a run directory, its evidence.json or its report.html as envbuild wrote them",
    )
