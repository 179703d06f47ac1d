"""Versions in running text: `PyTorch >= 1.5`, `tested with CUDA 10.1`, `Python 3.8 or newer`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.init.statement import Kind, Place, Statement, quoted

_WORDS: tuple[tuple[Kind, str], ...] = (
    ("torch", r"\bpytorch\b|\btorch\b"),
    ("python", r"\bpython\b"),
    ("cuda", r"\bcuda\b(?:\s+toolkit)?"),
    ("gcc", r"\bgcc\b|\bg\+\+"),
)
_OPERATORS = {"≥": ">=", "≤": "<=", "=": "==", "": "==", ">": ">", "<": "<", ">=": ">=", "<=": "<=", "==": "=="}
_VERSION = (
    r"(?:\]\([^)\s]*\))?(?:\s*\(?\s*(?:version|ver\.?|v))?\s*(?P<operator>>=|<=|==|≥|≤|=|>|<|)\s*v?"
    r"(?P<version>[0-9]{1,2}\.[0-9]{1,2}(?:\.[0-9]{1,2})?)"
    r"(?:\s*(?:-|–|~|to)\s*(?P<upper>[0-9]{1,2}\.[0-9]{1,2})\b)?(?P<more>\+|\s+(?:or|and)\s+(?:above|later|newer|higher|up)\b)?"
)
_FACTS = tuple((kind, re.compile(f"(?:{name}){_VERSION}", re.IGNORECASE)) for kind, name in _WORDS)
_LONGEST = 4000


def facts(text: str, file: str, line: int) -> Iterator[Statement]:
    """The statements of a paragraph that begins at `line`; `text` may have several lines."""
    text = text[:_LONGEST]
    for kind, pattern in _FACTS:
        for match in pattern.finditer(text):
            before = text[: match.start()]
            place = Place(file, line + before.count("\n"), match.start() - (before.rfind("\n") + 1) + 1)
            operator = ">=" if match["more"] else _OPERATORS[match["operator"]]
            tested = "tested" if re.search(r"tested|developed|experiments|we use", text, re.IGNORECASE) else ""
            options = {"by": "prose", "tested": tested}
            shown = quoted(text.split("\n")[before.count("\n")].strip())
            value = f"{operator}{match['version']}"
            if kind in ("cuda", "gcc") and operator == "==":
                value = match["version"]
            elif match["upper"]:
                value = f">={match['version']},<={match['upper']}.99"
            yield Statement(kind, value, place, shown, "prose", options={k: v for k, v in options.items() if v})
