"""A run while it goes: its events folded into rows, and the rows as lines of text. Pure: the time is an argument.

Events are objects of JSON (docs/progress.md): `stage`, `planned`, `step` and `now`, each with `t`, seconds since
1970. What a row says of the time left rests on the plan, and on `done` of `total` where the work is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
# So long a phase is counted before its pace is believed.
_PACE_SECONDS = 5.0
# So much of a plan has to be over before it is believed that the machine is slower than that, and by how much at most.
_ENOUGH_SECONDS = 20.0
_SLOWEST = 10.0
_RUNNING = "started"
_COMPILING = "compiling "  # as the phase begins in which wheels are built
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass
class Row:
    """One node: its `step` and `state` since `since`, and under a running step what it told last (`now`).

    `planned` and `took`: seconds by step; `measured`: steps whose planned seconds are those of this host before;
    `compiling`: seconds by step that compiling adds, as it did before, once the step `compiles`; `ended`: seconds
    that estimates said of steps which have ended, and that these took, compiling aside.
    `phase`: since when the phase of `now` goes on, and what was done then; `counted`: when what is done changed last.
    """

    step: str = ""
    state: str = ""
    text: str = ""
    since: float = 0.0
    now: Mapping[str, Any] = field(default_factory=dict)
    phase: tuple[float, float] = (0.0, 0.0)
    counted: float = 0.0
    planned: dict[str, float] = field(default_factory=dict)
    measured: Sequence[str] = ()
    compiling: dict[str, float] = field(default_factory=dict)
    compiles: bool = False
    ended: tuple[float, float] = (0.0, 0.0)
    took: dict[str, float] = field(default_factory=dict)

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


def fold(view: View, event: Mapping[str, Any]) -> bool:
    """Take one event in; True where what a row or the run does is another thing now, not only further on."""
    at, kind = float(event.get("t") or 0.0), event.get("kind")
    view.began = at if view.began is None else view.began
    if kind == "stage":
        view.stage = str(event.get("text", ""))
        return bool(view.stage)
    if kind == "planned":
        for node, seconds in (event.get("seconds") or {}).items():
            row = view.rows.setdefault(node, Row())
            row.planned, row.measured = dict(seconds), (event.get("measured") or {}).get(node, ())
            row.compiling = dict((event.get("compiling") or {}).get(node, {}))
        return False
    row = view.rows.setdefault(str(event.get("node")), Row())
    if kind == "step":
        if row.running:  # of a job nobody says that a step has ended
            row.took[row.step] = at - row.since
        row.step, row.state, row.text = (str(event.get(key, "")) for key in ("step", "state", "text"))
        if row.running:
            row.since, row.now, row.phase, row.compiles = at, {}, (at, 0.0), False
        else:
            row.took[row.step] = took = max(0.0, at - row.since) if row.since else 0.0
            if row.step not in row.measured and not row.compiles:
                row.ended = row.ended[0] + row.planned.get(row.step, 0.0), row.ended[1] + took
        return True
    if kind != "now" or not row.running or event.get("step") != row.step:
        return False
    told = {key: event[key] for key in ("phase", "what", "done", "total", "unit") if key in event}
    other = (told.get("phase"), told.get("unit")) != (row.now.get("phase"), row.now.get("unit"))
    done, (since, before) = float(told.get("done") or 0.0), row.phase
    # A first file that takes no time (a module's list of functions) says nothing of the others.
    quick = told.get("unit") == "files" and done > before == 0.0 and at - since < _PACE_SECONDS
    if other or quick:
        row.phase = (at, done)
    if other or told.get("done") != row.now.get("done"):
        row.counted = at
    row.now = told
    row.compiles = row.compiles or str(told.get("phase", "")).startswith(_COMPILING)
    return other


def left(row: Row, now: float) -> float | None:
    """Seconds until the node is done, as far as plan and pace say; None where neither says anything."""
    if not row.running:
        return None
    planned = _planned(row, row.step) + (row.compiling.get(row.step, 0.0) if row.compiles else 0.0)
    by_plan = planned - (now - row.since)
    by_pace = _by_pace(row, now) or 0.0
    mine = max(by_plan, by_pace)
    if by_plan > by_pace > 0 and row.now.get("unit") == "files":  # the more is compiled, the more its pace counts
        mine = by_plan + (by_pace - by_plan) * float(row.now["done"]) / float(row.now["total"])
    if mine <= 0:
        return None
    return mine + sum(_planned(row, step) for step in _to_come(row) if step != row.step)


def _planned(row: Row, step: str) -> float:
    """Seconds of a step by the plan; an estimate is longer where those of this run were too short on the node."""
    seconds, (planned, took) = row.planned.get(step, 0.0), row.ended
    slow = step not in row.measured and planned >= _ENOUGH_SECONDS
    return seconds * min(max(took / planned, 1.0), _SLOWEST) if slow else seconds


def _by_pace(row: Row, now: float) -> float | None:
    """Seconds that what is counted now takes at the pace that it had until its count last changed."""
    since, before = row.phase
    done, total = (float(row.now.get(key) or 0.0) for key in ("done", "total"))
    if done <= before or total <= 0 or row.counted - since < _PACE_SECONDS:
        return None
    return (row.counted - since) * (total - done) / (done - before) - (now - row.counted)


def doing(row: Row, now: float) -> str:
    """What a running step does now: `compiling 14 of 60 files: apex: adam.cu`; empty where nobody told it."""
    done, total, unit = (row.now.get(key) for key in ("done", "total", "unit"))
    words = [str(row.now.get("phase", ""))]
    if done is not None and unit == "bytes":
        since, before = row.phase
        words.append(f"{size(done)} of about {size(total)}" if total else size(done))
        words += [f"({size((done - before) / (now - since))}/s)"] if now - since >= 1 and done > before else []
    elif done is not None and total:
        words.append(f"{done} of {total} {unit}")
    what = str(row.now.get("what", ""))
    return ": ".join(part for part in (" ".join(words).strip(), what) if part)


def timing(row: Row, now: float) -> str:
    """`1 min 32 s, about 2 min left`, `estimated` where nothing is measured yet; or that it takes longer."""
    told, rest, measured = duration(now - row.since), left(row, now), row.step in row.measured
    by_pace = _by_pace(row, now)
    compiling = str(row.now.get("phase", "")).startswith(_COMPILING)
    if compiling and by_pace is None and not measured and not row.compiling.get(row.step):
        return f"{told}, time left not known yet"  # what a plan says of a first compile is a guess
    if rest is not None:
        known = by_pace or all(step in row.measured for step in _to_come(row))
        return f"{told}, {'about' if known else 'estimated'} {duration(rest)} left"
    return f"{told}, longer than {'before' if measured else 'estimated'}" if row.planned.get(row.step) else told


def _to_come(row: Row) -> list[str]:
    """The running step and those behind it which the plan says take time."""
    return [step for step, seconds in row.planned.items() if seconds and (step == row.step or step not in row.took)]


def ended(row: Row) -> str:
    """How the last step ended, and what it said."""
    words = f"{row.label} {row.state} ({duration(row.took.get(row.step, 0.0))})"
    return f"{words}: {row.text}" if row.text else words


def plain(node: str, row: Row, now: float) -> str:
    """One line for a row, for a file or a log."""
    if not row.running:
        return f"{node}: {ended(row)}"
    work = doing(row, now)
    return f"{node}: {row.label}{work and ' – '}{work} ({timing(row, now)})"


def rows(view: View, now: float, most: int = MOST_ROWS) -> list[str]:
    """Every row as a line; of more than `most` nodes those that do the same together, with the slowest."""
    active = [(node, row) for node, row in sorted(view.rows.items()) if row.step]
    if len(active) <= most:
        return [plain(node, row, now) for node, row in active]
    classes: dict[tuple[str, str, str], list[str]] = {}
    for node, row in active:
        classes.setdefault((row.label, row.state, str(row.now.get("phase", ""))), []).append(node)
    return [_class(names, view, now) for _, names in sorted(classes.items(), key=lambda each: -len(each[1]))]


def _class(names: Sequence[str], view: View, now: float) -> str:
    last = _slowest(names, view, now)
    row = view.rows[last]
    count = plural(len(names), "node")
    if not row.running:
        return f"{count}: {row.label} {row.state}"
    work = doing(row, now)
    return f"{count}: {row.label}; slowest {last}{work and ': '}{work} ({timing(row, now)})"


def _slowest(names: Sequence[str], view: View, now: float) -> str:
    return max(names, key=lambda node: (left(view.rows[node], now) or 0.0, -view.rows[node].since))


def total(view: View, now: float) -> str:
    """`1 min 50 s in all, about 2 min left, slowest gpu3`, of all nodes together."""
    running = [node for node, row in view.rows.items() if row.running]
    words = [f"{duration(now - (now if view.began is None else view.began))} in all"]
    if running and len(view.rows) > 1:
        slowest = _slowest(running, view, now)
        rest = left(view.rows[slowest], now)
        words += [f"about {duration(rest)} left"] if rest is not None else []
        words += [f"slowest {slowest}"]
    return ", ".join(words)


def screen(view: View, now: float, height: int) -> list[str]:
    """The lines of a live display: per node its step and, below, what it does now; then the run as a whole."""
    spinner = _SPINNER[int(now * 2) % len(_SPINNER)]
    active = [(node, row) for node, row in sorted(view.rows.items()) if row.step]
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
        if work := doing(row, now):
            lines.append(f"    {work}")
    return [*lines, f"  {whole}"]


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `1 h 05 min`."""
    whole = max(0, round(min(seconds, 1e9)))  # a pace may say anything
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
