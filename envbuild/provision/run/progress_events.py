"""What is told of a run while it goes: kept beside its journal for who attaches to it, and asked of its nodes."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from envbuild.node import proc
from envbuild.node.read_text import json_lines
from envbuild.provision.run.outcome import LONGEST, Progress
from envbuild.provision.run.run_dir import RunDir
from envbuild.redact import redact_data
from envbuild.text import visible, visible_data

LIMIT = 8 * 1024 * 1024
TAIL = 2000  # bytes of a node's file: some seconds of it
_AT_ONCE = 8
_PAUSE = 0.5  # seconds between looks at a run of another process
_WORDS = ("host", "step", "phase", "what", "unit")
_AMOUNTS = ("done", "total")


class Recorded(Progress):
    """Writes every event, redacted and without terminal escapes, and tells it on; a full disk costs the record only."""

    def __init__(self, path: Path, shown: Progress) -> None:
        """`path`: a file of JSON lines, which is given up at `LIMIT` bytes."""
        self._path, self._shown = path, shown
        self._lock = threading.Lock()
        self._room = LIMIT

    def tell(self, event: Mapping[str, Any]) -> None:
        """One event, with the time `t` (seconds since 1970)."""
        told = visible_data(redact_data({"t": round(time.time(), 3), **event}))
        line = json.dumps(told, ensure_ascii=True) + "\n"
        with self._lock:
            self._room -= len(line)
            if self._room > 0:
                with contextlib.suppress(OSError), open(self._path, "a", opener=_private) as out:
                    out.write(line)
        self._shown.tell(told)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


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


def told(run: RunDir) -> Iterator[dict[str, Any]]:
    """Every event of a run as it comes, those that were there first; until the run has ended."""
    rest, place = b"", 0
    while True:
        running = RunDir(run.path).status == "running"
        with contextlib.suppress(FileNotFoundError), run.progress.open("rb") as stream:
            stream.seek(place)
            new = stream.read()
            place += len(new)
            lines, _, rest = (rest + new).rpartition(b"\n")
            yield from json_lines(lines.decode("utf-8", "replace"))
        if not running:
            return
        time.sleep(_PAUSE)


def tail_of(path: Path) -> str:
    """The end of a file of this machine; empty where there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL))
            return stream.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return ""
