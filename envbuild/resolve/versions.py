"""Comparing the versions that facts and compat data hold: short tuples of numbers, never strings."""

from __future__ import annotations

import functools
import re

Numbers = tuple[int, ...]

_LEADING = re.compile(r"[0-9]+(?:\.[0-9]+)*")


@functools.lru_cache(maxsize=4096)
def numbers(text: str | None) -> Numbers:
    """The leading dotted number: `470.82.01 (GA)` is (470, 82, 1); empty when there is none."""
    found = _LEADING.match(text.strip()) if text else None
    return tuple(int(part[:12]) for part in found.group().split(".")) if found else ()


def minor(text: str | None) -> Numbers:
    """The first two numbers, `3.11.4` is (3, 11); empty when there are fewer than two."""
    parts = numbers(text)
    return parts[:2] if len(parts) >= 2 else ()


def dotted(parts: Numbers) -> str:
    """`(11, 3)` as `11.3`."""
    return ".".join(str(part) for part in parts)


def flavour_cuda(flavour: str | None) -> Numbers:
    """The CUDA version of a wheel flavour: cu113 is (11, 3), cu130 is (13, 0); empty for cpu and None."""
    if not flavour or not flavour.startswith("cu") or not flavour[2:].isdigit() or len(flavour) < 4:
        return ()
    return int(flavour[2:-1]), int(flavour[-1])


def split_local(version: str) -> tuple[str, str | None]:
    """`1.10.0+cu113` is (`1.10.0`, `cu113`); the second is None without a local part."""
    public, _, local = version.partition("+")
    return public, local or None


def python_tag(python: str) -> str:
    """The wheel tag of a Python: 3.9 is cp39."""
    return "cp" + python.replace(".", "")
