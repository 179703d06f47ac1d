"""Every figure beside its floor: how it spread, and where each node stands."""

from __future__ import annotations

from collections.abc import Sequence

from envbuild.model.evidence import Evidence, Metric
from envbuild.report.pictures.draw import Bar, Dot, Label, Picture, Row, Shape, Table, share, short
from envbuild.report.view import below_floor, figure, number, of_smaller_size
from envbuild.text import plural

HIGH = 62
TABLE = 400
Found = tuple[str, Metric]


def picture(evidence: Evidence) -> Picture | None:
    """One line for each figure, from 0 to the greatest that was seen or asked for."""
    by_name: dict[str, list[Found]] = {}
    for node in evidence.nodes:
        for check in node.checks:
            for metric in check.metrics:
                # Smaller sizes have a picture of their own.
                if metric.floor is not None or not of_smaller_size(metric, check):
                    by_name.setdefault(metric.name, []).append((node.node, metric))
    if not by_name:
        return None
    shapes = [shape for index, found in enumerate(by_name.values()) for shape in line(found, index * HIGH)]
    every = [each for found in by_name.values() for each in found]
    missed = [who for who, metric in every if below_floor(metric)]
    floors = sum(metric.floor is not None for _, metric in every)
    if missed:
        verdict = f"{len(missed)} of {plural(floors, 'floor')} missed, first on {missed[0]}."
    else:
        verdict = f"{plural(floors, 'floor')}, none missed." if floors else "No floor was asked for."
    says = f"{plural(len(by_name), 'figure')} from least to greatest, a dot for the median of each node. {verdict}"
    rows: list[Row] = [
        (who, m.name, number(m.median), number(m.least), number(m.greatest), floor_text(m), str(m.n), m.unit)
        for who, m in every
    ]
    headers = ("Node", "Figure", "Median", "Least", "Greatest", "Floor", "n", "Unit")
    table = Table(headers, tuple(rows[:TABLE]), 2, max(0, len(rows) - TABLE))
    keys = (("range", "least to greatest"), ("median", "median of a node"), *((("floor", "floor"),) if floors else ()))
    return Picture("measured", "Measured, beside the floors", says, HIGH * len(by_name), tuple(shapes), table, keys)


def floor_text(metric: Metric) -> str:
    """The floor and whether it is held."""
    return "–" if metric.floor is None else f"{number(metric.floor)} {'✗' if below_floor(metric) else '✓'}"


def line(found: Sequence[Found], y: float, name: str = "", most: float = 0.0) -> list[Shape]:
    """The figures of all nodes on one scale, which ends at `most`; 0: at the greatest of them."""
    metrics = [metric for _, metric in found]
    floor = max((m.floor for m in metrics if m.floor is not None), default=None)
    name = short(name or figure(metrics[0].name))
    least, most = min(m.least for m in metrics), max([most, *(m.greatest for m in metrics), floor or 0.0])
    if most <= 0:
        return [Label(0, y + 13, f"{name}: {number(metrics[0].median)}")]
    medians = sorted(m.median for m in metrics)
    ends = " to ".join(dict.fromkeys((number(medians[0]), number(medians[-1]))))
    asked = f", floor {number(floor)}" if floor is not None else ""
    shapes: list[Shape] = [Label(0, y + 13, name)]
    shapes.append(Label(0, y + 29, short(f"{ends} {metrics[0].unit}{asked}", 48), "quiet"))
    shapes.append(Bar(0, y + 35, 100, 14, "track"))
    left, right = share(least, most), share(max(m.greatest for m in metrics), most)
    shapes.append(Bar(left, y + 38, max(0.3, round(right - left, 2)), 8, "range"))
    # Nodes that are equal to a pixel are one dot; the worst ones are drawn last, on top.
    dots = {(round(share(m.median, most), 1), below_floor(m)): who for who, m in found}
    for (x, bad), who in sorted(dots.items(), key=lambda each: each[0][1]):
        shapes.append(Dot(x, y + 42, 5, "median failed" if bad else "median", who))
    if floor is not None:
        shapes.append(Bar(share(floor, most), y + 31, 0, 22, "floor", f"floor {number(floor)} {metrics[0].unit}"))
    return shapes
