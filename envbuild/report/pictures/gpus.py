"""The matrix products of every GPU of every node as a heat map, so that one slow GPU is seen among many."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping

from envbuild.model.evidence import Evidence, NodeEvidence
from envbuild.report.pictures.draw import Bar, Label, Picture, Row, Shape, Table, short
from envbuild.text import number, plural

MOST = 32
_TOLD = re.compile(r"gpu([0-9]{1,2})_([a-z0-9]{1,12})_tflops")
_LINE = 26
LEFT = 18.0
"""Percent of the width for the names, short: the table has them whole."""
KEYS = (("h9", "slower by 10 % or more"), ("h5", "by 5 %"), ("h0", "as fast as the median, or faster"))


def pictures(evidence: Evidence) -> Iterator[Picture]:
    """One for each precision in which several GPUs were measured."""
    by_kind: dict[str, dict[str, dict[int, float]]] = {}
    for node in evidence.nodes:
        for kind, gpu, value in _told(node):
            by_kind.setdefault(kind, {}).setdefault(node.node, {})[gpu] = value
    for kind, nodes in sorted(by_kind.items()):
        if sum(map(len, nodes.values())) > 1:
            yield _heat(kind, nodes)


def rates(node: NodeEvidence, metric: str) -> list[tuple[int, float]]:
    """(GPU, TFLOP/s) of those whose products a metric is of."""
    return [(gpu, value) for kind, gpu, value in _told(node) if metric == f"gemm_cuda_{kind}_tflops"]


def _told(node: NodeEvidence) -> Iterator[tuple[str, int, float]]:
    """Precision, GPU and TFLOP/s."""
    for check in node.checks:
        for key, value in check.details.items():
            match = _TOLD.fullmatch(key)
            if match and isinstance(value, (int, float)) and 0 < value < 1e9:
                yield match[2], int(match[1]), float(value)


def _heat(kind: str, nodes: Mapping[str, Mapping[int, float]]) -> Picture:
    values = sorted(value for row in nodes.values() for value in row.values())
    middle, count = statistics.median(values), 1 + max(max(row) for row in nodes.values())
    slowest = sorted(nodes, key=lambda who: min(nodes[who].values()))
    shapes: list[Shape] = []
    for line, who in enumerate(slowest[:MOST]):
        shapes.append(Label(0, line * _LINE + 16, short(_host(who), 9)))
        for gpu, value in sorted(nodes[who].items()):
            says = f"{who}, GPU {gpu}: {value:.1f} TFLOP/s"
            shapes += cell(says, gpu, value, middle, count, line * _LINE + 1)
    low = slowest[0]
    at = min(nodes[low], key=lambda gpu: nodes[low][gpu])
    says = (
        f"{plural(len(values), 'GPU')}, {number(values[0])} to {number(values[-1])} TFLOP/s, median {number(middle)}. "
        f"The slowest is GPU {at} of {low}, {100 * nodes[low][at] / middle:.1f} % of the median."
    )
    if len(nodes) > MOST:
        says += f" Shown are the {MOST} nodes with the slowest GPUs of {len(nodes)}."
    rows: list[Row] = [
        (who, *(number(nodes[who][gpu]) if gpu in nodes[who] else "–" for gpu in range(count))) for who in slowest
    ]
    table = Table.of(("Node", *(f"GPU {gpu}" for gpu in range(count))), rows)
    title = f"Matrix products of every GPU, {kind}, TFLOP/s"
    return Picture(f"gpus-{kind}", title, says, _LINE * min(MOST, len(nodes)), tuple(shapes), table, KEYS)


def _host(name: str) -> str:
    """Without its domain."""
    return name if name.replace(".", "").isdigit() else name.partition(".")[0]


def cell(says: str, column: int, value: float, middle: float, count: int, y: float) -> list[Shape]:
    """A square of a heat map: the redder, the further below `middle`; its number where few stand beside each other."""
    wide = (100 - LEFT) / count
    x = LEFT + column * wide
    level = min(9, max(0, int((1 - value / middle) * 90)))
    box = Bar(round(x, 2), y, round(wide * 0.97, 2), 22, f"h{level}", says)
    said = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    text = Label(round(x + 0.485 * wide, 2), y + 15, said, "", "middle")
    return [box, text] if count <= 8 else [box]
