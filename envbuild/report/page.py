"""The page carries the evidence that it was made from, and its signature, as data that no browser runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, ExitCode

_BLOCK = re.compile(r'<script type="application/json" id="(evidence|signature)">\n(.*?)\n</script>', re.DOTALL)
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


def carried(html: str, path: Path) -> Carried:
    """What a page carries. Raises EnvbuildError `report-page-invalid` (exit 5) where that is not exactly one thing."""
    found = _BLOCK.findall(html)
    names = [name for name, _ in found]
    if names not in (["evidence"], ["evidence", "signature"]) or html.count("<script") != len(found):
        raise invalid(path, "it does not carry evidence.json exactly once" + ("" if names else " (is it truncated?)"))
    blocks = {name: text.encode() + b"\n" for name, text in found}
    return Carried(blocks["evidence"], blocks.get("signature"))


def invalid(path: Path, why: str) -> EnvbuildError:
    """The error for a page that is no page of ours."""
    return EnvbuildError(
        "report-page-invalid",
        f"{path} is no report that can be checked",
        why=why,
        hint="give a run directory, its evidence.json or its report.html as envbuild wrote them",
        exit_code=ExitCode.INTEGRITY,
    )
