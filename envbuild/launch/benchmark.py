"""What a run of a stack's own command has measured, beside what its document claims. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from envbuild.model.evidence import Comparison, Metric
from envbuild.model.launch import Launch
from envbuild.model.reference import Bench, BenchmarkCase, Reference
from envbuild.node.smoke.training_log import cut_short, losses, not_finite, read, runs
from envbuild.report.claimed import percent_of, verdict_of
from envbuild.text import number

_TFLOPS = "TFLOP/s per GPU"
# In place of a model: the node was asked, and has none.
NO_GPU = "no GPU"
# Percent of a GPU's dense peak: what a run can have, with room for how catalogs round.
_MOST = 105


@dataclass(frozen=True, slots=True)
class Gpus:
    """What a run had: the name as nvidia-smi prints it (None: not known), how many, and the dense peak of one.

    `firm`: the peak was verified and is that of every GPU there, so that no figure can be above it.
    """

    name: str | None
    count: int
    model: str | None = None
    peak: float | None = None
    firm: bool = True


UNKNOWN = Gpus(None, 0)


@dataclass(frozen=True, slots=True)
class _Claim:
    value: float
    where: str
    source: str
    gpu: str | None
    gpus: int | None


class Samples(NamedTuple):
    """The figures of a run's log without those of its warm-up, how many were left out, and why they are no result.

    `losses`: of its steps, in their order, where it tells them.
    """

    values: list[float]
    warm_up: int
    wrong: str
    losses: list[float]


def samples(bench: Bench, text: str, gpus: Gpus = UNKNOWN) -> Samples:
    """What a log tells of a run on these GPUs. A training that began anew has warmed up anew."""
    records = read(bench.log, text)
    telling = [record for record in records if bench.metric in record.values]
    parts = [[record.values[bench.metric] for record in part] for part in runs(telling)]
    values = [value for part in parts for value in part[bench.warmup :]]
    bad = next((value for value in values if not 0 < value < math.inf), None)
    high = next((value for value in values if gpus.firm and (_share(bench, value, gpus.peak) or 0.0) > _MOST), None)
    course = losses(bench.log, [text])
    few = f"its log has {len(values)} of at least {bench.least} lines with `{bench.metric}` after its warm-up"
    above = f"{bench.unit} is more than the peak of {gpus.name}, {number(gpus.peak or 0.0)}"
    wrong = (
        (few if len(values) < bench.least else None)
        or (f"its log has {bad:g} for `{bench.metric}`" if bad is not None else None)
        or (f"{number(high)} {above}" if high is not None else None)
        or not_finite(course)
        or cut_short(records)
    )
    return Samples(values, len(telling) - len(values), wrong or "", [loss for _, loss in course])


def course_in_words(losses: Sequence[float]) -> str:
    """What became of the loss: a figure of speed says nothing of that."""
    if len(losses) < 2:
        return ""
    went = "rose" if losses[-1] > losses[0] else "went"
    return f"the loss {went} from {losses[0]:.4g} to {losses[-1]:.4g} in {len(losses)} steps"


def metric(bench: Bench, values: Sequence[float]) -> Metric:
    """All figures as one sample."""
    name = bench.metric.split(" (")[0].replace(" ", "_")
    middle = statistics.median(values)
    return Metric(
        name=name, unit=bench.unit, n=len(values), median=middle, least=min(values), greatest=max(values),
        lower_is_better=bench.lower_is_better,
    )  # fmt: skip


def compare(
    reference: Reference, bench: Bench, launch: Launch, measured: float, gpus: Gpus, peaks: Mapping[str, float]
) -> Comparison:
    """The measured figure beside the claim for these degrees; `peaks`: dense TFLOP/s by model of GPU."""
    claim = _nearest(_claims(reference, bench, launch), gpus)
    share = _share(bench, measured, gpus.peak)
    why = f"no figure is published for {launch.model} with these degrees"
    told = Comparison(
        measured=measured, unit=bench.unit, gpus=gpus.count, gpu=gpus.name, share=share, verdict="no-claim", why=why
    )
    if claim is None:
        return told
    ratio = claim.value / measured if bench.lower_is_better else measured / claim.value
    more = {
        "claim": claim.value,
        "where": claim.where,
        "source": claim.source,
        "claim_gpu": claim.gpu,
        "claim_gpus": claim.gpus,
        "claim_share": _share(bench, claim.value, peaks.get(claim.gpu or "")),
    }
    told = told.model_copy(update=more)
    verdict = verdict_of(told, gpus.model, lower_is_better=bench.lower_is_better)
    final = {"verdict": verdict, "why": _why(verdict, claim, gpus, ratio), "percent": percent_of(told)}
    return told.model_copy(update=final)


def in_words(comparison: Comparison) -> str:
    """What follows, then the claim and both shares of a peak; the figure itself stands before it."""
    said = [comparison.why]
    if comparison.claim is not None:
        shares = [f"claimed: {number(comparison.claim)}", _of_peak(comparison.claim_share, comparison.claim_gpu)]
        said.append(f"{', '.join(filter(None, shares))} ({comparison.source})")
    if comparison.share is not None:
        said.append(f"here: {_of_peak(comparison.share, comparison.gpu)}")
    return "; ".join(said)


def _of_peak(share: float | None, gpu: str | None) -> str:
    return "" if share is None else f"{share:.0f} % of the dense peak of {gpu}"


def _share(bench: Bench, value: float, peak: float | None) -> float | None:
    return None if peak is None or bench.unit != _TFLOPS else round(100 * value / peak, 1)


def _why(verdict: str, claim: _Claim, gpus: Gpus, ratio: float) -> str:
    if verdict != "not-comparable":
        return f"{'below the claim' if verdict == 'below' else verdict}: {100 * ratio:.0f} %"
    if claim.gpu is None or gpus.model is None:
        ran = f"{gpus.name} is not in our tables" if gpus.name else "the GPU that it ran on is not known"
        unknown = "the claim names no GPU" if claim.gpu is None else ran
        return f"not comparable: {unknown}"
    if gpus.model == NO_GPU:
        return f"not comparable: no GPU here (claimed for {claim.gpu})"
    if claim.gpu != gpus.model:
        return f"not comparable: other GPU ({gpus.model}, claimed for {claim.gpu})"
    return f"not comparable: {gpus.count} GPUs, claimed for {claim.gpus}"


def _nearest(claims: Iterable[_Claim], gpus: Gpus) -> _Claim | None:
    """The claim for these GPUs where there is one, else the first."""
    found = list(claims)
    same = [claim for claim in found if claim.gpu is not None and claim.gpu == gpus.model]
    return next(iter((*same, *found)), None)


def _claims(reference: Reference, bench: Bench, launch: Launch) -> list[_Claim]:
    if bench.figure is not None:
        figures = [each for each in reference.figures if each.name == bench.figure]
        fitting = [each for each in figures if each.model in (None, launch.model)]
        return [_Claim(each.value, each.where, each.source, each.gpu, each.gpus) for each in fitting]
    return [_of_case(each) for each in reference.cases if each.tflops is not None and _is_case(each, launch)]


def _is_case(case: BenchmarkCase, launch: Launch) -> bool:
    degrees = launch.degrees
    same = (case.dp, case.tmp, case.pp, case.global_batch, case.microbatches)
    names = ("data", "tensor", "pipeline", "global-batch", "microbatches")
    gpus = launch.nodes * launch.gpus_per_node
    return (case.gpus, case.model) == (gpus, launch.model) and same == tuple(degrees.get(name) for name in names)


def _of_case(case: BenchmarkCase) -> _Claim:
    where = f"{case.model} on {case.gpus} GPUs, DP {case.dp}, TMP {case.tmp}, PP {case.pp}"
    return _Claim(case.tflops or 0.0, where, case.source, case.gpu, case.gpus)
