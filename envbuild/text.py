"""What text may hold and how it is shown, the one definition of it; small helpers for what people read."""

from __future__ import annotations

import difflib
import re
import signal
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import Any, TypeVar
from unicodedata import category


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that most resembles `name`, None when none does."""
    # A long name costs quadratic time to compare and resembles nothing.
    by_lower = {word.lower(): word for word in known}
    asked = name[:100].lower()
    begun = [word for word in by_lower if len(asked) > 2 and word.startswith(asked)]
    swapped = [word for word in by_lower if sorted(word) == sorted(asked)]  # in short words difflib sees no swap
    close = difflib.get_close_matches(asked, list(by_lower), n=1, cutoff=0.65)
    matches = swapped or close or (begun if len(begun) == 1 else [])
    return by_lower[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint sentence: the nearest name, or the list of names."""
    names = sorted(known)
    near = nearest(name, names)
    if near:
        return f"did you mean `{near}`?"
    return f"known: {', '.join(names)}" if names else ""


def first_hint(unnamed: str, hint: str) -> str:
    """The hint, and before it that no target was named (`cli/names.py: unnamed_target`), where it was not."""
    return f"{unnamed}; for this machine: {hint}" if unnamed and hint and unnamed not in hint else hint or unnamed


Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

# The end of hints about hosts and schedulers that cannot be reached.
WITHOUT_CONTACT = "`envbuild plan --facts FILE|NAME` contacts no host"
SHOWN = 500  # characters of what a program said
COPIED = "cyan"  # the style of a line that is there to be copied, and is never broken


# Cc: control characters; Cf: BiDi controls and zero-width characters; Cs: halves of surrogate pairs; Zl, Zp: separators
# of lines and paragraphs, at which `splitlines` breaks a line as it does at U+0085, and pip with it.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Never shown as they are: also what has no meaning (Co, Cn), and letters and marks that are invisible.
_HIDDEN = _UNSAFE | {"Co", "Cn"}
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
# Soft hyphen and joiners belong to words of some languages, and to emoji.
_PROSE = frozenset("\n\t\u00ad\u200c\u200d")
_NOT_ASCII = re.compile("[^ -~]")
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_CLOCK = re.compile(r"(?:([0-9]{1,3})-)?([0-9]{1,6})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?")
_COUNT = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) *([dhms])")
_IN_UNITS = re.compile(rf"(?:{_COUNT.pattern}(?:ays?|ours?|rs?|in(?:ute)?s?|ec(?:ond)?s?)?[ ,]*)+")
_LINE_END = re.compile(r"\r+(?=\n|\Z)")


def unsafe(text: str, *, prose: bool = False) -> re.Match[str] | None:
    """The first character that manifests, locks and addresses must not hold; None: there is none.

    `prose`: line feeds, tabs, soft hyphens and joiners are allowed.
    """
    for match in _NOT_ASCII.finditer(text):
        char = match[0]
        # The last two code points of each plane are no characters, whatever version of Unicode this Python knows.
        if (category(char) in _UNSAFE or ord(char) & 0xFFFE == 0xFFFE) and not (prose and char in _PROSE):
            return match
    return None


def unsafe_at(data: Any) -> str | None:
    """The path of the first key or text in parsed data that is `unsafe`, such as `variant.0.id`; None without one."""
    if isinstance(data, str):
        return "" if unsafe(data, prose=True) else None
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        below = "" if isinstance(key, str) and unsafe(key) else unsafe_at(value)
        if below is not None:
            return ".".join(filter(None, [visible(str(key)), below]))
    return None


def visible(text: str, *, keep_newlines: bool = False) -> str:
    """The text with every character that is not safe to show written as an escape (`\\x1b`, `\\u202e`).

    Line feeds and tabs become spaces; line feeds stay with `keep_newlines`. The carriage return that ssh ends its lines
    with goes.
    """
    if text.isascii() and text.isprintable():  # nearly all are, and this is fast
        return text
    lines = _LINE_END.sub("", text).split("\n") if keep_newlines else [_LINE_END.sub("", text)]
    return "\n".join(_NOT_ASCII.sub(_shown, line) for line in lines)


def _shown(match: re.Match[str]) -> str:
    char = match[0]
    if char in "\n\t":
        return " "
    if category(char) not in _HIDDEN and char not in _INVISIBLE:
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def visible_data(value: Any) -> Any:
    """`visible` for every string (keys included) of JSON-like data; newlines stay where text has several lines."""
    if isinstance(value, str):
        return visible(value, keep_newlines=True)
    if isinstance(value, dict):
        return {visible(str(key)): visible_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [visible_data(item) for item in value]
    return value


def comment(text: str) -> str:
    """A comment of a script, a lock or a requirements file: one line that nothing in the text ends."""
    return "# " + " ".join(visible(text).split())


def last_lines(text: str) -> str:
    """The end of what a program said, in one line of visible characters."""
    return visible("; ".join(line.strip() for line in text.splitlines() if line.strip())[-SHOWN:])


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by what `key` says of them; groups and items in the order in which they come."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def few(names: Sequence[str], most: int = 3, between: str = ", ") -> str:
    """The first of some names, and how many more there are; `between`: where names have commas of their own."""
    return between.join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def plural(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def number(value: float, beside: float | None = None) -> str:
    """Thousands separated, else four digits; more where `beside` would read alike. As the node writes its own."""
    from envbuild.node.protocol import plain

    return plain(value, beside)


def percent(value: float, limit: float, places: int = 0) -> str:
    """With `places` behind the point, and more where a value below the limit would be rounded up to it."""
    texts = (f"{value:.{n}f}" for n in count(places))
    return next(text for text in texts if value >= limit or float(text) < limit)


def size(count: float) -> str:
    """Bytes for people: `808 MB`, `1.9 GB` (decimal units)."""
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def seconds_of(text: str) -> float | None:
    """The seconds of a time as people write it (`90s`, `5m`, `2h`, `30d`, `0.5s`); None where it is none."""
    match = _TIME.fullmatch(text)
    return float(match[1]) * _UNITS[match[2]] if match else None


def as_times(text: str) -> tuple[str, ...]:
    """What a time that other programs write in another way (`1-00:00:00`, `2h30m`, `90 min`) may be, as `24h`.

    Empty if it is none. A number alone is minutes for Slurm, and may be meant as hours.
    """
    if clock := _CLOCK.fullmatch(text):
        days, first, second, third = (int(part) if part else None for part in clock.groups())
        if days is None and second is None:
            return f"{first}m", f"{first}h"
        # Slurm: `D-H[:M[:S]]`, `H:M:S`, `M:S`.
        by_hours = days is not None or third is not None
        hours, least, seconds = (first, second, third) if by_hours else (0, first, second)
        total = float((days or 0) * 86400 + (hours or 0) * 3600 + (least or 0) * 60 + (seconds or 0))
    elif _IN_UNITS.fullmatch(text.lower()):
        total = sum(float(count) * _UNITS[unit] for count, unit in _COUNT.findall(text.lower()))
    else:
        return ()
    unit = next(unit for unit in "hms" if total % _UNITS[unit] == 0 or unit == "s")
    return (f"{total / _UNITS[unit]:.0f}{unit}",)


def minutes(seconds: float) -> str:
    """`12 min 5 s`: whole minutes, and what is left of them."""
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s"


def how_it_ended(code: int | None) -> str:
    """What became of a step that has no answer; `code` as a shell or `subprocess` has it, None where nobody knows.

    A SIGKILL may come from anybody: it is told with what it usually is.
    """
    number = -code if code is not None and code < 0 else (code or 0) - 128
    if number == signal.SIGKILL:
        return "was killed (signal 9; the kernel does this when memory runs out)"
    if 0 < number < 65:
        return f"was ended by signal {number}"
    return "ended without an answer" + (f" (exit {code})" if code is not None else "")
