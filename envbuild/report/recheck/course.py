"""How the run went: its id, times, nodes, exit codes and equality, computed again and not believed."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from envbuild.errors import ExitCode, gravest
from envbuild.model.evidence import Equality, Evidence, NodeEvidence, checks_exit, run_exit
from envbuild.report.fleet_equality import equality_of
from envbuild.report.recheck.attached import Attached
from envbuild.report.recheck.finding import Finding, judged, not_checked, problem
from envbuild.report.sources import mapping
from envbuild.report.timeline import steps
from envbuild.report.verdict import GOOD, GPU_WARNINGS, all_checks
from envbuild.text import plural

_RUN = re.compile(r"([0-9]{8}T[0-9]{6}Z)-[0-9a-f]{4}")
_ENDS = frozenset({"run-finished", "interrupted", "failed"})  # the last event of a run
_VERBS = frozenset({"provision", "verify", "smoke", "bench", "strategy"})
# A run makes its directory first; a slow file system takes a while for it.
_SLACK = timedelta(minutes=10)


def check_course(evidence: Evidence, attached: Attached, folder: str, wanted: str | None) -> Iterator[Finding]:
    """All findings about the course; `folder` is the name of the report's folder, `wanted` the run asked for."""
    yield from judged("run", f"{evidence.run} fits its times and its folder", _run(evidence, folder, wanted))
    yield from _command(evidence)
    yield from judged("times", "begin, end and phases are in order", _times(evidence))
    yield from judged("summary", "exit codes and states follow from checks and errors", _exits(evidence))
    yield from judged("equality", "which nodes are equal follows from their roots", _equality(evidence))
    yield from _nodes(evidence, attached)
    yield from _end(attached)
    yield from _deviations(evidence, attached)
    yield from _warnings(evidence)
    if any(node.facts or node.checks for node in evidence.nodes):
        yield not_checked("nodes", "what each says of its hardware and system, and in the sentences of its checks")
    if logs := sum(node.log is not None for node in evidence.nodes):
        yield not_checked("logs", f"those of {plural(logs, 'node')} lie there; their sha256 is in the evidence")


def _command(evidence: Evidence) -> Iterator[Finding]:
    """What the page calls the command that repeats the run, and a reader may well do."""
    tool, verb = (*evidence.command, "", "")[:2]
    if evidence.command and (tool != "envbuild" or (verb in _VERBS and verb != evidence.verb)):
        says = f"{shlex.join(evidence.command)[:80]} is no command that gives a report of `envbuild {evidence.verb}`"
        yield problem("report-command-invalid", "run", says)


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _run(evidence: Evidence, folder: str, wanted: str | None) -> Iterator[Finding]:
    found = _RUN.fullmatch(evidence.run)
    if found is None:
        yield problem("report-run-invalid", "run", f"{evidence.run[:60]!r} is no id of a run")
        return
    if wanted is not None and evidence.run != wanted:
        yield problem("report-run-differs", "run", f"it is of the run {evidence.run}, not of {wanted}")
    if _RUN.fullmatch(folder) and folder != evidence.run:
        yield problem(
            "report-run-differs", "run", f"it is of the run {evidence.run} and lies in the folder of {folder}"
        )
    began = _moment(evidence.started)
    try:
        named = datetime.strptime(found.group(1), "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        yield problem("report-run-invalid", "run", f"{evidence.run} names no time")
        return
    if began and not named <= began < named + _SLACK:
        yield problem(
            "report-run-differs", "run", f"the run {evidence.run} is said to have started at {evidence.started}"
        )


def _times(evidence: Evidence) -> Iterator[Finding]:
    began, ended = _moment(evidence.started), _moment(evidence.finished)
    if began is None or ended is None:
        yield problem("report-times-differ", "times", "begin or end is no time with its zone")
        return
    if ended < began:
        yield problem("report-times-differ", "times", f"it finished at {evidence.finished}, before it began")
    took = (ended - began).total_seconds()
    for name, seconds in evidence.phases.items():
        if not 0 <= seconds <= took + 1:
            yield problem("report-times-differ", "times", f"{name} took {seconds:g} s of {took:.1f} s")
    for node in evidence.nodes:
        spans = [(check.name, 0.0, check.seconds or 0.0) for check in node.checks]
        spans += [(step.name, step.began, step.seconds or 0.0) for step in node.steps]
        for name, begin, seconds in spans:
            if not 0 <= seconds <= took - begin + 1:
                says = f"{node.node}: {name} took {seconds:g} s from {begin:g} s on, of {took:.1f} s"
                yield problem("report-times-differ", "times", says)


def _exits(evidence: Evidence) -> Iterator[Finding]:
    for node in evidence.nodes:
        error = _code((node.error or {}).get("exit", 0 if node.error is None else ExitCode.INTERNAL))
        # Where a node could not be asked to the end, its error alone stands for it.
        due = (
            {error or ExitCode.OK, gravest([error, checks_exit(node.checks)])} if error else {checks_exit(node.checks)}
        )
        if _code(node.exit) not in due:
            says = f"{node.node}: exit {node.exit}, its checks and errors give {' or '.join(str(int(c)) for c in due)}"
            yield problem("report-exit-differs", "summary", says)
        if (node.status in GOOD) != (node.exit == 0):
            yield problem("report-status-differs", "summary", f"{node.node}: {node.status} with exit {node.exit}")
        if node.drift_count < len(node.drift) or (node.drift_count and node.exit == 0):
            says = f"{node.node}: {node.drift_count} files drifted, exit {node.exit}"
            yield problem("report-drift-differs", "summary", says)
    known = [node for node in evidence.nodes if _code(node.exit) == node.exit]
    if evidence.exit != run_exit(known):
        says = f"the run: exit {evidence.exit}, its nodes give {int(run_exit(known))}"
        yield problem("report-exit-differs", "summary", says)


def _code(number: object) -> ExitCode:
    """An exit code of ours; what is none counts as a mistake of the tool."""
    try:
        return ExitCode(number)  # type: ignore[arg-type]
    except ValueError:
        return ExitCode.INTERNAL


def _equality(evidence: Evidence) -> Iterator[Finding]:
    found, due = evidence.equality, equality_of(evidence.nodes, None)
    says = ""
    if due is None:
        says = "there are no two nodes with a root to compare" if found is not None else ""
    elif found is None:
        says = "nodes have roots, and nothing is said of their equality"
    elif _who_is_equal(found) != _who_is_equal(due):
        count = len(_who_is_equal(due)[2])
        says = f"{len(due.nodes)} nodes have the root {due.root[:12]} and {count} deviate; another thing is said"
    if says:
        yield problem("report-equality-differs", "equality", says)


def _who_is_equal(found: Equality) -> tuple[str, set[str], list[str]]:
    """The root, the nodes that have it, and those that deviate."""
    return found.root, set(found.nodes), sorted(name for each in found.deviating for name in each.nodes)


def _nodes(evidence: Evidence, attached: Attached) -> Iterator[Finding]:
    names = [node.node for node in evidence.nodes]
    problems = [
        problem("report-node-twice", "nodes", f"{name} is there {count} times")
        for name, count in Counter(names).items()
        if count > 1
    ]
    planned = _planned(attached)
    journal = {
        str(event.get("node")): event.get("data") for event in attached.events if event.get("kind") == "node-finished"
    }
    problems += _against_steps(evidence, attached)
    for name in sorted({*planned, *journal} - set(names)):
        problems.append(problem("report-node-missing", "nodes", f"{name} was part of the run and is not in the report"))
    for node in evidence.nodes:
        problems += _against_journal(node, journal)
    started = next((event.get("data") for event in attached.events if event.get("kind") == "run-started"), None)
    if isinstance(started, dict) and (started.get("verb"), started.get("command")) != (
        evidence.verb,
        list(evidence.command),
    ):
        problems.append(problem("report-journal-differs", "nodes", "the journal is of another command"))
    for event in attached.later:
        if (
            event.get("kind") == "run-finished"
            and mapping(event.get("data")).get("exit", evidence.exit) != evidence.exit
        ):
            problems.append(problem("report-journal-differs", "nodes", "the journal ends with another exit of the run"))
    if there := [name for name, told in (("plan", planned), ("journal", journal)) if told]:
        says = f"all of the {' and the '.join(there)}, as {'these say' if len(there) > 1 else 'it says'}"
        yield from judged("nodes", f"{len(names)}: {says}", problems)
    else:
        yield from problems
        yield not_checked("nodes", "neither plan nor journal say which nodes were part of the run")
    if planned and not journal:
        yield not_checked("nodes", "how each ended: no journal says it")


def _end(attached: Attached) -> Iterator[Finding]:
    events = [*attached.events, *attached.later]
    if events and not any(event.get("kind") in _ENDS for event in events):
        yield not_checked("run", "how it ended: the journal ends before the run did")


def _planned(attached: Attached) -> set[str]:
    nodes = (attached.plan or {}).get("nodes")
    return {str(each.get("node")) for each in nodes if isinstance(each, dict)} if isinstance(nodes, list) else set()


def _against_journal(node: NodeEvidence, journal: dict[str, object]) -> Iterator[Finding]:
    told = journal.get(node.node)
    if isinstance(told, dict) and (told.get("status"), told.get("exit")) != (node.status, node.exit):
        says = (
            f"{node.node}: {node.status}, exit {node.exit}; the journal says {told.get('status')}, {told.get('exit')}"
        )
        yield problem("report-journal-differs", "nodes", says)


def _against_steps(evidence: Evidence, attached: Attached) -> Iterator[Finding]:
    """The times of the steps, where the evidence has any."""
    if not attached.events or not any(node.steps for node in evidence.nodes):
        return
    try:
        taken = steps(attached.events)
    except (ValueError, KeyError, TypeError):
        taken = {}
    for node in evidence.nodes:
        if node.steps != taken.get(node.node, ()):
            yield problem("report-journal-differs", "nodes", f"{node.node}: other times of steps than the journal has")


def _warnings(evidence: Evidence) -> Iterator[Finding]:
    """Those of GPUs stand in a check, too. Merging may call their node otherwise there."""
    told = [check.details.get(key) for check in all_checks(evidence) for key in GPU_WARNINGS]
    for text in dict.fromkeys(str(text) for texts in told if isinstance(texts, list) for text in texts):
        if not any(text in warning for warning in evidence.warnings):
            yield problem("report-warning-missing", "checks", f"no warning of the run: {text}")


def _deviations(evidence: Evidence, attached: Attached) -> Iterator[Finding]:
    if attached.profile is None:
        yield not_checked("deviations", "the stack's profile, which names those from its document, is not there")
        return
    wanted = attached.profile["contents"].get("deviations", ())
    missing = [str(text) for text in wanted if text not in evidence.deviations]
    trusted = any(node.first_use for node in evidence.nodes)
    if trusted and not any("trusted on first use" in text for text in evidence.deviations):
        missing.append("files trusted on first use")
    missing += [
        each.says
        for each in all_checks(evidence)
        if each.details.get("deviation") and each.says not in evidence.deviations
    ]
    problems = [problem("report-deviation-missing", "deviations", f"not told: {text}") for text in missing]
    yield from judged("deviations", f"{len(wanted)} of the stack are told", problems)
