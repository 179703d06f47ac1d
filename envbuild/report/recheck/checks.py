"""The checks: none twice, none that nobody asked for, none left out, numbers in order, floors against metrics."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator

from envbuild.model.evidence import Check, Evidence, Metric, NodeEvidence
from envbuild.model.lock import Variant
from envbuild.node.smoke.only import known
from envbuild.report.equality import names
from envbuild.report.recheck.attached import Attached
from envbuild.report.recheck.finding import Finding, judged, not_checked, problem
from envbuild.report.sources import mapping, numbers
from envbuild.report.verdict import GOOD, LOOKING, all_checks
from envbuild.report.view import below_floor, failures
from envbuild.text import few, plural

# What is checked beside the smoke test, and of that what needs no item of the stack.
_KNOWN = frozenset(
    "record required stamp packages link files bytecode pack ensure post-link activation clobbered bench".split()  # noqa: SIM905
)
_ALWAYS = frozenset({"nodes", "cuda", "floors", "full", "only"})
_LOOKS = frozenset({"stamp", "files", "pack", "ensure"})
_ITEM = {"step-cpu-trial": "step"}


def check_checks(evidence: Evidence, attached: Attached) -> Iterator[Finding]:
    """All findings about checks and what they measured."""
    problems = list[Finding]()
    unknown = set[str]()
    for node in evidence.nodes:
        variant = attached.variants.get(str(node.variant_digest))
        # Who asked for a part of the smoke test was told so; of any other run nothing may be left out.
        limited = evidence.verb == "smoke" and any(check.name == "smoke/only" for check in node.checks)
        problems += _names(node, variant, limited=limited)
        problems += _beside_the_stamp(node, evidence.verb)
        problems += _levels(node, evidence.verb)
        for check in node.checks:
            problems += _numbers(node.node, check)
            if not check.name.startswith(("smoke/", "image/")) and check.name not in _KNOWN:
                unknown.add(check.name)
    count = len(all_checks(evidence))
    yield from judged("checks", f"{count} are in order: asked for, once, and as their numbers say", problems)
    lowered = list(_lowered(evidence, attached))
    metrics = [metric for check in all_checks(evidence) for metric in check.metrics]
    floors = sum(metric.floor is not None for metric in metrics)
    missed = list(_floors(evidence))
    if floors:
        says = f"{floors} of {plural(len(metrics), 'metric')} against {'its floor' if floors == 1 else 'their floors'}"
        yield from judged("floors", says, missed)
    else:
        yield from missed
        if metrics:
            yield not_checked("floors", f"none of {plural(len(metrics), 'metric')} has one")
    if lowered:
        yield not_checked("floors", f"lower than the stack's, by the target's word alone: {few(lowered, 5)}")
    if untried := [node.node for node in evidence.nodes if _is_untried(node, attached)]:
        yield not_checked("checks", f"no smoke test ran on {names(untried)}, and the lock has one")
    if unknown:
        yield not_checked("checks", f"this envbuild does not know: {few(sorted(unknown), 8)}")


def _is_untried(node: NodeEvidence, attached: Attached) -> bool:
    variant = attached.variants.get(str(node.variant_digest))
    return variant is not None and bool(variant.smoke) and not any(map(_smoke_item, node.checks))


def _smoke_item(check: Check) -> str | None:
    """The item of a smoke list that a check is of; None for one of something else."""
    top, _, rest = check.name.partition("/")
    item = rest.partition("/")[0]
    return _ITEM.get(item, item) if top == "smoke" and item not in _ALWAYS else None


def _names(node: NodeEvidence, variant: Variant | None, *, limited: bool) -> Iterator[Finding]:
    for name, count in Counter(check.name for check in node.checks).items():
        if count > 1:
            yield problem("report-check-twice", "checks", f"{node.node}: {name} is there {count} times")
    if variant is None:
        return
    asked = {item.name for item in variant.smoke}
    ran = {item: check for check in node.checks if (item := _smoke_item(check)) is not None}
    for item in sorted(ran.keys() - asked):
        if ran[item].status != "skipped":
            says = f"{node.node}: {ran[item].name}, and the lock's smoke list has no {item}"
            yield problem("report-check-unasked", "checks", says)
    if not limited and any(check.status == "passed" for check in ran.values()):
        done = ran.keys() | {check.name.removeprefix("smoke/") for check in node.checks}
        for name in sorted(set(known(asked)) - done):
            yield problem("report-check-missing", "checks", f"{node.node}: no check of {name} in the smoke test")


def _beside_the_stamp(node: NodeEvidence, verb: str) -> Iterator[Finding]:
    """Who finds the stamp looks at packages and link, too, and who builds nothing says whether the files were read."""
    there = {check.name for check in node.checks}
    stamped = any(check.name == "stamp" and check.status == "passed" for check in node.checks)
    due = {"packages", "link", *(["files"] if verb in LOOKING else [])} if stamped else set[str]()
    if verb == "verify" and node.status in GOOD and not there & _LOOKS:
        due = {"stamp"}
    for name in sorted(due - there):
        yield problem("report-check-missing", "checks", f"{node.node}: no check of {name}")


def _levels(node: NodeEvidence, verb: str) -> Iterator[Finding]:
    """What makes an environment hashes every file for its stamp, without a check of it; what looks at it has one."""
    levels = {check.level for check in node.checks if check.name == "files"}
    unread = "not-checked" in levels or (verb in LOOKING and "measured" not in levels)
    if unread and node.root_level == "measured":
        yield problem(
            "report-level-differs", "checks", f"{node.node}: the root is called measured, and nothing was read"
        )


def _numbers(node: str, check: Check) -> Iterator[Finding]:
    for metric in check.metrics:
        if metric.n < 1 or not metric.least <= metric.median <= metric.greatest:
            yield problem("report-metric-invalid", "checks", f"{node}: {metric.name}: {_said(metric)}")
    if check.status == "passed":
        for says in _failed(check):
            yield problem("report-metric-invalid", "checks", f"{node}: {check.name} passed, and {says}")


def _failed(check: Check) -> Iterator[str]:
    """What a check found wrong by its own details."""
    first, last = numbers([check.details.get("loss_first"), check.details.get("loss_last")]) or (1.0, 0.0)
    losses = numbers(check.details.get("losses"))
    if check.name == "smoke/step" and losses and last < first:
        first, last = losses[0], statistics.median(losses[-3:])
    if last >= first:
        yield f"the loss rose from {first:g} to {last:g}"
    if found := failures(check):
        yield f"it is told that {found[0]}"
    for name, told in check.details.items():
        for kind, value in mapping(told).items():
            limit = 1 if name == "used" else mapping(told).get("tolerance")
            if isinstance(value, int | float) and isinstance(limit, int | float) and value > limit:
                yield f"{name}, {kind}, is {value:g}, and {limit:g} is allowed"


def _said(metric: Metric) -> str:
    return f"{metric.median:g} of {metric.n}, between {metric.least:g} and {metric.greatest:g}"


def _floors(evidence: Evidence) -> Iterator[Finding]:
    for node in evidence.nodes:
        for check in node.checks:
            missed = [metric for metric in check.metrics if below_floor(metric)]
            for metric in missed if check.status != "failed" else ():
                says = f"{node.node}: {metric.name} is {metric.median:g}, below {metric.floor:g}, and {check.status}"
                yield problem("report-floor-missed", "floors", says)
            # What a run of the stack's own falls short of is a reference, which is no floor of a metric.
            only = check.details.get("only_floors") and check.comparison is None
            if check.status == "failed" and only and not missed:
                says = f"{node.node}: {check.name} failed for a floor, and its metrics miss none"
                yield problem("report-floor-missed", "floors", says)


def _lowered(evidence: Evidence, attached: Attached) -> Iterator[str]:
    """Metrics whose floor in the lock's smoke list is higher than the one that they were compared with, or not used."""
    for node in evidence.nodes:
        variant = attached.variants.get(str(node.variant_digest))
        locked = {name: floor for item in variant.smoke for name, floor in item.floors.items()} if variant else {}
        for check in node.checks:
            for metric in check.metrics:
                if metric.name in locked and (metric.floor is None or metric.floor < locked[metric.name]):
                    yield f"{metric.name} on {node.node}"
