"""What is claimed, what was measured, and what it had to reach at least."""

from __future__ import annotations

from dataclasses import dataclass

from envbuild.model.evidence import Check, Comparison, Evidence, Metric, NodeEvidence
from envbuild.report.claimed import SAME
from envbuild.report.tables import below_floor, largest
from envbuild.report.verdict import far_above, node_checks
from envbuild.text import grouped, number, percent, plural

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
