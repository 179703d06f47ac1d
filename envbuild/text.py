"""Small helpers for what people read: the ends of texts, and what is alike said once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

SHOWN = 500  # characters of what a program said


def printable(text: str) -> str:
    """The text with a mark in the place of every character that a terminal could take for a command."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def last_lines(text: str) -> str:
    """The end of what a program said, in one line of printable characters."""
    return printable("; ".join(line.strip() for line in text.splitlines() if line.strip())[-SHOWN:])


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by what `key` says of them; groups and items in the order in which they come."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


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
