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
    r"(?:\]\([^)\s]*\))?(?:[`*_]*\s*\(?\s*(?:version|ver\.?|v|is))?[`*_]*[\s:]*(?P<operator>>=|<=|==|≥|≤|=|>|<|)\s*v?"
    r"(?P<version>[0-9]{1,2}\.[0-9]{1,2}(?:\.[0-9]{1,2})?)"
    r"(?:\s*(?:-|–|~|to)\s*(?P<upper>[0-9]{1,2}\.[0-9]{1,2})\b)?"
    r"(?:\+(?P<local>cu[0-9]{2,3}|cpu)|(?P<more>\+|\s+(?:or|and)\s+(?:above|later|newer|higher|up)\b))?"
)
_FACTS = tuple((kind, re.compile(f"(?:{name}){_VERSION}", re.IGNORECASE)) for kind, name in _WORDS)
_LONGEST = 4000
# What a list of requirements has besides packages of Python, and what is read as a fact.
_NO_PACKAGES = frozenset(
    ("python", "pytorch", "torch", "cuda", "cudnn", "nvcc", "gcc", "g++", "linux", "ubuntu", "cmake", "docker", "nccl",
     "driver", "conda", "pip", "git", "node", "nodejs", "windows", "macos", "rocm", "tensorrt", "mpi", "openmpi",
     "java")
)  # fmt: skip
_PLAIN = ("torchvision", "torchaudio", "torchtext", "timm", "numpy", "transformers", "deepspeed", "mmcv", "mmcv-full")
_ITEM = re.compile(
    r"[`*_\s]*(?P<name>[A-Za-z][A-Za-z0-9._-]*)[`*_]*(?P<operator>\s*(?:==|>=|~=|<=|=)\s*|\s+v?)(?P<version>[0-9]+(?:\.[0-9A-Za-z]+)+)"
    r"[`*_\s.;,]*"
)

_EDITED = re.compile(
    r"\bcomment out\b[^.\n]{0,80}?\b(?P<one>[\w./-]+\.(?:py|cpp|cu|cuh|h))\b"
    r"|\bedit (?:the )?`?(?P<two>[\w./-]+\.(?:py|cpp|cu|cuh|h))\b"
    r"|\b(?:change|set|edit|modify)\b[^.\n`]{0,60}\b(?:ip|address)\b[^.\n`]{0,40}`(?P<three>[^`\n]+\.\w+)`",
    re.IGNORECASE,
)


def edits(text: str, file: str, line: int) -> Iterator[Statement]:
    """Source files that the page wants edited by hand."""
    for match in _EDITED.finditer(text[:_LONGEST]):
        place = Place(file, line + text[: match.start()].count("\n"))
        name = match["one"] or match["two"] or match["three"]
        yield Statement("edit", name, place, quoted(match[0]), "prose", False, {"by": "prose"})


def packages(text: str, file: str, line: int) -> Iterator[Statement]:
    """Packages of a list in words: lines that hold a name and a version, and nothing else."""
    for number, item in enumerate(text[:_LONGEST].split("\n")):
        match = _ITEM.fullmatch(item)
        name, operator = (match["name"], match["operator"].strip(" v")) if match else ("", "")
        if match and name.lower() not in _NO_PACKAGES and (operator or name.lower() in _PLAIN):
            value = f"{name}{'==' if operator in ('', '=') else operator}{match['version']}"
            yield Statement(
                "package", value, Place(file, line + number), quoted(item.strip()), "prose", False, {"by": "prose"}
            )


def facts(text: str, file: str, line: int) -> Iterator[Statement]:
    """The statements of a paragraph that begins at `line`; `text` may have several lines."""
    text = text[:_LONGEST]
    for kind, pattern in _FACTS:
        for match in pattern.finditer(text):
            before = text[: match.start()]
            place = Place(file, line + before.count("\n"), match.start() - (before.rfind("\n") + 1) + 1)
            operator = ">=" if match["more"] else _OPERATORS[match["operator"]]
            tested = "tested" if re.search(r"tested|developed|experiments|we use", text, re.IGNORECASE) else ""
            options = {"by": "prose", "tested": tested, "local": match["local"] or ""}
            shown = quoted(text.split("\n")[before.count("\n")].strip())
            value = f"{operator}{match['version']}"
            if kind in ("cuda", "gcc") and operator == "==":
                value = match["version"]
            elif match["upper"]:
                value = f">={match['version']},<={match['upper']}.99"
            yield Statement(kind, value, place, shown, "prose", options={k: v for k, v in options.items() if v})
