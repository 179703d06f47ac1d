"""Waiting for what another process does, however slow the machine is."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 120


def until(seen: Callable[[], T], seconds: float = PATIENCE) -> T:
    """The first true answer of `seen()`; a failure when none comes."""
    end = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < end, f"it did not happen within {seconds} s"
        time.sleep(0.02)
    return found


def with_deadline(check: Callable[[float], T], deadline: float, reached: Callable[[T], bool]) -> tuple[float, T]:
    """What `check(deadline)` finds of a program that never ends, and the deadline.

    Where it had not reached the point where it hangs, the deadline grows: a busy machine takes long to start it.
    """
    for _ in range(4):
        found = check(deadline)
        if reached(found):
            break
        deadline *= 3
    return deadline, found


def text_of(path: Path) -> str:
    """What another process has written into a file by now; empty where there is none yet."""
    return path.read_text() if path.exists() else ""


def alive(pid: int | str) -> bool:
    """Whether a process runs; one that has ended and is not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def processes_of(word: str) -> list[int]:
    """The running processes that have `word` in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            named = word.encode() in entry.read_bytes()
        except OSError:
            continue
        found += [int(entry.parent.name)] if named and alive(entry.parent.name) else []
    return found


def answers(address: str, port: int) -> bool:
    """Whether something listens there."""
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0
