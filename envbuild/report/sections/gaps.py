"""What was not checked: as large as the rest, because silence reads as a yes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median_low

from packaging.utils import canonicalize_name

from envbuild.model.evidence import Evidence, Metric, NodeEvidence
from envbuild.report.machines import NodeClass
from envbuild.report.pictures import rates
from envbuild.report.sections.claims import Claim, Pin
from envbuild.report.sources import built_names
from envbuild.report.tables import figure
from envbuild.text import few, number, plural

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


@dataclass(frozen=True)
class Gap:
    """One thing that nobody looked at, why, and on which nodes."""

    what: str
    why: str
    nodes: tuple[str, ...]


def gaps(evidence: Evidence, claims: tuple[Claim, ...], pins: tuple[Pin, ...]) -> tuple[Gap, ...]:
    """Checks that did not run, contents that were not read, and what this kind of run does not look at."""
    found: dict[tuple[str, str], list[str]] = {}
    for node in evidence.nodes:
        for check in node.checks:
            if check.status in ("skipped", "not-run") or check.level == "not-checked":
                found.setdefault((check.name, check.says), []).append(node.node)
        if node.root and node.root_level != "measured":
            why = "its Merkle root is what the stamp says; the files were not read in this run"
            found.setdefault(("contents", why), []).append(node.node)
        if not node.checks:
            found.setdefault(("everything", f"no check ran; the node is {node.status}"), []).append(node.node)
    out = [Gap(what, why, tuple(dict.fromkeys(nodes))) for (what, why), nodes in found.items()]
    every = tuple(node.node for node in evidence.nodes)
    out += _of_images(evidence)
    if several := tuple(node.node for node in evidence.nodes if _unlinked(node)):
        why = "bandwidth between each two GPUs was not measured; `envbuild smoke --only machine/copies` does it"
        out.append(Gap("links", why, several))
    if evidence.verb != "verify" and not any(claim.claimed != "–" for claim in claims):
        out.append(Gap("claims", _uncompared(evidence, claims), every))
    if open_ := [figure(claim.name) for claim in claims if not claim.compared]:
        out.append(Gap("floors", f"{plural(len(open_), 'figure')} without one: {few(open_, 8, '; ')}", every))
    loose, unread = _unlocked(evidence, pins)
    if loose:
        why = f"{plural(len(loose), 'package')} without a locked file (built here, or of the base): {few(loose, 8)}"
        out.append(Gap("pins", why, every))
    if unread:
        why = f"{plural(unread, 'package')} not compared with the files of the lock: which of them fit was not asked"
        out.append(Gap("pins", why, every))
    return tuple(out)


def _of_images(evidence: Evidence) -> Iterator[Gap]:
    """What an image has of the one that it is built on."""
    if images := [node for node in evidence.nodes if node.image is not None]:
        many = max(len(node.base_packages) for node in images)
        known = f", but for {plural(many, 'Python package')} by name and version" if many else ""
        why = f"the packages listed are those of the lock; what else the image has of its base was not read{known}"
        yield Gap("image", why, tuple(node.node for node in images))


def _unlocked(evidence: Evidence, pins: tuple[Pin, ...]) -> tuple[list[str], int]:
    """Names of packages that no file of the lock is for, and how many others there are on nodes without facts."""
    built = {name for node in evidence.nodes for name in built_names(node)}
    known = {variant.digest for variant in evidence.variants if variant.packages}
    nodes = {node.node for node in evidence.nodes if node.facts is None and node.variant_digest not in known}
    found = [pin for pin in pins if pin.same is None and not pin.wanted]
    loose = [pin.name for pin in found if canonicalize_name(pin.name) in built or not nodes.issuperset(pin.nodes)]
    return loose, len(found) - len(loose)


def _uncompared(evidence: Evidence, claims: tuple[Claim, ...]) -> str:
    """Why no figure of the document was measured, or what does it."""
    if any(claim.verdict == "no claim" for claim in claims):
        return "no figure of the document was measured: it has none for what ran"
    way = "" if evidence.verb == "bench" else "; `envbuild bench` does it"
    return f"no figure of the document was measured{way}"


def _unlinked(node: NodeEvidence) -> bool:
    """Several GPUs, and no copies between them."""
    several = node.facts is not None and len(node.facts.gpus) > 1
    return several and not any(check.details.get("peer_gbps") for check in node.checks)
