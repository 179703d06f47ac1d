"""Copies from each GPU to each other one as a heat map, so that a link that is slower than its like is seen."""

from __future__ import annotations

import math
import statistics
from typing import Any

from envbuild.model.evidence import Evidence
from envbuild.report.pictures.draw import Label, Picture, Row, Shape, Table, short
from envbuild.report.pictures.gpus import KEYS, LEFT, cell
from envbuild.report.verdict import node_checks
from envbuild.text import number, plural

MOST = 4
_LINE = 26
Rates = list[list[float | None]]


def picture(evidence: Evidence) -> Picture | None:
    """A square of rows (from) and columns (to) for each node, those with the slowest pair first."""
    found = {
        node.node: rates for node, check in node_checks(evidence) if (rates := _rates(check.details.get("peer_gbps")))
    }
    if not found:
        return None
    pairs = sorted((rate, who, a, b) for who, rates in found.items() for rate, a, b in _pairs(rates))
    slowest = sorted(found, key=lambda who: min(_pairs(found[who])))
    middle, (least, low, source, target) = statistics.median(rate for rate, *_ in pairs), pairs[0]
    shapes, y = list[Shape](), 0
    for who in slowest[:MOST]:
        shapes += _square(who, found[who], middle, y)
        y += _LINE * (len(found[who]) + 1)
    says = (
        f"{plural(len(pairs), 'pair')}, {number(least)} to {number(pairs[-1][0])} GB/s, median {number(middle)}. The "
        f"slowest goes from GPU {source} to GPU {target} of {low}, {100 * least / middle:.1f} % of the median."
    )
    if len(found) > MOST:
        says += f" Shown are the {MOST} nodes with the slowest pairs of {len(found)}."
    count = max(map(len, found.values()))
    rows = [_row(who, index, rates, count) for who in slowest for index, rates in enumerate(found[who])]
    table = Table.of(("Node", "From", *(f"to GPU {index}" for index in range(count))), rows, 2)
    return Picture("peers", "Copies between GPUs, GB/s", says, y, tuple(shapes), table, KEYS)


def _rates(told: Any) -> Rates:
    """What a node told as rows of numbers, None for a GPU and itself; empty where it is anything else."""
    rows = told if isinstance(told, list) and 1 < len(told) <= 64 else []
    square = all(isinstance(row, list) and len(row) == len(rows) for row in rows)
    good = square and all(_good(rate, a == b) for a, row in enumerate(rows) for b, rate in enumerate(row))
    return rows if good else []


def _good(rate: Any, own: bool) -> bool:
    return rate is None if own else isinstance(rate, (int, float)) and math.isfinite(rate) and rate > 0


def _pairs(rates: Rates) -> list[tuple[float, int, int]]:
    return [(rate, a, b) for a, row in enumerate(rates) for b, rate in enumerate(row) if rate is not None]


def _square(who: str, rates: Rates, middle: float, y: float) -> list[Shape]:
    count = len(rates)
    shapes: list[Shape] = [Label(0, y + 16, short(who, 9))]
    shapes += [
        Label(round(LEFT + (b + 0.485) * (100 - LEFT) / count, 2), y + 16, f"→ {b}", "quiet", "middle")
        for b in range(count)
        if count <= 8
    ]
    for a in range(count):
        shapes.append(Label(0, y + (a + 1) * _LINE + 16, f"GPU {a}", "quiet"))
    for rate, a, b in _pairs(rates):
        says = f"{who}, GPU {a} to GPU {b}: {rate:.1f} GB/s"
        shapes += cell(says, b, rate, middle, count, y + (a + 1) * _LINE + 1)
    return shapes


def _row(who: str, index: int, rates: list[float | None], count: int) -> Row:
    told = ["–" if rate is None else number(rate) for rate in rates]
    return (who, f"GPU {index}", *told, *(["–"] * (count - len(rates))))
