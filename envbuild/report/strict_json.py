"""JSON as one document means it: no second value for a key, no number without a value, no bottomless nesting."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

DEEPEST = 64
_DIGITS = 19  # a signed 64-bit integer


def parse(data: bytes) -> Any:
    """The value of a JSON text in UTF-8. Raises ValueError with what is wrong, in words."""
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("it begins with a byte order mark")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: byte {error.start}: {error.reason}") from error
    try:
        found = json.loads(
            text, object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        end = text.rstrip()
        cut = "; it ends in the middle" if error.pos >= len(end) or not end.endswith(("}", "]")) else ""
        raise ValueError(f"it is not JSON: {error}{cut}") from error
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels") from error
    if not _is_flat(found):
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:40]!r} is there twice")
    return made


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > _DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is larger than any number")
    return value


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _is_flat(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            item
            for each in level
            if isinstance(each, (dict, list))
            for item in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return True
    return False
