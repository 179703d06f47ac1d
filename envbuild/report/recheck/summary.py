"""What the evidence says of the whole run, computed again: exit codes, equality, deviations, and which nodes it had."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.errors import ExitCode, gravest
from envbuild.model.evidence import Equality, Evidence, checks_exit, run_exit
from envbuild.report.equality import equality_of, names
from envbuild.report.recheck.attached import Attached
from envbuild.report.recheck.opened import Finding, judged, not_checked, problem
from envbuild.report.verdict import GOOD
from envbuild.text import plural


def check_summary(evidence: Evidence, attached: Attached, folder: str, wanted: str | None) -> Iterator[Finding]:
    """All findings about the run; `folder` is the name of the report's folder, `wanted` the run that was asked for."""
    yield from judged("run", f"the report is of the run {evidence.run}", _run(evidence, folder, wanted))
    yield from judged("summary", "exit codes follow from checks and errors", _exits(evidence))
    yield from judged("equality", "which nodes are equal follows from their roots", _equality(evidence))
    yield from _nodes(evidence, attached)
    yield from _deviations(evidence, attached)
    tested = {digest for digest, variant in attached.variants.items() if variant.smoke}
    nodes = [node for node in evidence.nodes if node.variant_digest in tested]
    untried = [node.node for node in nodes if not any(check.name.startswith("smoke/") for check in node.checks)]
    if untried:
        yield not_checked("checks", f"no smoke test ran on {names(untried)}, and the lock has one")
    if any(node.facts or node.checks for node in evidence.nodes):
        yield not_checked("nodes", "what each says of its hardware and system, and in the sentences of its checks")
    if logs := sum(node.log is not None for node in evidence.nodes):
        yield not_checked("logs", f"those of {plural(logs, 'node')} lie there; their sha256 is in the evidence")


def _run(evidence: Evidence, folder: str, wanted: str | None) -> Iterator[Finding]:
    if wanted is not None and evidence.run != wanted:
        yield problem("report-run-differs", "run", f"it is of the run {evidence.run}, not of {wanted}")
    if Evidence.is_run(folder) and folder != evidence.run:
        says = f"it is of the run {evidence.run} and lies in the folder of {folder}"
        yield problem("report-run-differs", "run", says)


def _exits(evidence: Evidence) -> Iterator[Finding]:
    for node in evidence.nodes:
        error = _code((node.error or {}).get("exit", 0 if node.error is None else ExitCode.INTERNAL))
        # Where a node could not be asked to the end, its error alone stands for it.
        due = {checks_exit(node.checks)} if not error else {error, gravest([error, checks_exit(node.checks)])}
        if _code(node.exit) not in due or (node.drift_count and not node.exit):
            says = f"{node.node}: exit {node.exit}, its checks and errors give {' or '.join(str(int(c)) for c in due)}"
            yield problem("report-exit-differs", "summary", says)
        if (node.status in GOOD) != (node.exit == 0):
            yield problem("report-status-differs", "summary", f"{node.node}: {node.status} with exit {node.exit}")
    due_exit = run_exit(node.model_copy(update={"exit": _code(node.exit)}) for node in evidence.nodes)
    if evidence.exit != due_exit:
        says = f"the run: exit {evidence.exit}, its nodes give {int(due_exit)}"
        yield problem("report-exit-differs", "summary", says)


def _code(number: object) -> ExitCode:
    """An exit code of ours; what is none counts as a mistake of the tool."""
    try:
        return ExitCode(number)  # type: ignore[arg-type]
    except ValueError:
        return ExitCode.INTERNAL


def _equality(evidence: Evidence) -> Iterator[Finding]:
    due = equality_of(evidence.nodes, None)
    if _members(evidence.equality) != _members(due):
        says = "there are no two nodes with a root to compare"
        if due is not None:
            count = sum(len(each.nodes) for each in due.deviating)
            says = f"{len(due.nodes)} nodes have the root {due.root[:12]} and {count} deviate; another thing is said"
        yield problem("report-equality-differs", "equality", says)


def _members(equality: Equality | None) -> tuple[str, set[str], list[str]] | None:
    """The root, the nodes that have it, and those that deviate."""
    if equality is None:
        return None
    return equality.root, set(equality.nodes), sorted(name for each in equality.deviating for name in each.nodes)


def _nodes(evidence: Evidence, attached: Attached) -> Iterator[Finding]:
    if attached.plan is None:
        yield not_checked("nodes", "no plan says which nodes were part of the run")
        return
    rows = attached.plan.get("nodes")
    planned = {str(row.get("node")) for row in rows if isinstance(row, dict)} if isinstance(rows, list) else set()
    missing = sorted(planned - {node.node for node in evidence.nodes})
    problems = [
        problem("report-node-missing", "nodes", f"{name} was planned and is not in the report") for name in missing
    ]
    yield from judged("nodes", f"{len(evidence.nodes)}: all of the plan", problems)


def _deviations(evidence: Evidence, attached: Attached) -> Iterator[Finding]:
    if attached.profile is None:
        yield not_checked("deviations", "the stack's profile, which names those from its document, is not there")
        return
    wanted = attached.profile["contents"].get("deviations", ())
    missing = [text for text in wanted if text not in evidence.deviations]
    problems = [problem("report-deviation-missing", "deviations", f"not told: {text}") for text in missing]
    yield from judged("deviations", f"{len(wanted)} of the stack are told", problems)
