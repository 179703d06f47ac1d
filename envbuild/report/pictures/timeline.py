"""What took the time: the steps of each node along the run, and the phases of a run that has no steps."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.model.evidence import Evidence, NodeEvidence, StepTime
from envbuild.report.pictures.draw import Bar, Label, Picture, Row, Shape, Table, axis, share, short
from envbuild.report.verdict import GOOD
from envbuild.text import plural

MOST = 12
_KINDS = {"toolchain": "k1", "deliver": "k2", "install": "k3", "unpack": "k3", "ensure": "k3", "smoke": "k4"}
_KINDS |= {"activate": "k5", "meet": "k6"}
_BAD = ("failed", "unreachable", "overdue", "started")
_LINE = 40


def picture(evidence: Evidence) -> Picture | None:
    """One bar for each node, those that took longest or failed first."""
    nodes = [node for node in evidence.nodes if node.steps]
    if not nodes:
        return None
    end = max(_end(step) for node in nodes for step in node.steps)
    shown = sorted(nodes, key=lambda node: (node.status in GOOD, -_end(node.steps[-1])))[:MOST]
    shapes: list[Shape] = [*axis(end, _LINE * len(shown))]
    for index, node in enumerate(shown):
        shapes += _line(node, index * _LINE, end)
    steps = [step for node in shown for step in node.steps]
    names = dict.fromkeys(step.name for step in steps if step.status not in _BAD)
    slowest = max((step for node in nodes for step in node.steps), key=lambda step: step.seconds or 0)
    says = (
        f"The longest step is {slowest.name} with {slowest.seconds or 0:.1f} s; the last one ended after {end:.1f} s."
    )
    if len(shown) < len(nodes):
        says += f" Shown are {len(shown)} of {plural(len(nodes), 'node')}: those that failed or took longest."
    rows = [row for node in nodes for row in _rows(node)]
    table = Table.of(("Node", "Step", "Ended", "Began", "Took"), rows, 3)
    keys = tuple((_KINDS.get(name, "k6"), name) for name in names)
    keys += (("failed", "failed"),) if any(step.status in _BAD for step in steps) else ()
    return Picture("timeline", "Where the time went", says, _LINE * len(shown) + 20, tuple(shapes), table, keys)


def _end(step: StepTime) -> float:
    return step.began + (step.seconds or 0.0)


def _line(node: NodeEvidence, y: float, end: float) -> Iterator[Shape]:
    yield Label(0, y + 13, f"{short(node.node)}: {node.status}, {_end(node.steps[-1]):.1f} s")
    for step in node.steps:
        took = f"{step.seconds:.1f} s" if step.seconds is not None else "did not end"
        says = f"{node.node}: {step.name}, {step.status}, {took}"
        width = max(0.3, share(step.seconds or 0.0, end))
        bad = " failed" if step.status in _BAD else ""
        yield Bar(share(step.began, end), y + 19, width, 14, _KINDS.get(step.name, "k6") + bad, says)


def _rows(node: NodeEvidence) -> Iterator[Row]:
    for step in node.steps:
        took = f"{step.seconds:.2f} s" if step.seconds is not None else "–"
        yield node.node, step.name, step.status, f"{step.began:.2f} s", took
        for part, seconds in step.parts.items():
            yield "", f"· {part}", "", "", f"{seconds:.2f} s"
