"""Checks the figures: each against its values and its floor, and each percent against the figures that it is of."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from typing import Any

from envbuild.model.evidence import Check, Comparison, Evidence, Metric
from envbuild.report.claimed import SAME, named, ratio_of, share_of_claim, share_of_peak
from envbuild.report.recheck.opened import Finding, judged, not_checked, problem
from envbuild.report.sources import mapping, numbers
from envbuild.report.tables import below_floor
from envbuild.report.verdict import all_checks, node_checks
from envbuild.resolve.compat_read import load_compat
from envbuild.text import plural

# Curves have five digits.
_ROUNDED = 1e-3


def check_figures(evidence: Evidence) -> Iterator[Finding]:
    """All findings about what was measured."""
    metrics = [metric for check in all_checks(evidence) for metric in check.metrics]
    every = [
        (f"{node.node}: {check.name}", figure, wrong)
        for node, check in node_checks(evidence)
        for made_from in (_samples, _curve, _speed, _values, _gpus)
        for figure, wrong in made_from(check)
    ]
    problems = [problem("report-figure-differs", "figures", f"{at}: {wrong}") for at, _, wrong in every if wrong]
    made = len({(at, figure) for at, figure, _ in every if figure})
    if made or problems:
        yield from judged("figures", f"{plural(made, 'figure')} computed again from the values beside them", problems)
    if made < len(metrics):
        yield not_checked("figures", f"{plural(len(metrics) - made, 'figure')} without the values behind them")
    floors = sum(metric.floor is not None for metric in metrics)
    missed = list(_floors(evidence))
    if floors or missed:
        says = f"{floors} of {plural(len(metrics), 'metric')} against {'its floor' if floors == 1 else 'their floors'}"
        yield from judged("floors", says, missed)
    elif metrics:
        yield not_checked("floors", f"none of {plural(len(metrics), 'metric')} has one")
    yield from _claims(evidence)


_Judged = tuple[str, str]
"""The metric that values are there for, empty where there are none, and what is wrong with it, empty for nothing."""


def _samples(check: Check) -> Iterator[_Judged]:
    for name, count in Counter(one.name for one in check.metrics).items():
        if count > 1:
            yield "", f"{name} is there {count} times"
    for one in check.metrics:
        if one.n < 1 or not one.least <= one.median <= one.greatest:
            yield "", f"{one.name} is {one.median:g} of {one.n}, between {one.least:g} and {one.greatest:g}"


def _curve(check: Check) -> Iterator[_Judged]:
    losses = numbers(check.details.get("losses"))
    for name, at in (("loss_first", losses[:1]), ("loss_last", losses[-1:])):
        value = check.details.get(name)
        if isinstance(value, int | float) and at and not _near(value, at[0]):
            yield "", f"{name} is {value:g}, the curve has {at[0]:g}"


def _speed(check: Check) -> Iterator[_Judged]:
    """Tokens a second from the times of all steps but the first."""
    shape, times = mapping(check.details.get("shape")), numbers(check.details.get("step_seconds"))[1:]
    tokens = numbers([shape.get("batch"), shape.get("length")])
    for one in check.metrics:
        if one.name == "training_tokens_per_second" and len(tokens) == 2 and times and min(times) > 0:
            yield one.name, _sample(one, [tokens[0] * tokens[1] / seconds for seconds in times])


def _values(check: Check) -> Iterator[_Judged]:
    values = numbers(check.details.get("values"))
    if values and len(check.metrics) == 1:
        yield check.metrics[0].name, _sample(check.metrics[0], values)


def _sample(metric: Metric, values: list[float]) -> str:
    computed = (statistics.median(values), min(values), max(values))
    good = metric.n == len(values) and all(map(_near, (metric.median, metric.least, metric.greatest), computed))
    wrong = f"{metric.name} is {metric.median:g} of {metric.n}; its values give {computed[0]:g} of {len(values)}"
    return "" if good else wrong


def _gpus(check: Check) -> Iterator[_Judged]:
    """Products are measured by the slowest GPU, copies by the slowest GPU or pair of them."""
    for one in check.metrics:
        kind = one.name.removeprefix("gemm_cuda_")
        listed = [value for name, value in check.details.items() if name.endswith(f"_{kind}") and one.name != kind]
        rates = check.details.get(one.name.removeprefix("copy_"))
        for rate in rates if isinstance(rates, list) else ():
            listed += rate if isinstance(rate, list) else [rate]
        values = numbers([rate for rate in listed if rate is not None])
        if values:
            wrong = f"{one.name} is {one.median:g}, and its GPUs have {min(values):g} to {max(values):g}"
            yield one.name, "" if _near(one.median, min(values)) else wrong


def _floors(evidence: Evidence) -> Iterator[Finding]:
    for node, check in node_checks(evidence):
        missed = [metric for metric in check.metrics if below_floor(metric)]
        for one in missed if check.status != "failed" else ():
            says = f"{node.node}: {one.name} is {one.median:g}, below {one.floor:g}, and {check.status}"
            yield problem("report-floor-missed", "floors", says)
        # What a run of the stack's own falls short of is a reference, which is no floor of a metric.
        only = check.details.get("only_floors") and check.comparison is None
        if check.status == "failed" and only and not missed:
            says = f"{node.node}: {check.name} failed for a floor, and its metrics miss none"
            yield problem("report-floor-missed", "floors", says)


def _claims(evidence: Evidence) -> Iterator[Finding]:
    """What is said beside the figures of a stack's own run."""
    own = [
        (node, check)
        for node, check in node_checks(evidence)
        if check.comparison or (check.name == "bench" and check.status != "failed")
    ]
    if not own:
        return
    problems = [
        problem("report-claim-differs", "claims", f"{node.node}: {check.name}: {text}")
        for node, check in own
        for text in _claim(check)
    ]
    yield from judged("claims", f"the comparison beside {plural(len(own), 'figure')} follows from its values", problems)
    yield not_checked("claims", "the claims themselves: compare them with the document")


def _claim(check: Check) -> Iterator[str]:
    """In what a comparison is not the one that follows from its values and the claim that it names."""
    comparison, values = check.comparison, numbers(check.details.get("values"))
    if comparison is None:
        yield f"it {check.status}, and has no comparison"
        return
    if (check.status == "failed") != (comparison.verdict == "below"):
        yield f"it is {comparison.verdict} {'its claim ' * (comparison.verdict == 'below')}and {check.status}"
    if len(check.metrics) != 1 or not values or min(values) <= 0:
        yield f"{plural(len(check.metrics), 'figure')} of {plural(len(values), 'value')}: no run gives this"
        return
    for name, value in _due(comparison, check.metrics[0], statistics.median(values)).items():
        if value != getattr(comparison, name):
            yield f"{name} is {value}, not {getattr(comparison, name)}"


def _due(comparison: Comparison, one: Metric, measured: float) -> dict[str, Any]:
    """The fields that a figure gives beside this claim."""
    gpu, claim, peaks = named(comparison.gpu, comparison.gpus, load_compat()), comparison.claim, load_compat().peaks()
    share = share_of_peak(one.unit, measured, gpu.peak)
    due: dict[str, Any] = {"measured": measured, "unit": one.unit, "share": share}
    if not claim:
        return due | {"verdict": "no-claim", "percent": None}
    ratio = ratio_of(claim, measured, lower_is_better=one.lower_is_better)
    if comparison.verdict != "not-comparable":
        due["verdict"] = "reproduced" if ratio >= SAME else "below"
    due["claim_share"] = share_of_peak(one.unit, claim, peaks.get(comparison.claim_gpu or ""))
    return due | {"percent": share_of_claim(claim, measured)}


def _near(one: float, other: float) -> bool:
    """Whether two figures are the same but for digits that were left out."""
    return abs(one - other) <= _ROUNDED * max(abs(one), abs(other))
