"""A run while it goes: the events of its journal folded into rows, and the rows as lines of text. Pure.

Times are seconds since 1970 and arguments. A time left is said of a step that this machine has done before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from envbuild.provision.run.journal import Event, EventKind
from envbuild.text import plural, size

STEPS = {
    "toolchain": "toolchain",
    "deliver": "delivering files",
    "carry": "sending the image",
    "container": "testing inside the image",
    "install": "building the environment",
    "smoke": "smoke test",
    "activate": "hashing and stamping",
    "verify": "verifying",
}
MOST_ROWS = 20
_RUNNING = "started"
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass
class Row:
    """One node: its `step` and `state` since `since`, what it does under a running step (`now`), and what it said.

    `before`: the seconds that a step took on this machine before, where that is known; `took`: what it took now.
    """

    step: str = ""
    state: str = ""
    text: str = ""
    since: float = 0.0
    took: float = 0.0
    now: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The step in words."""
        return STEPS.get(self.step, self.step)

    @property
    def running(self) -> bool:
        """A step has begun and not ended."""
        return self.state == _RUNNING


@dataclass
class View:
    """The run: when its first event was, the stage it is in, and the rows of its nodes."""

    began: float | None = None
    stage: str = ""
    rows: dict[str, Row] = field(default_factory=dict)


def fold(view: View, event: Event) -> bool:
    """Take one event in; True where what a row or the run does is another thing now, not only further on."""
    at, data = datetime.fromisoformat(event.t).timestamp(), event.data
    view.began = at if view.began is None else view.began
    if event.kind == EventKind.STAGE:
        view.stage = str(data.get("text", ""))
        return bool(view.stage)
    if event.kind == EventKind.PLANNED:
        for node, seconds in (data.get("before") or {}).items():
            view.rows.setdefault(node, Row()).before = seconds
        return False
    if event.node is None or event.kind not in (EventKind.STEP_STARTED, EventKind.STEP_FINISHED, EventKind.NOW):
        return False
    row = view.rows.setdefault(event.node, Row())
    if event.kind == EventKind.STEP_STARTED:
        row.step, row.state, row.text, row.since, row.now = str(data.get("step", "")), _RUNNING, "", at, {}
        return True
    if event.kind == EventKind.STEP_FINISHED:
        began = row.since if row.running else at
        row.step, row.state, row.text = (str(data.get(key) or "") for key in ("step", "status", "text"))
        row.took = max(0.0, at - began)
        return True
    if not row.running or data.get("step") != row.step:
        return False
    before, row.now = row.now, data
    return any(before.get(key) != data.get(key) for key in ("phase", "unit", "silent"))


def left(row: Row, now: float) -> float | None:
    """Seconds until the step is done, as it took on this machine before; None where that is not known, or over."""
    rest = row.before.get(row.step, 0.0) - (now - row.since)
    return rest if row.running and rest > 0 else None


def doing(row: Row) -> str:
    """What a running step does now: `compiling 14 of 60 files: apex: adam.cu`; empty where nobody told it."""
    done, total, unit = (row.now.get(key) for key in ("done", "total", "unit"))
    words = [str(row.now.get("phase", ""))]
    if done is not None and unit == "bytes":
        words.append(f"{size(done)} of about {size(total)}" if total else size(done))
    elif done is not None and total:
        words.append(f"{done} of {total} {unit}")
    what = str(row.now.get("what", ""))
    return ": ".join(part for part in (" ".join(words).strip(), what) if part)


def timing(row: Row, now: float) -> str:
    """`1 min 32 s, about 2 min left` where this machine has done the step before; that it takes longer, or silence."""
    so_far, rest = duration(now - row.since), left(row, now)
    if silent := row.now.get("silent"):
        return f"{so_far}, no word for {duration(silent)}: the network, or the node"
    if rest is not None:
        return f"{so_far}, about {duration(rest)} left"
    return f"{so_far}, longer than before" if row.before.get(row.step) else so_far


def ended(row: Row) -> str:
    """How the last step ended, and what it said."""
    words = f"{row.label} {row.state} ({duration(row.took)})"
    return f"{words}: {row.text}" if row.text else words


def plain(node: str, row: Row, now: float) -> str:
    """One line for a row, for a file or a log."""
    if not row.running:
        return f"{node}: {ended(row)}"
    work = doing(row)
    return f"{node}: {row.label}{work and ' – '}{work} ({timing(row, now)})"


def rows(view: View, now: float, most: int = MOST_ROWS) -> list[str]:
    """Every row as a line; of more than `most` nodes those that do the same together, with the slowest."""
    active = _active(view)
    if len(active) <= most:
        return [plain(node, row, now) for node, row in active]
    classes: dict[tuple[str, str, str], list[str]] = {}
    for node, row in active:
        classes.setdefault((row.label, row.state, str(row.now.get("phase", ""))), []).append(node)
    return [_class(names, view, now) for _, names in sorted(classes.items(), key=lambda pair: -len(pair[1]))]


def _active(view: View) -> list[tuple[str, Row]]:
    return [(node, row) for node, row in sorted(view.rows.items()) if row.step]


def _class(names: Sequence[str], view: View, now: float) -> str:
    last = _slowest(names, view, now)
    row, count = view.rows[last], plural(len(names), "node")
    if not row.running:
        return f"{count}: {row.label} {row.state}"
    work = doing(row)
    return f"{count}: {row.label}; slowest {last}{work and ': '}{work} ({timing(row, now)})"


def _slowest(names: Sequence[str], view: View, now: float) -> str:
    return max(names, key=lambda node: (left(view.rows[node], now) or 0.0, -view.rows[node].since))


def total(view: View, now: float) -> str:
    """`1 min 50 s in all, slowest gpu3`, of all nodes together."""
    running = [node for node, row in view.rows.items() if row.running]
    words = [f"{duration(now - (now if view.began is None else view.began))} in all"]
    words += [f"slowest {_slowest(running, view, now)}"] if running and len(view.rows) > 1 else []
    return ", ".join(words)


def screen(view: View, now: float, height: int) -> list[str]:
    """The lines of a live display: per node its step and, below, what it does now; then the run as a whole."""
    spinner, active = _SPINNER[int(now * 2) % len(_SPINNER)], _active(view)
    if not active:
        return [f"{spinner} {view.stage} ({total(view, now)})"]
    whole = f"{view.stage}, {total(view, now)}" if view.stage else total(view, now)
    if len(active) > MOST_ROWS or 2 * len(active) > height - 2:
        return [*(f"{spinner} {line}" for line in rows(view, now, 0)), f"  {whole}"]
    lines = []
    for node, row in active:
        if not row.running:
            lines.append(f"  {node}  {ended(row)}")
            continue
        lines.append(f"{spinner} {node}  {row.label}, {timing(row, now)}")
        if work := doing(row):
            lines.append(f"    {work}")
    return [*lines, f"  {whole}"]


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `1 h 05 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
