"""Nodes and GPUs whose figure lies outside the spread of nodes with equal facts: one slow among many alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median_low

from envbuild.model.evidence import Metric, NodeEvidence
from envbuild.report.machines import NodeClass
from envbuild.report.pictures import rates
from envbuild.report.tables import figure
from envbuild.text import number

LEAST = 3
"""Of fewer nodes nobody can say which one is the odd one."""


@dataclass(frozen=True)
class Outlier:
    """A figure of a node, or of one GPU of it, and the spread on the usual node of its class; `off` is its distance."""

    node: str
    what: str
    measured: str
    usual: str
    off: float
    worse: bool

    @property
    def percent(self) -> str:
        """`-12.8 %`, against the usual median."""
        return f"{100 * self.off:+.1f} %"


@dataclass(frozen=True)
class Outliers:
    """What deviates, worst first, of `figures` that were compared on `nodes` nodes in all."""

    found: tuple[Outlier, ...]
    figures: int
    nodes: int


def outliers(nodes: Sequence[NodeEvidence], classes: Sequence[NodeClass]) -> Outliers | None:
    """Compare each node with the usual one of its class; None where no three nodes of a class measured the same."""
    by_name = {node.node: node for node in nodes}
    found, compared, seen = list[Outlier](), set[str](), set[str]()
    for each in classes:
        groups: dict[str, list[tuple[NodeEvidence, Metric]]] = {}
        for node in (by_name[name] for name in each.nodes):
            for metric in (metric for check in node.checks for metric in check.metrics if metric.n > 1):
                groups.setdefault(metric.name, []).append((node, metric))
        for name, group in groups.items():
            if len(group) >= LEAST:
                compared.add(name)
                seen |= {node.node for node, _ in group}
                found += _odd(name, group)
    found.sort(key=lambda it: (not it.worse, -abs(it.off)))
    return Outliers(tuple(found), len(compared), len(seen)) if compared else None


def _odd(name: str, group: Sequence[tuple[NodeEvidence, Metric]]) -> Iterator[Outlier]:
    """What lies outside the least and greatest of the node in the middle."""
    middle = median_low(metric.median for _, metric in group)
    usual = next(metric for _, metric in group if metric.median == middle)
    spread = f"{number(usual.median)} ({number(usual.least)} to {number(usual.greatest)})"
    for node, metric in group:
        told = [(figure(name), metric.median)]
        told += [(f"{figure(name)}: GPU {gpu}", value) for gpu, value in rates(node, name)]
        for what, value in told:
            if not usual.least <= value <= usual.greatest:
                worse = (value > usual.greatest) == metric.lower_is_better
                off = value / usual.median - 1 if usual.median else 0.0
                yield Outlier(node.node, what, f"{number(value)} {metric.unit}", spread, off, worse)
