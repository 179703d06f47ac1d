"""Tables of what a run measured and no picture shows: where the time went, copies between GPUs, steps, the disk."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from envbuild.model.evidence import Evidence, NodeEvidence
from envbuild.report.machines import gibibytes, seconds
from envbuild.report.sources import numbers
from envbuild.report.verdict import node_checks
from envbuild.text import number

Row = tuple[str, ...]
Rates = list[list[float | None]]
_ROWS = 400


@dataclass(frozen=True)
class Table:
    """Columns from `numbers` on are aligned as numbers; `left_out` rows are in the evidence only."""

    title: str
    headers: Row
    rows: tuple[Row, ...]
    numbers: int = 1
    left_out: int = 0

    @classmethod
    def of(cls, title: str, headers: Row, rows: Iterable[Row], numbers: int = 1) -> Table:
        """The first 400 rows, and how many are left out."""
        every = tuple(rows)
        return cls(title, headers, every[:_ROWS], numbers, max(0, len(every) - _ROWS))


def tables(evidence: Evidence) -> tuple[Table, ...]:
    """Those for which the evidence has the data."""
    steps = (row for node in evidence.nodes for row in _steps(node))
    told = ((node.node, _rates(check.details.get("peer_gbps"))) for node, check in node_checks(evidence))
    pairs = {who: rates for who, rates in told if rates}
    count = max(map(len, pairs.values()), default=0)
    to = tuple(f"to GPU {index}" for index in range(count))
    phases = ((name, seconds(took)) for name, took in evidence.phases.items())
    of_disk = ("Node", "File system", "Environment", "Files", "Free before", "Of")
    made = (
        Table.of("Phases of the run", ("Phase", "Time"), phases),
        Table.of("Steps on the nodes", ("Node", "Step", "Ended", "Began", "Took"), steps, 3),
        Table.of(
            "Steps of a training", ("Node", "Check", "Steps", "First", "Median", "Longest"), _trained(evidence), 2
        ),
        Table.of("Copies between GPUs, GB/s", ("Node", "From", *to), _copies(pairs, count), 2),
        Table.of("Disk", of_disk, _disks(evidence.nodes), 2),
    )
    return tuple(table for table in made if table.rows)


def _steps(node: NodeEvidence) -> Iterator[Row]:
    for step in node.steps:
        took = f"{step.seconds:.2f} s" if step.seconds is not None else "–"
        yield node.node, step.name, step.status, f"{step.began:.2f} s", took
        for part, took_part in step.parts.items():
            yield "", f"· {part}", "", "", f"{took_part:.2f} s"


def _trained(evidence: Evidence) -> Iterator[Row]:
    """The first step pays for start-up and stands apart."""
    for node, check in node_checks(evidence):
        first, *times = numbers(check.details.get("step_seconds")) or [0.0]
        if times:
            figures = (first, statistics.median_high(times), max(times))
            yield node.node, check.name, str(len(times) + 1), *(f"{value:.4g} s" for value in figures)


def _copies(pairs: dict[str, Rates], count: int) -> Iterator[Row]:
    """From (rows) and to (columns), the node with the slowest pair first."""
    slowest = sorted(pairs, key=lambda who: min(rate for row in pairs[who] for rate in row if rate is not None))
    for who in slowest:
        for index, rates in enumerate(pairs[who]):
            told = ["–" if rate is None else number(rate) for rate in rates]
            yield who, f"GPU {index}", *told, *(["–"] * (count - len(rates)))


def _rates(told: Any) -> Rates:
    """What a node told as rows of numbers, None for a GPU and itself; empty where it is anything else."""
    rows = told if isinstance(told, list) and 1 < len(told) <= 64 else []
    square = all(isinstance(row, list) and len(row) == len(rows) for row in rows)
    good = square and all(_is_rate(rate, a == b) for a, row in enumerate(rows) for b, rate in enumerate(row))
    return rows if good else []


def _is_rate(rate: Any, own: bool) -> bool:
    return rate is None if own else isinstance(rate, (int, float)) and math.isfinite(rate) and rate > 0


def _disks(nodes: Sequence[NodeEvidence]) -> list[Row]:
    """Those with the least room first."""
    rows = [
        (disk.free_bytes / disk.total_bytes, (node.node, disk.filesystem or "–", gibibytes(node.bytes),
         number(node.files or 0), gibibytes(disk.free_bytes), gibibytes(disk.total_bytes)))
        for node in nodes
        if node.bytes is not None and (disk := node.facts.prefix if node.facts else None) is not None
        and disk.total_bytes and disk.free_bytes is not None
    ]  # fmt: skip
    return [row for _, row in sorted(rows)]
