"""What is claimed, what was measured, and what it had to reach at least."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.model.evidence import BuiltVariant, Check, Comparison, Evidence, Metric, NodeEvidence
from envbuild.report.claimed import SAME
from envbuild.report.sources import built_names
from envbuild.report.tables import below_floor, largest
from envbuild.report.verdict import GOOD, all_checks, far_above, node_checks, of_logs
from envbuild.text import grouped, number, percent, plural


@dataclass(frozen=True)
class Pin:
    """One package: `wanted` as locked (empty: it is in no lock), `observed` on `nodes` (empty: it is not there).

    Where `same` is false the two differ; None: there was nothing to compare with.
    """

    name: str
    wanted: str
    observed: str
    sha256: str
    nodes: tuple[str, ...]
    same: bool | None


def pins(evidence: Evidence) -> tuple[Pin, ...]:
    """Of every variant, differences first, then by name; nodes that have the same are one row."""
    known = {variant.digest: variant for variant in evidence.variants}
    there = [node for node in evidence.nodes if node.packages]
    groups = grouped(there, lambda node: (node.variant_digest, tuple(node.packages.items())))
    found: dict[tuple[str, str, str, str, bool | None], list[str]] = {}
    for (digest, _), nodes in groups.items():
        for row in _rows(known.get(str(digest)), nodes[0].packages):
            found.setdefault(row, []).extend(node.node for node in nodes)
    every = [Pin(*row[:4], nodes=tuple(names), same=row[4]) for row, names in found.items()]
    return tuple(sorted(every, key=lambda pin: (pin.same is not False, pin.name)))


def _rows(variant: BuiltVariant | None, packages: dict[str, str]) -> Iterator[tuple[str, str, str, str, bool | None]]:
    there = {canonicalize_name(name): version for name, version in packages.items()}
    for row in variant.packages if variant else ():
        version = there.pop(canonicalize_name(row.name), "")
        yield row.name, row.version, version, row.sha256, is_equal(version.partition(" ")[0], row.version)
    for name, version in there.items():
        # Wheels that were built here stand in the lock as sources, by commit and tree.
        yield name, "", version, "", None


@functools.lru_cache(maxsize=4096)
def is_equal(one: str, other: str) -> bool:
    """Whether two texts are one version (PEP 440), or equal where they are none."""
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


@dataclass(frozen=True)
class Badge:
    """One badge, the tone of its evidence, and the evidence in lines."""

    name: str
    tone: str
    says: tuple[str, ...]


def badges(evidence: Evidence, found: tuple[Claim, ...], pins: tuple[Pin, ...]) -> tuple[Badge, ...]:
    """Available, Functional, Reproduced."""
    return _available(evidence, pins), _functional(evidence), _reproduced(found)


def _available(evidence: Evidence, pins: tuple[Pin, ...]) -> Badge:
    every = (source for node in evidence.nodes for source in node.sources)
    sources = {(str(each.get("name")), bool(each.get("commit")), bool(each.get("tree"))) for each in every}
    pinned = sum(commit and tree for _, commit, tree in sources)
    due = {canonicalize_name(pin.name) for pin in pins}.difference(*map(built_names, evidence.nodes))
    hashed = due - {canonicalize_name(pin.name) for pin in pins if pin.sha256 in ("", "unrecorded")}
    says = [f"{len(hashed):,} of {plural(len(due), 'package')} by sha256"] if hashed else []
    says += [f"{pinned} of {plural(len(sources), 'source')} by commit and tree"] if sources else []
    whole = bool(hashed) and hashed == due and pinned == len(sources)
    return Badge(
        "Available", "green" if whole else "amber", tuple(says) or ("no hash and no commit is in the evidence",)
    )


def _functional(evidence: Evidence) -> Badge:
    good = sum(node.status in GOOD for node in evidence.nodes)
    checks = all_checks(evidence)
    passed, failed = (sum(check.status == status for check in checks) for status in ("passed", "failed"))
    says = [
        f"{good} of {plural(len(evidence.nodes), 'node')} ready",
        f"{plural(passed, 'check')} passed, {failed} failed",
    ]
    skipped = len(checks) - passed - failed
    says += [f"{skipped} not run"] if skipped else []
    bad = failed or good < len(evidence.nodes)
    if of_logs(evidence) and not bad:
        return Badge("Functional", "amber", ("nothing ran here: a log was read",))
    return Badge("Functional", "red" if bad else "green" if passed else "amber", tuple(says))


def _reproduced(found: tuple[Claim, ...]) -> Badge:
    told = [claim for claim in found if claim.claimed != "–"]
    floors = [claim for claim in found if claim.floor != "–"]
    says = [f"{sum(c.tone == 'green' for c in told)} of {plural(len(told), 'claim')} reached"] if told else []
    for verdict, words in (("not comparable", "not comparable"), ("above the claim", "far above")):
        count = sum(claim.verdict == verdict for claim in told)
        says += [f"{plural(count, 'claim')} {words}"] if count else []
    says += [f"{sum(c.tone == 'green' for c in floors)} of {plural(len(floors), 'floor')} held"] if floors else []
    if not told:
        says.append("no claim of the document was measured in this run")
    tones = {claim.tone for claim in (*told, *floors)}
    return Badge(
        "Reproduced", "red" if "red" in tones else "amber" if not told or "amber" in tones else "green", tuple(says)
    )


Tone = str
_VERDICTS = {
    "reproduced": ("green", "reproduced"), "below": ("red", "below the claim"),
    "far-above": ("amber", "above the claim"), "not-comparable": ("amber", "not comparable"),
    "no-claim": ("", "no claim"),
}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """One figure: what a document claims, what was measured, the least it had to be; texts, `–` for nothing."""

    name: str
    unit: str
    claimed: str
    measured: str
    floor: str
    percent: str
    gpu_hours: str
    where: str
    nodes: str
    verdict: str
    says: str
    tone: Tone
    compared: bool
    """whether there is a claim or a floor to compare it with"""


def claims(evidence: Evidence) -> tuple[Claim, ...]:
    """Claims first, then what has a floor, then the other figures; nodes with one floor are one line."""
    found = [_claim(node, check, check.comparison) for node, check in node_checks(evidence) if check.comparison]
    # Smaller sizes are in the table behind their picture.
    figures = (
        _figure(alike, named=len(every) > 1)
        for every in largest(evidence).values()
        for alike in grouped(every, lambda found: found[1].floor).values()
    )
    return (*found, *sorted(figures, key=lambda each: not each.compared))


def _claim(node: NodeEvidence, check: Check, it: Comparison) -> Claim:
    on = (
        f"{'in the log' if check.level == 'not-checked' else 'here'} {_on(it.gpus, it.gpu or _unnamed(node), it.share)}"
    )
    claimed_on = (
        f"; claimed on {_on(it.claim_gpus, it.claim_gpu or 'GPU not known', it.claim_share)}" if it.claim_gpus else ""
    )
    where = " ".join(part for part in (it.where, f"({it.source})" if it.source else "") if part)
    tone, verdict = _VERDICTS["far-above" if far_above(check) else it.verdict]
    why = it.why.removeprefix(f"{verdict}: ")  # which stands before it
    hours = f"{it.gpus * check.seconds / 3600:.3g}" if check.seconds and it.gpus else "–"
    return Claim(
        name=check.name, unit=it.unit, claimed="–" if it.claim is None else number(it.claim, it.measured),
        measured=number(it.measured, it.claim), floor="–", percent=_percent(it),
        gpu_hours=hours, where=where or "the document claims nothing", nodes=node.node,
        verdict=verdict, says=f"{why}; {on}{claimed_on}", tone=tone, compared=True,
    )  # fmt: skip


def _unnamed(node: NodeEvidence) -> str:
    """What a figure was measured on that names no GPU."""
    return "no GPU" if node.facts is not None and not node.facts.gpus else "GPU not known"


def _on(count: int, gpu: str, share: float | None) -> str:
    return f"{count} × {gpu}" + (f" ({number(share)} % of peak)" if share is not None else "")


def _percent(it: Comparison) -> str:
    return "–" if it.percent is None else f"{number(it.percent, 100 * SAME)} %"


def _figure(found: list[tuple[str, Metric, Check]], *, named: bool) -> Claim:
    """The worst node stands for all: a floor holds where it holds on each."""
    sign, end, other = (-1, "highest", "lowest") if found[0][1].lower_is_better else (1, "lowest", "highest")
    who, worst, check = min(found, key=lambda each: sign * each[1].median)
    best = sign * max(sign * metric.median for _, metric, _ in found)
    bad = sum(below_floor(metric) for _, metric, _ in found)
    spread = f"median of n = {worst.n}, {number(worst.least)} to {number(worst.greatest)}"
    if len(found) > 1:
        spread = f"the {end} of {plural(len(found), 'node')}, on {who}; the {other} is {number(best)}"
    elif named:
        spread = f"on {who}, {spread}"
    says = f"{bad} of {plural(len(found), 'node')} below the floor; {spread}" if bad else spread
    tone, verdict = (
        ("red", "below the floor") if bad else ("green", "floor held") if worst.floor is not None else ("", "")
    )
    of_floor = "–" if not worst.floor else f"{percent(100 * worst.median / worst.floor, 100)} %"
    return Claim(
        name=worst.name, unit=worst.unit, claimed="–", measured=number(worst.median, worst.floor),
        floor="–" if worst.floor is None else number(worst.floor, worst.median), percent=of_floor, gpu_hours="–",
        where=check.name, nodes=who, verdict=verdict, says=says, tone=tone, compared=worst.floor is not None,
    )  # fmt: skip
