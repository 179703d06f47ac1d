"""A stack's own run: its figure, and what follows beside the claim, made again from values, launch and stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from envbuild import __version__
from envbuild.catalog.loader import list_stacks, load_stack
from envbuild.model.common import StrictModel
from envbuild.model.evidence import Check, Comparison, Evidence, NodeEvidence
from envbuild.model.reference import Reference
from envbuild.report.claimed import NO_GPU, Gpus, compare, gpus_of, metric, named, percent_of, verdict_of
from envbuild.report.equality import names
from envbuild.report.recheck.figures import near
from envbuild.report.recheck.finding import Finding, judged, not_checked, problem
from envbuild.report.sources import mapping, numbers
from envbuild.report.verdict import GOOD, node_checks
from envbuild.resolve.compat import Compat
from envbuild.resolve.compat_read import load_compat
from envbuild.text import plural

_TOPIC = "claims"
_UNKNOWN = "what the document claims, in which unit, and whether less is better: the stack is none that envbuild ships"


class _Ran(NamedTuple):
    model: str
    degrees: Mapping[str, int]


def check_claims(evidence: Evidence) -> Iterator[Finding]:
    """All findings about the figures of a stack's own run."""
    good = all(node.status in GOOD for node in evidence.nodes)
    if evidence.verb == "bench" and good and not any(check.name == "bench" for _, check in node_checks(evidence)):
        yield problem("report-check-missing", _TOPIC, "no check of a run that went well is there")
    own = _own(evidence)
    if not own:
        return
    shipped = evidence.stack in list_stacks()
    reference = load_stack(evidence.stack).stack.reference if shipped else None
    problems = []
    for node, check in own:
        said = [*_state(check), *(_with_stack(evidence, node, check, reference) if shipped else _alone(check))]
        problems += [problem("report-claim-differs", _TOPIC, f"{node.node}: {check.name}: {each}") for each in said]
    follows = f"values, launch and {evidence.stack}" if shipped else "its figures"
    yield from judged(_TOPIC, f"what is said beside {plural(len(own), 'figure')} follows from {follows}", problems)
    if not shipped:
        yield not_checked(_TOPIC, _UNKNOWN)
    if untold := [node.node for node, _ in own if node.facts is None]:
        yield not_checked(_TOPIC, f"on which GPUs it ran on {names(untold)}: the comparison alone says it")
    if free := [node.node for node, check in own if check.comparison and check.comparison.verdict == "no-claim"]:
        yield not_checked(_TOPIC, f"that what ran on {names(free)} has no claim: its launch alone says the degrees")
    if shipped and evidence.envbuild != __version__:
        yield not_checked(_TOPIC, f"the words beside them: envbuild {evidence.envbuild} chose them, not {__version__}")


def _own(evidence: Evidence) -> list[tuple[NodeEvidence, Check]]:
    """The checks that have a figure of a stack's own run, or should; one that failed on several nodes once."""
    found = list[tuple[NodeEvidence, Check]]()
    for node, check in node_checks(evidence):
        due = check.comparison is not None or (check.name == "bench" and check.status != "failed")
        if due and all(check != each for _, each in found):
            found.append((node, check))
    return found


def _state(check: Check) -> Iterator[str]:
    """Below its claim is failed, and all else is passed, or skipped where only a log was read."""
    verdict = check.comparison.verdict if check.comparison else None
    good = "skipped" if check.level == "not-checked" else "passed"
    if verdict is None:
        yield f"it {check.status}, and is compared with nothing"
    elif (check.status, verdict == "below") not in (("failed", True), (good, False)):
        yield f"it is {verdict} {'its claim ' * (verdict == 'below')}and {check.status}"


def _with_stack(evidence: Evidence, node: NodeEvidence, check: Check, reference: Reference | None) -> Iterator[str]:
    values, launch = numbers(check.details.get("values")), mapping(check.details.get("launch"))
    model, nodes, gpus = launch.get("model"), launch.get("nodes"), launch.get("gpus_per_node")
    if reference is None or reference.bench is None:
        yield f"{evidence.stack} does not say how its own run is measured"
    elif not values or min(values) <= 0 or len(check.metrics) != 1:
        yield f"{plural(len(check.metrics), 'figure')} of {plural(len(values), 'value')}: no run tells that"
    elif not (isinstance(model, str) and isinstance(nodes, int) and isinstance(gpus, int)):
        yield "nothing tells what was launched"
    elif check.comparison is not None:
        made, told = metric(reference.bench, values), check.comparison
        yield from _differs(check.metrics[0], made, f"values and {evidence.stack}")
        degrees = {name: count for name, count in mapping(launch.get("degrees")).items() if isinstance(count, int)}
        ran, compat = _Ran(model, degrees), load_compat()
        due = [
            compare(reference, reference.bench, ran, made.median, each, compat.peaks())
            for each in _gpus(node, told, nodes * gpus, compat)
        ]
        if evidence.envbuild != __version__:
            due = [each.model_copy(update={"why": told.why}) for each in due]
        yield from _differs(told, told if told in due else due[0], f"launch and {evidence.stack}")


def _gpus(node: NodeEvidence, told: Comparison, count: int, compat: Compat) -> list[Gpus]:
    """Those that the node has; where it says nothing of them, those that are told: no name is no GPU, or an unknown."""
    if node.facts is not None:
        return [gpus_of(node.facts, count, compat)]
    return [named(told.gpu, count, compat), *([] if told.gpu else [Gpus(None, count, NO_GPU)])]


def _differs(told: StrictModel, due: StrictModel, by: str) -> Iterator[str]:
    pairs = [(name, getattr(due, name), getattr(told, name)) for name in type(due).model_fields]
    if found := [f"{name} is {one}, not {other}" for name, one, other in pairs if one != other]:
        yield f"by its {by}: {'; '.join(found)}"


def _alone(check: Check) -> Iterator[str]:
    """What a comparison says against itself, whatever its claim."""
    told = check.comparison
    if told is None:
        return
    metric = next((each for each in check.metrics if each.unit == told.unit), None)
    if metric is None or not near(metric.median, told.measured):
        yield f"{told.measured:g} {told.unit} is compared, and was not measured"
        return
    model = load_compat().gpu_of(told.gpu)
    try:
        lower = metric.lower_is_better
        due = percent_of(told), verdict_of(told, model.model if model else None, lower_is_better=lower)
    except ZeroDivisionError:
        due = None, "not-comparable"
    if (told.percent, told.verdict) != due:
        yield f"{told.verdict} with {told.percent} % of the claim; its figures give {due[1]} with {due[0]} %"
