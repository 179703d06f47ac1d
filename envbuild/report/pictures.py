"""Pictures of what a reviewer looks at first: figures with their floors, every GPU, the loss. Made of evidence alone.

x and widths are percent of a picture's width, y and heights are pixels, so text never scales. The template writes the
SVG, escaped: drawsvg 2.4 writes attributes unescaped and takes 0.2 s to import; svgwrite is not maintained any more.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from envbuild.model.evidence import Evidence, Metric, NodeEvidence
from envbuild.report.equality import names
from envbuild.report.sources import numbers
from envbuild.report.tables import Row, Table, below_floor, figure, largest
from envbuild.report.verdict import node_checks
from envbuild.text import grouped, number, plural

_NODES, _CURVES = 32, 6
_FIGURE, _LINE, _CURVE = 62, 26, 130
# Percent of the width for the names beside GPUs, short: the table has them whole.
_LEFT = 18.0
_GEMM_KEY = re.compile(r"gpu([0-9]{1,2})_([a-z0-9]{1,12})_tflops")


@dataclass(frozen=True)
class Bar:
    """A rectangle; `kind` is a class of the style sheet, `says` its tooltip."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    says: str = ""
    shape: Literal["bar"] = "bar"


@dataclass(frozen=True)
class Dot:
    """A circle of radius `r` pixels."""

    x: float
    y: float
    r: float
    kind: str
    says: str = ""
    shape: Literal["dot"] = "dot"


@dataclass(frozen=True)
class Label:
    """A line of text; `anchor` as in SVG."""

    x: float
    y: float
    text: str
    kind: str = ""
    anchor: Literal["start", "middle", "end"] = "start"
    shape: Literal["label"] = "label"


@dataclass(frozen=True)
class Curve:
    """A line through points, each 0 to 1000 from the left and from the top of a box that is as wide as the picture."""

    y: float
    height: float
    points: str
    kind: str
    shape: Literal["curve"] = "curve"


Shape = Bar | Dot | Label | Curve


@dataclass(frozen=True)
class Picture:
    """`says` describes it in words and is the alternative text; `keys` are (kind, meaning)."""

    id: str
    says: str
    height: float
    shapes: tuple[Shape, ...]
    table: Table
    keys: tuple[tuple[str, str], ...] = ()


def pictures(evidence: Evidence) -> tuple[Picture, ...]:
    """Those for which the evidence has the data, in the order of the page."""
    return (*_measured(evidence), *_gpus(evidence), *_losses(evidence))


def _share(value: float, most: float) -> float:
    """Percent of `most`, in hundredths, at least 0 and at most 100."""
    return round(min(100.0, max(0.0, 100.0 * value / most)), 2) if most > 0 else 0.0


def _short(name: str, most: int = 36) -> str:
    """A name that fits a narrow screen; the table has all of it."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-most // 2 + 1 :]}"


def _measured(evidence: Evidence) -> Iterator[Picture]:
    """One line for each figure, from 0 to the greatest that was seen or asked for; its table has all sizes, too."""
    by_name = {name: [(who, metric) for who, metric, _ in rows] for name, rows in largest(evidence).items()}
    if not by_name:
        return
    shapes = [shape for index, rows in enumerate(by_name.values()) for shape in _line(rows, index * _FIGURE)]
    every = [row for rows in by_name.values() for row in rows]
    missed = [who for who, metric in every if below_floor(metric)]
    floors = sum(metric.floor is not None for _, metric in every)
    if missed:
        verdict = f"{len(missed)} of {plural(floors, 'floor')} missed, first on {missed[0]}."
    else:
        verdict = f"{plural(floors, 'floor')}, none missed." if floors else "No floor was asked for."
    says = f"{plural(len(by_name), 'figure')} from least to greatest, a dot for the median of each node. {verdict}"
    rows = [_numbers(node.node, metric) for node, check in node_checks(evidence) for metric in check.metrics]
    headers = ("Node", "Figure", "Median", "Least", "Greatest", "Floor", "n", "Unit")
    table = Table.of("Measured, beside the floors" if floors else "Measured", headers, rows, 2)
    keys = ("range", "least to greatest"), ("median", "median of a node"), *((("floor", "floor"),) if floors else ())
    yield Picture("measured", says, _FIGURE * len(by_name), tuple(shapes), table, keys)


def _numbers(who: str, m: Metric) -> Row:
    floor = "–" if m.floor is None else f"{number(m.floor, m.median)} {'✗' if below_floor(m) else '✓'}"
    return who, m.name, number(m.median, m.floor), number(m.least), number(m.greatest), floor, str(m.n), m.unit


def _line(rows: Sequence[tuple[str, Metric]], y: float) -> list[Shape]:
    """The figures of all nodes on one scale, which ends at the greatest of them."""
    metrics = [metric for _, metric in rows]
    floors = sorted({m.floor for m in metrics if m.floor is not None})
    name, unit = _short(figure(metrics[0].name)), metrics[0].unit
    least, most = min(m.least for m in metrics), max([*(m.greatest for m in metrics), *floors])
    if most <= 0:
        return [Label(0, y + 13, f"{name}: {number(metrics[0].median)}")]
    medians = sorted(m.median for m in metrics)
    asked = f", floor {_ends(floors)}" if floors else ""
    shapes: list[Shape] = [Label(0, y + 13, name)]
    shapes.append(Label(0, y + 29, _short(f"{_ends(medians)} {unit}{asked}", 48), "quiet"))
    shapes.append(Label(100, y + 13, f"0 to {number(most)} {unit}", "quiet", "end"))
    shapes.append(Bar(0, y + 35, 100, 14, "track"))
    left, right = _share(least, most), _share(max(m.greatest for m in metrics), most)
    shapes.append(Bar(left, y + 38, max(0.3, round(right - left, 2)), 8, "range"))
    # Nodes that are equal to a pixel are one dot; the worst ones are drawn last, on top.
    dots = {(round(_share(m.median, most), 1), below_floor(m)): who for who, m in rows}
    for (x, bad), who in sorted(dots.items(), key=lambda dot: dot[0][1]):
        shapes.append(Dot(x, y + 42, 5, "median failed" if bad else "median", who))
    for floor in floors:
        shapes.append(Bar(_share(floor, most), y + 31, 0, 22, "floor", f"floor {number(floor)} {unit}"))
    return shapes


def _ends(ordered: Sequence[float]) -> str:
    """The first and the last, once where they read alike."""
    return " to ".join(dict.fromkeys((number(ordered[0]), number(ordered[-1]))))


def _gpus(evidence: Evidence) -> Iterator[Picture]:
    """Matrix products of every GPU as a heat map, one for each precision in which several GPUs were measured."""
    by_kind: dict[str, dict[str, dict[int, float]]] = {}
    for node in evidence.nodes:
        for kind, gpu, value in _gemm_rates(node):
            by_kind.setdefault(kind, {}).setdefault(node.node, {})[gpu] = value
    for kind, nodes in sorted(by_kind.items()):
        if sum(map(len, nodes.values())) > 1:
            yield _heat(kind, nodes)


def rates(node: NodeEvidence, metric: str) -> list[tuple[int, float]]:
    """(GPU, TFLOP/s) of those whose products a metric is of."""
    return [(gpu, value) for kind, gpu, value in _gemm_rates(node) if metric == f"gemm_cuda_{kind}_tflops"]


def _gemm_rates(node: NodeEvidence) -> Iterator[tuple[str, int, float]]:
    """Precision, GPU and TFLOP/s."""
    for check in node.checks:
        for key, value in check.details.items():
            match = _GEMM_KEY.fullmatch(key)
            if match and isinstance(value, (int, float)) and 0 < value < 1e9:
                yield match[2], int(match[1]), float(value)


def _heat(kind: str, nodes: Mapping[str, Mapping[int, float]]) -> Picture:
    values = sorted(value for row in nodes.values() for value in row.values())
    middle, count = statistics.median(values), 1 + max(max(row) for row in nodes.values())
    slowest = sorted(nodes, key=lambda who: min(nodes[who].values()))
    shapes: list[Shape] = []
    for line, who in enumerate(slowest[:_NODES]):
        host = who if who.replace(".", "").isdigit() else who.partition(".")[0]
        shapes.append(Label(0, line * _LINE + 16, _short(host, 9)))
        for gpu, value in sorted(nodes[who].items()):
            says = f"{who}, GPU {gpu}: {value:.1f} TFLOP/s"
            shapes += _cell(says, gpu, value, middle, count, line * _LINE + 1)
    low = slowest[0]
    at = min(nodes[low], key=lambda gpu: nodes[low][gpu])
    says = (
        f"{plural(len(values), 'GPU')}, {number(values[0])} to {number(values[-1])} TFLOP/s, median {number(middle)}. "
        f"The slowest is GPU {at} of {low}, {100 * nodes[low][at] / middle:.1f} % of the median."
    )
    if len(nodes) > _NODES:
        says += f" Shown are the {_NODES} nodes with the slowest GPUs of {len(nodes)}."
    rows = [(who, *(number(nodes[who][gpu]) if gpu in nodes[who] else "–" for gpu in range(count))) for who in slowest]
    title = f"Matrix products of every GPU, {kind}, TFLOP/s"
    table = Table.of(title, ("Node", *(f"GPU {gpu}" for gpu in range(count))), rows)
    keys = ("h9", "slower by 10 % or more"), ("h5", "by 5 %"), ("h0", "as fast as the median, or faster")
    return Picture(f"gpus-{kind}", says, _LINE * min(_NODES, len(nodes)), tuple(shapes), table, keys)


def _cell(says: str, column: int, value: float, middle: float, count: int, y: float) -> list[Shape]:
    """A square of a heat map: the redder, the further below `middle`; its number where few stand beside each other."""
    wide = (100 - _LEFT) / count
    x = _LEFT + column * wide
    level = min(9, max(0, int((1 - value / middle) * 90)))
    box = Bar(round(x, 2), y, round(wide * 0.97, 2), 22, f"h{level}", says)
    shown = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    text = Label(round(x + 0.485 * wide, 2), y + 15, shown, "", "middle")
    return [box, text] if count <= 8 else [box]


def _losses(evidence: Evidence) -> Iterator[Picture]:
    """The loss of each check that tells it; nodes with the very same losses share a curve."""
    by_check: dict[str, list[tuple[str, tuple[float, ...]]]] = {}
    for node, check in node_checks(evidence):
        losses = tuple(numbers(check.details.get("losses")))
        if len(losses) > 1:
            by_check.setdefault(check.name, []).append((node.node, losses))
    for name, runs in by_check.items():
        who, losses = runs[0]
        of = " of envbuild's own test model" if name == "smoke/training" else ""
        says = f"On {who} the loss{of} went from {losses[0]:.4g} to {losses[-1]:.4g} in {len(losses)} steps."
        alike = grouped(runs, lambda run: run[1])
        curves = [(names([node for node, _ in same]), values) for values, same in alike.items()]
        if len(runs) > 1 and len(curves) == 1:
            says += f" The curve is the same on all {plural(len(runs), 'node')}."
        yield _curves(name, says, curves)


def _curves(name: str, says: str, runs: Sequence[tuple[str, Sequence[float]]]) -> Picture:
    shown = runs[:_CURVES]
    most, count = max(max(values) for _, values in shown), max(len(values) for _, values in shown)
    shapes: list[Shape] = [Label(0, 11, f"{most:.4g}", "quiet"), Curve(18, _CURVE, "0,1000 1000,1000", "ground")]
    for index, (_, values) in enumerate(shown, 1):
        wide, high = len(values) - 1, most or 1.0
        points = " ".join(f"{1000 * i / wide:.0f},{1000 * (most - v) / high:.0f}" for i, v in enumerate(values))
        shapes.append(Curve(18, _CURVE, points, f"c{index}"))
    under = 18 + _CURVE + 15
    shapes += [Label(0, under, "0, step 1", "quiet"), Label(100, under, f"step {count}", "quiet", "end")]
    if len(runs) > _CURVES:
        says += f" Shown are {_CURVES} of {plural(len(runs), 'curve')}."
    rows = [
        (str(at + 1), *(f"{values[at]:.5g}" if at < len(values) else "–" for _, values in shown)) for at in range(count)
    ]
    table = Table.of(f"Loss, {name}", ("Step", *(who for who, _ in shown)), rows, 0)
    keys = tuple((f"c{index}", who) for index, (who, _) in enumerate(shown, 1)) if len(shown) > 1 else ()
    return Picture(f"loss-{name.replace('/', '-')}", says, under + 6, tuple(shapes), table, keys)
