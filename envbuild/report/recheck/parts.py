"""A merged report: each part checked by itself, and the whole computed from them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from envbuild.errors import EnvbuildError
from envbuild.model.evidence import Evidence, Part
from envbuild.report.merge.evidence import PartEvidence, merged, part_of, share
from envbuild.report.recheck.finding import Finding, checked, judged, not_checked, problem
from envbuild.report.recheck.opened import Opened, open_report
from envbuild.report.sections.gaps import UNSHOWN
from envbuild.text import plural

_TOPIC = "parts"
Check = Callable[[Opened], list[Finding]]


def check_parts(report: Opened, check: Check) -> Iterator[Finding]:
    """All that is to be said of the parts; `check` checks one report but for parts of its own."""
    evidence = report.evidence
    listed = {item.path: item.sha256 for item in evidence.attachments if item.kind == "part"}
    there = [part for part in evidence.parts if _file(part) in listed and (report.folder / _file(part)).is_file()]
    if there:
        yield from _each(report, there, listed, check)
    if missing := [part.run for part in evidence.parts if part not in there]:
        says = f"not beside the merged report: {', '.join(missing)}; what it says of them was not compared"
        yield not_checked(_TOPIC, says)
    yield not_checked(_TOPIC, UNSHOWN)


def _file(part: Part) -> str:
    return f"parts/{part.run}/evidence.json"


def _each(report: Opened, parts: list[Part], listed: dict[str, str], check: Check) -> Iterator[Finding]:
    problems, unchecked, good = list[Finding](), Counter[tuple[str, str]](), list[PartEvidence]()
    signed = 0
    for part in parts:
        try:
            opened = open_report(report.folder / "parts" / part.run)
        except EnvbuildError as error:
            problems.append(problem(error.code, _TOPIC, f"{part.run}: {error.what}: {error.why}"))
            continue
        good.append(part_of(opened.text, opened.evidence))
        if not good[-1].sha256 == part.sha256 == listed[_file(part)]:
            problems.append(problem("report-part-differs", _TOPIC, f"{part.run} is not the report that was merged"))
        if opened.evidence.parts:
            problems.append(problem("report-merge-differs", _TOPIC, f"{part.run} is merged itself"))
        found = check(opened)
        problems += [problem(each.code, _TOPIC, f"{part.run}: {each.says}") for each in found if each.kind == "problem"]
        unchecked.update((each.topic, each.says) for each in found if each.kind == "not-checked")
        signed += opened.envelope is not None
    says = f"each of {len(parts)} holds by itself, {signed} of them signed"
    yield from judged(_TOPIC, says, problems)
    for (topic, said), count in unchecked.items():
        if topic not in ("page", "run"):  # a part has no pages, and its journal as far as its digest goes
            yield not_checked(_TOPIC, f"of {plural(count, 'part')}: {topic}: {said}")
    if good:
        yield _compared(report.evidence, good)


def _compared(evidence: Evidence, parts: list[PartEvidence]) -> Finding:
    """The whole computed from all parts; where some are missing, what the others have in it."""
    whole = len(parts) == len(evidence.parts)
    try:
        same = _is_whole(evidence, parts) if whole else all(_is_share(evidence, part) for part in parts)
    except (EnvbuildError, ValueError) as error:
        return problem("report-merge-differs", _TOPIC, f"these parts cannot be merged: {error}")
    if not same or [node.node for node in evidence.nodes] != [name for part in evidence.parts for name in part.nodes]:
        return problem("report-merge-differs", _TOPIC, "the merged report does not say what its parts do")
    if not whole:
        return checked(_TOPIC, f"every node, check and figure of {plural(len(parts), 'part')} is that of its part")
    return checked(_TOPIC, "every node, check and figure is that of its part, and nothing was added or left out")


def _is_whole(evidence: Evidence, parts: list[PartEvidence]) -> bool:
    made = merged(parts, evidence.envbuild)
    return evidence == made.model_copy(
        update={"attachments": evidence.attachments, "schema_version": evidence.schema_version}
    )


def _is_share(evidence: Evidence, part: PartEvidence) -> bool:
    row, nodes = share(part, evidence.started)
    return row in evidence.parts and nodes == tuple(node for node in evidence.nodes if node.node in row.nodes)
