"""Loss and time of each step of a training, one curve for each node."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from envbuild.model.evidence import Evidence
from envbuild.report.equality import names
from envbuild.report.pictures.draw import Curve, Label, Picture, Row, Shape, Table, polyline
from envbuild.report.sources import numbers
from envbuild.report.verdict import node_checks
from envbuild.text import grouped, plural

MOST = 6
_HIGH = 130
_Values = tuple[str, Sequence[float]]


@dataclass(frozen=True)
class _Run:
    who: str
    losses: tuple[float, ...]
    times: tuple[float, ...]


def pictures(evidence: Evidence) -> list[Picture]:
    """Loss, then seconds, of each check that tells them."""
    by_check: dict[str, list[_Run]] = {}
    for node, check in node_checks(evidence):
        found = _Run(node.node, *(tuple(numbers(check.details.get(name))) for name in ("losses", "step_seconds")))
        if len(found.losses) > 1:
            by_check.setdefault(check.name, []).append(found)
    return [each for name, runs in by_check.items() for each in (_loss(name, runs), _time(name, runs)) if each]


def _loss(name: str, runs: Sequence[_Run]) -> Picture:
    first, last = runs[0].losses[0], runs[0].losses[-1]
    """Nodes with the very same losses share a curve."""
    says = f"On {runs[0].who} the loss went from {first:.4g} to {last:.4g} in {len(runs[0].losses)} steps."
    alike = grouped(runs, lambda run: run.losses)
    curves = [(names([run.who for run in same]), values) for values, same in alike.items()]
    if len(runs) > 1 and len(curves) == 1:
        says += f" The curve is the same on all {plural(len(runs), 'node')}."
    return _curves(f"loss-{name.replace('/', '-')}", f"Loss, {name}", says, curves, 1)


def _time(name: str, runs: Sequence[_Run]) -> Picture | None:
    """The first step pays for start-up and would press all others to the ground: it is said, not drawn."""
    timed = sorted((run for run in runs if len(run.times) > 2), key=lambda run: -_middle(run))
    if not timed:
        return None
    one = timed[0]
    slowest = ", no other is slower" if len(timed) > 1 else ""
    says = f"On {one.who} a step took {_middle(one):.4g} s (median{slowest}); "
    says += f"the first one, {one.times[0]:.4g} s, is not drawn."
    curves = [(run.who, run.times[1:]) for run in timed]
    return _curves(f"steps-{name.replace('/', '-')}", f"Time of each step, {name}", says, curves, 2, " s")


def _middle(run: _Run) -> float:
    return statistics.median_high(run.times[1:])


def _curves(id_: str, title: str, says: str, runs: Sequence[_Values], begin: int, unit: str = "") -> Picture:
    shown = runs[:MOST]
    most = max(max(values) for _, values in shown)
    shapes: list[Shape] = [Label(0, 11, f"{most:.4g}{unit}", "quiet")]
    shapes.append(Curve(18, _HIGH, "0,1000 1000,1000", "ground"))
    for index, (_, values) in enumerate(shown):
        shapes.append(Curve(18, _HIGH, polyline(values, most), f"c{index + 1}"))
    under = 18 + _HIGH + 15
    count = max(len(values) for _, values in shown)
    shapes += [Label(0, under, f"0{unit}, step {begin}", "quiet")]
    shapes += [Label(100, under, f"step {begin + count - 1}", "quiet", "end")]
    if len(runs) > MOST:
        says += f" Shown are {MOST} of {plural(len(runs), 'curve')}."
    rows: list[Row] = [
        (str(at + begin), *(f"{values[at]:.5g}" if at < len(values) else "–" for _, values in shown))
        for at in range(count)
    ]
    table = Table.of(("Step", *(who for who, _ in shown)), rows, 0)
    keys = tuple((f"c{index + 1}", who) for index, (who, _) in enumerate(shown)) if len(shown) > 1 else ()
    return Picture(id_, title, says, under + 6, tuple(shapes), table, keys)
