"""What nodes do under their steps: asked of them while a run goes, never in its way."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from envbuild.node import proc
from envbuild.node.read_text import json_lines
from envbuild.text import visible

LONGEST = 200  # characters of what a node says on a line
TAIL = 2000  # bytes of a node's file: some seconds of it
_AT_ONCE = 8
_WORDS = ("host", "step", "phase", "what", "unit")
_AMOUNTS = ("done", "total")


@contextlib.contextmanager
def followed(
    ask: Mapping[str, Callable[[], str]], now: Callable[[str, Mapping[str, Any]], None], every: float
) -> Iterator[None]:
    """Until the end of the block, `ask` nodes what they do, every so many seconds at most, and tell `now` what is new.

    A question gives the end of a node's file, or of those of several hosts; one that fails is asked again.
    """
    nodes = list(ask)
    stop, seen = threading.Event(), dict[Any, object]()

    def one(node: str) -> None:
        with contextlib.suppress(Exception):  # it is told of a node's work, and must not end it
            last = {line.get("host"): line for line in json_lines("" if stop.is_set() else ask[node]())}
            for host, line in last.items():
                if line.get("seq") not in (None, seen.get((node, host))):
                    seen[node, host] = line["seq"]
                    now(node, _usable(line))

    def work() -> None:
        while not stop.wait(every):
            for first in range(0, len(nodes), _AT_ONCE):
                proc.parallel([partial(one, node) for node in nodes[first : first + _AT_ONCE]])

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()


def is_amount(value: object) -> TypeGuard[float]:
    """Seconds, bytes or a count to reckon with: finite, not negative, 10^15 at most. A node may say anything."""
    return isinstance(value, int | float) and 0 <= value <= 1e15


def _usable(line: Mapping[str, Any]) -> dict[str, Any]:
    """What a node tells: each text as one short line, and amounts."""
    words = {key: visible(line[key])[:LONGEST] for key in _WORDS if isinstance(line.get(key), str)}
    return {**words, **{key: line[key] for key in _AMOUNTS if is_amount(line.get(key))}}


def tail_of(path: Path) -> str:
    """The end of a file of this machine; empty where there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL))
            return stream.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return ""
