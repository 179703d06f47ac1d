"""Every figure beside its floor: how it spread, and where each node stands."""

from __future__ import annotations

from collections.abc import Sequence

from envbuild.model.evidence import Evidence, Metric
from envbuild.report.pictures.draw import Bar, Dot, Label, Picture, Shape, Table, share, short
from envbuild.report.view import below_floor, figure, largest
from envbuild.text import number, plural

HIGH = 62
Found = tuple[str, Metric]


def picture(evidence: Evidence) -> Picture | None:
    """One line for each figure, from 0 to the greatest that was seen or asked for."""
    by_name = {name: [(who, metric) for who, metric, _ in found] for name, found in largest(evidence).items()}
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
    table = table_of("Figure", [(who, metric.name, metric) for who, metric in every])
    height = HIGH * len(by_name)
    return Picture("measured", "Measured, beside the floors", says, height, tuple(shapes), table, keys(floors > 0))


def keys(floors: bool) -> tuple[tuple[str, str], ...]:
    """What the shapes of `line` mean; `floors`: there are some."""
    return ("range", "least to greatest"), ("median", "median of a node"), *((("floor", "floor"),) if floors else ())


def table_of(of: str, rows: Sequence[tuple[str, str, Metric]]) -> Table:
    """The metrics of (node, what, metric); `of` heads the column of what they are."""
    headers = ("Node", of, "Median", "Least", "Greatest", "Floor", "n", "Unit")
    cells = [
        (who, what, number(m.median, m.floor), number(m.least), number(m.greatest), _floor(m), str(m.n), m.unit)
        for who, what, m in rows
    ]
    return Table.of(headers, cells, 2)


def _floor(metric: Metric) -> str:
    """The floor and whether it is held."""
    return (
        "–" if metric.floor is None else f"{number(metric.floor, metric.median)} {'✗' if below_floor(metric) else '✓'}"
    )


def line(found: Sequence[Found], y: float, name: str = "", most: float = 0.0) -> list[Shape]:
    """The figures of all nodes on one scale, which ends at `most`; 0: at the greatest of them."""
    metrics = [metric for _, metric in found]
    floors = sorted({m.floor for m in metrics if m.floor is not None})
    name = short(name or figure(metrics[0].name))
    least, most = min(m.least for m in metrics), max([most, *(m.greatest for m in metrics), *floors])
    if most <= 0:
        return [Label(0, y + 13, f"{name}: {number(metrics[0].median)}")]
    medians = sorted(m.median for m in metrics)
    asked = f", floor {_ends(floors)}" if floors else ""
    shapes: list[Shape] = [Label(0, y + 13, name)]
    shapes.append(Label(0, y + 29, short(f"{_ends(medians)} {metrics[0].unit}{asked}", 48), "quiet"))
    shapes.append(Bar(0, y + 35, 100, 14, "track"))
    left, right = share(least, most), share(max(m.greatest for m in metrics), most)
    shapes.append(Bar(left, y + 38, max(0.3, round(right - left, 2)), 8, "range"))
    # Nodes that are equal to a pixel are one dot; the worst ones are drawn last, on top.
    dots = {(round(share(m.median, most), 1), below_floor(m)): who for who, m in found}
    for (x, bad), who in sorted(dots.items(), key=lambda each: each[0][1]):
        shapes.append(Dot(x, y + 42, 5, "median failed" if bad else "median", who))
    for floor in floors:
        shapes.append(Bar(share(floor, most), y + 31, 0, 22, "floor", f"floor {number(floor)} {metrics[0].unit}"))
    return shapes


def _ends(ordered: Sequence[float]) -> str:
    """The first and the last, once where they read alike."""
    return " to ".join(dict.fromkeys((number(ordered[0]), number(ordered[-1]))))
