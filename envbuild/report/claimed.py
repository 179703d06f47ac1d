"""A measured figure beside the claim of a document: which claim, when they compare, and the verdict. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envbuild.model.evidence import Comparison, Metric
from envbuild.model.facts import NodeFacts
from envbuild.model.launch import Bench, BenchmarkCase, Figure, Launch, Reference
from envbuild.resolve.compat import Compat
from envbuild.text import number, percent

# From this share of the claim on a figure counts as reproduced.
SAME = 0.97
# Beyond this share it is hardly the same work: on the same number of the same GPUs newer libraries give some tens of
# percent. Evidence calls it `reproduced` as well, as it is no less than the claim; people are told the share.
FAR_ABOVE = 1.5
_TFLOPS = "TFLOP/s per GPU"
# In place of a model: the node was asked, and has none.
NO_GPU = "no GPU"


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of a run: the name as nvidia-smi prints it (None: unknown), how many, and the dense peak of one.

    `firm`: the peak is verified and holds for every GPU of the run, so no figure can be above it.
    """

    name: str | None
    count: int
    model: str | None = None
    peak: float | None = None
    firm: bool = True


def metric(bench: Bench, values: Sequence[float]) -> Metric:
    """All figures as one sample."""
    name = bench.metric.split(" (")[0].replace(" ", "_")
    middle = statistics.median(values)
    return Metric(
        name=name, unit=bench.unit, n=len(values), median=middle, least=min(values), greatest=max(values),
        lower_is_better=bench.lower_is_better,
    )  # fmt: skip


def named(name: str | None, count: int, compat: Compat, *, alone: bool = True) -> Gpus:
    """GPUs as nvidia-smi prints their name, with what the tables know of them; `alone`: there is no other kind."""
    model = compat.gpu_of(name)
    if model is None:
        return Gpus(name, count)
    return Gpus(name, count, model.model, model.dense_tflops, firm=model.note.firm and alone)


def gpus_of(facts: NodeFacts | None, count: int, compat: Compat) -> Gpus:
    """That many GPUs of a node; without facts they are unknown."""
    if facts is None or not facts.gpus:
        return Gpus(None, count, None if facts is None else NO_GPU)
    name, *others = dict.fromkeys(gpu.device_name for gpu in facts.gpus)
    return named(name, count, compat, alone=not others)


def compare(
    reference: Reference, bench: Bench, ran: Launch, measured: float, gpus: Gpus, peaks: Mapping[str, float]
) -> Comparison:
    """The measured figure beside the claim for these degrees; `peaks`: dense TFLOP/s by model of GPU."""
    claim, unit = claim_for(reference, bench, ran, gpus), bench.unit
    share = share_of_peak(unit, measured, gpus.peak)
    why = f"no figure is published for {ran.model} with these degrees"
    comparison = Comparison(
        measured=measured, unit=unit, gpus=gpus.count, gpu=gpus.name, share=share, verdict="no-claim", why=why
    )
    if claim is None:
        return comparison
    verdict, why = _judged(claim, measured, gpus, lower_is_better=bench.lower_is_better)
    more = {
        "claim": claim.value,
        "where": claim.where,
        "source": claim.source,
        "claim_gpu": claim.gpu,
        "claim_gpus": claim.gpus,
        "claim_share": share_of_peak(unit, claim.value, peaks.get(claim.gpu or "")),
        "verdict": verdict,
        "percent": share_of_claim(claim.value, measured),
        "why": why,
    }
    return comparison.model_copy(update=more)


def in_words(comparison: Comparison) -> str:
    """The verdict, then the claim and both shares of a peak; the caller prints the figure itself."""
    parts = [comparison.why]
    if comparison.claim is not None:
        shares = [
            f"claimed: {number(comparison.claim, comparison.measured)}",
            _of_peak(comparison.claim_share, comparison.claim_gpu),
        ]
        parts.append(f"{', '.join(filter(None, shares))} ({comparison.source})")
    if comparison.share is not None:
        parts.append(f"here: {_of_peak(comparison.share, comparison.gpu)}")
    return "; ".join(parts)


def _of_peak(share: float | None, gpu: str | None) -> str:
    return "" if share is None else f"{share:.0f} % of the dense peak of {gpu}"


def share_of_peak(unit: str, value: float, peak: float | None) -> float | None:
    """Percent, where the figure is one of computing."""
    return None if peak is None or unit != _TFLOPS else round(100 * value / peak, 1)


def share_of_claim(claim: float, measured: float) -> float:
    """Percent; never rounded across what counts as reproduced."""
    return float(percent(100 * measured / claim, 100 * SAME, 1))


def _judged(claim: Figure, measured: float, gpus: Gpus, *, lower_is_better: bool) -> tuple[str, str]:
    """The verdict and why: by the ratio on the same GPUs, else what makes the two not comparable."""
    if claim.gpu is not None and (claim.gpu, claim.gpus) == (gpus.model, gpus.count):
        ratio = ratio_of(claim.value, measured, lower_is_better=lower_is_better)
        verdict, word = ("reproduced", "reproduced") if ratio >= SAME else ("below", "below the claim")
        word = "above the claim" if ratio > FAR_ABOVE else word
        return verdict, f"{word}: {percent(100 * ratio, 100 * SAME)} %"
    if claim.gpu is None:
        why = "the claim names no GPU"
    elif gpus.model is None:
        why = f"{gpus.name} is not in envbuild's GPU tables" if gpus.name else "the GPU that it ran on is not known"
    elif gpus.model == NO_GPU:
        why = f"no GPU here (claimed for {claim.gpu})"
    elif claim.gpu != gpus.model:
        why = f"other GPU ({gpus.model}, claimed for {claim.gpu})"
    else:
        why = f"{gpus.count} GPUs, claimed for {claim.gpus}"
    return "not-comparable", f"not comparable: {why}"


def claim_for(reference: Reference, bench: Bench, ran: Launch, gpus: Gpus) -> Figure | None:
    """The claim for these GPUs if there is one, else the first."""
    if bench.figure is not None:
        claims = [one for one in reference.figures if one.name == bench.figure and one.model in (None, ran.model)]
    else:
        claims = [claim for case in reference.cases if (claim := _of_case(case, ran, gpus.count))]
    same = [claim for claim in claims if claim.gpu is not None and claim.gpu == gpus.model]
    return next(iter((*same, *claims)), None)


def _of_case(case: BenchmarkCase, ran: Launch, gpus: int) -> Figure | None:
    """The figure of a case with this model, these degrees and so many GPUs; None: it is another, or has none."""
    same = (case.gpus, case.model, case.dp, case.tmp, case.pp, case.global_batch, case.microbatches)
    names = ("data", "tensor", "pipeline", "global-batch", "microbatches")
    if case.tflops is None or same != (gpus, ran.model, *map(ran.degrees.get, names)):
        return None
    where = f"{case.model} on {case.gpus} GPUs, DP {case.dp}, TMP {case.tmp}, PP {case.pp}"
    return Figure(
        name="case", value=case.tflops, unit=_TFLOPS, where=where, source=case.source, gpu=case.gpu, gpus=case.gpus,
        hosts=case.hosts,
    )  # fmt: skip


def is_far_above(comparison: Comparison, *, lower_is_better: bool) -> bool:
    """Whether a figure is so much better than the claim that it is not a reproduction."""
    if comparison.verdict != "reproduced" or not comparison.claim or not comparison.measured:
        return False
    return ratio_of(comparison.claim, comparison.measured, lower_is_better=lower_is_better) > FAR_ABOVE


def ratio_of(claim: float, measured: float, *, lower_is_better: bool) -> float:
    """How good a figure is, as a share of the claim."""
    return claim / measured if lower_is_better else measured / claim
