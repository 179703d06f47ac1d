"""Has envbuild killed right after the first journal event of a kind, as `World.run(..., before=...)` asks for it."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from envbuild.provision.run.journal import Event, EventKind, Journal


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, whatever group or session it has gone to."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def install(kind: str, step: str, whom: str) -> None:
    """Wrap `Journal.append`; the event is the first one of `step`, or of any where that is empty.

    `whom` is `self`, `all` (its descendants too), `others` (its descendants alone) or `interrupt` (SIGINT instead).
    """
    append = Journal.append
    seen = False

    def appended(self: Journal, event: EventKind, *, node: str | None = None, **data: Any) -> Event:
        nonlocal seen
        made = append(self, event, node=node, **data)
        if event == kind and step in ("", data.get("step")) and not seen:
            seen = True
            for process in descendants(os.getpid()) if whom in ("all", "others") else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if whom != "others":
                os.kill(os.getpid(), signal.SIGINT if whom == "interrupt" else signal.SIGKILL)
        return made

    Journal.append = appended  # type: ignore[method-assign]
