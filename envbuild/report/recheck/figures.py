"""The figures: each against the values that it is made from."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator

from envbuild.catalog.loader import list_stacks, load_stack
from envbuild.model.evidence import Check, Evidence, Metric
from envbuild.node.smoke.machine import IMPOSSIBLE
from envbuild.report.recheck.finding import Finding, checked, judged, not_checked, problem
from envbuild.report.sources import mapping, numbers
from envbuild.report.verdict import all_checks, node_checks
from envbuild.resolve.compat_read import load_compat

# Curves have five digits.
_ROUNDED = 1e-3


def check_figures(evidence: Evidence) -> Iterator[Finding]:
    """All findings about what was measured, and found in the document."""
    yield from _findings(evidence)
    problems = [
        problem("report-figure-differs", "figures", f"{node.node}: {check.name}: {each}")
        for node, check in node_checks(evidence)
        for found in _MADE_FROM
        for each in found(check)
    ]
    if problems or any(check.metrics for check in all_checks(evidence)):
        yield from judged("figures", "each follows from the values beside it, where there are any", problems)


def _twice(check: Check) -> Iterator[str]:
    for name, count in Counter(metric.name for metric in check.metrics).items():
        if count > 1:
            yield f"{name} is there {count} times"


def _curve(check: Check) -> Iterator[str]:
    losses = numbers(check.details.get("losses"))
    last = sorted(losses[-5:])[len(losses[-5:]) // 2] if losses else 0.0
    for name, at in (("loss_first", losses[:1]), ("loss_last", [last] if losses else [])):
        told = check.details.get(name)
        if isinstance(told, int | float) and at and not near(told, at[0]):
            yield f"{name} is {told:g}, the curve has {at[0]:g}"


def _speed(check: Check) -> Iterator[str]:
    """Tokens a second from the times of all steps but the first."""
    shape, times = mapping(check.details.get("shape")), numbers(check.details.get("step_seconds"))[1:]
    tokens = numbers([shape.get("batch"), shape.get("length")])
    for metric in check.metrics:
        if metric.name == "training_tokens_per_second" and len(tokens) == 2 and times and min(times) > 0:
            yield from _sample(metric, [tokens[0] * tokens[1] / seconds for seconds in times])


def _values(check: Check) -> Iterator[str]:
    values = numbers(check.details.get("values"))
    if values and len(check.metrics) == 1:
        yield from _sample(check.metrics[0], values)


def _sample(metric: Metric, values: list[float]) -> Iterator[str]:
    found = (statistics.median(values), min(values), max(values))
    told = (metric.median, metric.least, metric.greatest)
    if metric.n != len(values) or not all(map(near, told, found)):
        yield f"{metric.name} is {metric.median:g} of {metric.n}; its values give {found[0]:g} of {len(values)}"


def _gpus(check: Check) -> Iterator[str]:
    """Products are measured by the slowest GPU, copies by the slowest GPU or pair of them."""
    for metric in check.metrics:
        kind = metric.name.removeprefix("gemm_cuda_")
        told = [value for name, value in check.details.items() if name.endswith(f"_{kind}") and metric.name != kind]
        rates = check.details.get(metric.name.removeprefix("copy_"))
        for rate in rates if isinstance(rates, list) else ():
            told += rate if isinstance(rate, list) else [rate]
        each = numbers([rate for rate in told if rate is not None])
        if each and not near(metric.median, min(each)):
            yield f"{metric.name} is {metric.median:g}, and its GPUs have {min(each):g} to {max(each):g}"


def _peak(check: Check) -> Iterator[str]:
    """Products of 16 bits that no GPU of these names computes; the smoke test itself refuses them."""
    names = check.details.get("gpu_names")
    known = [load_compat().gpu_of(name) for name in names if isinstance(name, str)] if isinstance(names, list) else []
    peaks = [gpu.dense_tflops for gpu in known if gpu is not None and gpu.dense_tflops is not None]
    for metric in check.metrics if peaks and len(peaks) == len(known) else ():
        if metric.name.startswith(("gemm_cuda_bf16", "gemm_cuda_fp16")) and metric.median > IMPOSSIBLE * max(peaks):
            yield f"{metric.name} is {metric.median:g}, and the peak is {max(peaks):g}"


_MADE_FROM = (_twice, _curve, _speed, _values, _gpus, _peak)


def _findings(evidence: Evidence) -> Iterator[Finding]:
    """What the document is said to get wrong, against the stack that envbuild ships."""
    known = load_stack(evidence.stack).stack.findings if evidence.stack in list_stacks() else ()
    shipped = [(each.id, each.severity, each.truth, each.does) for each in known]
    told = [(each.id, each.severity, each.truth, each.does) for each in evidence.findings]
    if told != shipped:
        says = f"the {len(told)} about the document: they are not those of a stack that this envbuild ships"
        yield not_checked("findings", says)
    elif told:
        yield checked("findings", f"the {len(told)} about the document are those of {evidence.stack}, as shipped")


def near(one: float, other: float) -> bool:
    """Whether two figures are the same but for digits that were left out."""
    return abs(one - other) <= _ROUNDED * max(abs(one), abs(other))
