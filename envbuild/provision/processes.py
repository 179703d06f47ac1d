"""Finds and ends the processes of one piece of work by a variable in their environment (Linux: proc(5)).

Process groups and parents do not do: Ansible's workers leave the group, and orphans lose their parent.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

_PROC = Path("/proc")


def find_marked(name: str, value: str) -> list[int]:
    """Process ids, not the caller's, whose environment at their start had `name=value`."""
    wanted = os.fsencode(f"{name}={value}")
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            # Gone meanwhile, or another user's.
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(entry.name))
    return found


def end_marked(name: str, value: str, *, grace: float = 5.0) -> list[int]:
    """End these processes: SIGTERM, up to `grace` seconds, then SIGKILL. Returns the ids that were found first."""
    first = found = find_marked(name, value)
    _signal(found, signal.SIGTERM)
    until = time.monotonic() + grace
    while found and time.monotonic() < until:
        time.sleep(0.05)
        found = find_marked(name, value)
    while found:
        _signal(found, signal.SIGKILL)
        time.sleep(0.05)
        found = find_marked(name, value)
    return first


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue
