"""An explanation as plain text for a terminal or a file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from envbuild.explain.view import SEVERITIES, Decided, Explained, Explanation
from envbuild.model.finding import Severity
from envbuild.model.plan import Resolution
from envbuild.text import grouped, plural

_TITLES: dict[Severity, str] = {
    "wrong": "Wrong",
    "stale": "No longer true",
    "unpinned": "Unpinned",
    "trap": "Traps",
    "note": "Notes",
}
_OUTCOMES = {"holds": "checked: still so", "broken": "CHECK FAILED: no longer so", "not-run": "check not run"}


def render_text(explanation: Explanation, width: int = 100, *, met: bool = False) -> str:
    """The whole explanation: what is built, the findings, then the decisions.

    `width` is the line length in characters. `met`: with the rules that nodes meet, which are counted otherwise.
    """
    return "\n".join(_lines(explanation, width, met=met)).rstrip() + "\n"


def render_summary(explanation: Explanation) -> str:
    """The counts of findings, and of checks where they were run: what is printed beside a page."""
    return "\n".join(line for line in (_counts(explanation), *_results(explanation)) if line) + "\n"


def _counts(explanation: Explanation) -> str:
    counts = ", ".join(f"{len(explanation.of(s))} {s}" for s in SEVERITIES if explanation.of(s))
    return f"{len(explanation.findings)} findings: {counts}" if explanation.findings else "no findings"


def _lines(explanation: Explanation, width: int, *, met: bool) -> Iterator[str]:
    stack, document = explanation.stack, explanation.stack.document
    yield _wrapped("", f"{stack.name} ({explanation.profile}): {stack.summary}", width)
    if explanation.profile_why:
        yield _wrapped(f"profile {explanation.profile}: ", explanation.profile_why, width)
    if document:
        of_github = document.url.startswith("https://github.com/") and document.commit and document.path
        between = f"blob/{document.commit}" if of_github else ""
        where = "/".join(part for part in (document.url, between, document.path) if part)
        commit = f" at {document.commit[:8]}" if document.commit and not of_github else ""
        yield _wrapped("document: ", f"{document.title}, {where}{commit}", width)
    yield from _size(explanation, width)
    yield _counts(explanation)
    yield from _profile(explanation, width)
    for severity in SEVERITIES:
        items = explanation.of(severity)
        if items:
            yield ""
            yield f"{_TITLES[severity]} ({len(items)})"
            for item in items:
                yield from _finding(item, width)
    yield from _results(explanation)
    yield from _decisions(explanation.decided, width, met=met)


def _size(explanation: Explanation, width: int) -> Iterator[str]:
    """The figure that `bench` compares with, and how many nodes the largest model needs."""
    reference, least = explanation.stack.reference, explanation.least_nodes
    named = reference.bench.figure if reference and reference.bench else None
    for figure in reference.figures if reference else ():
        if figure.name == named:
            value = f"{'at least ' if figure.least else ''}{figure.value:g} {figure.unit}"
            yield _wrapped("figure: ", f"{value}, {figure.model} on {figure.where}; `bench` compares with it", width)
    if least:
        held = f"{least.needed_gb:.0f} GB of weights, gradients and optimizer state, {least.node_gb:.0f} GB a node"
        needs = f"{least.model} needs at least {least.nodes} nodes for its memory alone ({held})"
        yield _wrapped("nodes: ", f"{needs}; {least.source}", width)


def _finding(item: Explained, width: int) -> Iterator[str]:
    finding = item.finding
    mark = _OUTCOMES[item.outcome] if item.outcome else "unverified" if finding.unverified else ""
    yield ""
    yield f"  {finding.id}" + (f"  [{mark}]" if mark else "")
    for label, text in (
        ("says", finding.says),
        ("truth", finding.truth),
        ("evidence", finding.evidence),
        ("does", finding.does),
        ("instead", finding.replacement or ""),
    ):
        if text:
            yield _wrapped(f"    {label + ':':10}", text, width)
    for result in item.results:
        if result.outcome != "holds":
            yield _wrapped("    check:    ", f"{result.question}: {result.detail}", width)


def _results(explanation: Explanation) -> Iterator[str]:
    results = explanation.results()
    if results:
        counts = {outcome: sum(1 for r in results if r.outcome == outcome) for outcome in _OUTCOMES}
        unverified = sum(1 for item in explanation.findings if item.finding.unverified)
        yield ""
        yield (
            f"{len(results)} checks: {counts['holds']} hold, {counts['broken']} broken, {counts['not-run']} not run; "
            f"{unverified} findings unverified"
        )


def _section(title: str, rows: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    """An empty line, the title, and each text behind what stands before it; nothing without a row."""
    if lines := [_wrapped(head, text, width) for head, text in rows]:
        yield from ("", *([title] if title else []), *lines)


def _profile(explanation: Explanation, width: int) -> Iterator[str]:
    profile = explanation.contents
    size = max((len(source.name) for source in profile.sources), default=0)
    sources = [(f"  {tree.name:{size}}  ", f"your working tree {tree.path}, used where it lies")
               for tree in profile.working_trees]  # fmt: skip
    for source in profile.pinned_sources:
        patches = f", patches {', '.join(source.patches)}" if source.patches else ""
        sources.append((f"  {source.name:{size}}  {source.commit[:12]}  ", f"{source.git}{patches}"))
    edits = []
    for run in explanation.recipes:
        edits.append((f"  {run.source}  ", f"{run.says}{f': {run.outcome}' if run.outcome else ''}"))
        edits.append(("    instead: ", f"{run.patch}: {run.does}"))
    yield from _section("Deviations from the document", [("  - ", text) for text in profile.deviations], width)
    yield from _section("Sources", sources, width)
    yield from _section("The document's own edits, and ours", edits, width)


def _decisions(decided: Decided, width: int, *, met: bool) -> Iterator[str]:
    yield from _section("", [("any node: ", text) for text in decided.rules], width)
    head = "decisions: " if decided.resolutions else ""
    yield from _section("", [(head, decided.note)] if decided.note else [], width)
    yield from decision_lines(decided.resolutions, width, met=met)
    profiles = [(f"  {other.name}: ", "fits" if other.fits else f"does not fit either: {other.why}")
                for other in decided.others]  # fmt: skip
    yield from _section("Other profiles", profiles, width)


def decision_lines(resolutions: Iterable[Resolution], width: int, *, met: bool = True) -> Iterator[str]:
    """What each rule decided for nodes and compared, once for those that are alike; rules that nodes meet if `met`."""
    alike = grouped(resolutions, lambda resolution: (resolution.variant_id, resolution.decisions))
    for resolution, *others in alike.values():
        nodes = [member.node for member in (resolution, *others)]
        named = nodes[0] if not others else f"{len(nodes)} nodes ({nodes[0]} to {nodes[-1]})"
        yield ""
        yield f"Decisions for {named}: {resolution.variant_id or f'refused, nearest is {resolution.nearest}'}"
        printed = [decision for decision in resolution.decisions if met or decision.verdict != "allow"]
        for decision in printed:
            # Rules have the names of their failures, so the name stands behind what is so.
            compared = f": {decision.compared[0]} against {decision.compared[1]}" if decision.compared else ""
            says = f"{decision.what} (rule {decision.rule}{compared})"
            yield _wrapped(f"  {decision.verdict:7} ", says, width)
            if decision.alternatives:
                yield _wrapped("          instead: ", decision.alternatives, width)
        if rest := len(resolution.decisions) - len(printed):
            yield f"  allow   {plural(rest, 'more rule' if printed else 'rule')}; `-v` shows all"


def _wrapped(head: str, text: str, width: int) -> str:
    lines = textwrap.wrap(text, max(40, width - len(head)), break_long_words=False, break_on_hyphens=False) or [""]
    return head + ("\n" + " " * len(head)).join(lines)
