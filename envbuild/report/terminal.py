"""The closing summary on a terminal: verdict, what was built, where, and what to look at. Nothing of it is cut."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence

from envbuild.model.evidence import Check, Evidence, NodeEvidence
from envbuild.report import equality
from envbuild.report.render import shown
from envbuild.report.tables import headline, image_rows, seconds
from envbuild.report.verdict import GOOD, code_changed, failed_before, open_modules, reason
from envbuild.report.view import NODE_MARKS, View, cure, mark, run_words, to_add
from envbuild.text import COPIED, grouped, plural

_TONE_STYLES = {"good": "bold green", "partial": "bold yellow", "bad": "bold red"}
_TONE_MARKS = {"good": "✓", "partial": "!", "bad": "✗"}
_PASSED = 6  # checks that passed; the others are counted, unless all are asked for
_WIDEST_NAME = 38
_SHORT = 4  # lines of a `why` that are no output
_OUTPUT = "\n…\n"  # in the `why` of an error between what says why and what was printed last
_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")

Line = tuple[str, str]
"""text and style: words of bold, dim and a colour"""


def summary_lines(evidence: Evidence, report: str = "", *, verbose: bool = False) -> list[Line]:
    """Lines with a style each, as long as they are; colour is never the only signal.

    `report`: the HTML page to name. `verbose`: every check that passed, not only the first.
    """
    view = shown(evidence)
    evidence, verdict = view.evidence, view.verdict
    lines = [(f"{_TONE_MARKS[verdict.tone]} {verdict.sentence}", _TONE_STYLES[verdict.tone])]
    lines += [(f"  {verdict.detail}", ""), ("", "")]
    lines += _what(view)
    lines += _nodes(view)
    lines += _block([(f"  warning: {text}", "yellow") for text in evidence.warnings])
    lines += _checks(evidence, verbose=verbose)
    lines += _block([(f"  deviation: {text}", "") for text in evidence.deviations])
    lines += deviation_lines(evidence) + drift_lines(evidence) + output_lines(view)
    # On their nodes, of what the builds that failed printed.
    logs = (((node.error or {}).get("details") or {}).get("log") for node in view.nodes_by_need)
    tail = [(f"  log     {path}", COPIED) for path in logs if path]
    tail += [(f"  {name:<7} {text}", COPIED) for name, text in _next(view)]
    tail += [(f"  report  {report}", COPIED)] if report else []
    return [(text.replace("\n", " "), style) for text, style in lines] + tail


def _block(lines: list[Line]) -> list[Line]:
    return [("", ""), *lines] if lines else []


def deviation_lines(evidence: Evidence) -> list[Line]:
    """How nodes deviate from the root of most nodes; drift since the stamp is listed separately."""
    lines: list[Line] = []
    drifted = {node.node for node in evidence.nodes if node.drift_count}
    for group in evidence.equality.deviating if evidence.equality is not None else ():
        if not drifted.issuperset(group.nodes):
            lines += [
                ("", ""),
                (f"  ! {equality.names(group.nodes)} deviates: root {(group.root or '')[:12]}", "yellow"),
            ]
            lines += [(f"    {text}", "") for text in group.differs]
    return lines


def drift_lines(evidence: Evidence) -> list[Line]:
    """Every drifted file in the evidence with its whole path, to be copied, and how many more."""
    lines: list[Line] = []
    for node in evidence.nodes:
        if not node.drift_count:
            continue
        lines += [("", ""), (f"  {plural(node.drift_count, 'drifted file')} on {node.node}", "red")]
        for item in node.drift:
            owner = f" ({item['package']})" if "package" in item else ""  # of conda
            lines.append((f"    {item.get('kind', ''):<10} {item.get('path', '')}{owner}", ""))
        if node.drift_count > len(node.drift):
            lines.append((f"    and {node.drift_count - len(node.drift)} more", "dim"))
    return lines


def output_lines(view: View) -> list[Line]:
    """The output of the first failed node, if its error has any."""
    for node in view.nodes_by_need[:1]:
        _, printed = _why(node)
        if node.status not in GOOD and printed:
            head = ("", ""), (f"  the last {plural(len(printed), 'line')} from {node.node}", "red")
            return [*head, *((f"    {line}", "") for line in printed)]
    return []


def _next(view: View) -> list[tuple[str, str]]:
    """One line that activates what has been provisioned, and one that looks at every file of it again."""
    evidence = view.evidence
    node = next(
        (node for node in evidence.nodes if node.status in GOOD and node.environment and node.image is None), None
    )
    if evidence.verb not in ("provision", "verify") or node is None or node.environment is None:
        return []
    prefix = posixpath.dirname(posixpath.dirname(node.environment))
    script = posixpath.join(prefix, "current", evidence.stack, ".envbuild", "activate.sh")
    again, place = view.commands[1], run_words(evidence)[1][2:]
    failed = "; ".join(text for texts in failed_before(evidence).values() for text in texts)
    test = again.replace(" verify", " smoke", 1)
    if (mend := cure(failed, place, test)) != test:
        again = mend
    elif add := to_add([name for name in open_modules(evidence) if "." not in name], place):  # others are its own
        again = add
    elif any(check.details.get("differed") or check.details.get("rebuild") for check in node.checks):
        again = f"{again.replace(' verify', ' provision', 1)} --repair"
    elif code_changed(evidence) or failed:
        again = test
    elif evidence.verb == "verify":
        return []
    if evidence.verb == "verify":
        return [("next", again)]
    return [("use", f". {shlex.quote(script)}"), ("next", again)]


def _what(view: View) -> list[Line]:
    evidence = view.evidence
    wanted = ("Variant", "Python", "torch", "Variant digest", "Merkle root")
    values = {name: _DIGEST.sub(r"\1", value) for name, value in view.summary}
    rows = [(name, values[name]) for name in wanted if values[name] != "–"]
    if sentence := equality.sentence(evidence):
        rows = [row for row in rows if row[0] != "Merkle root"] + [("equality", sentence)]
    rows += image_rows(evidence)
    took = f", {seconds(sum(evidence.phases.values()))} in all" if evidence.phases else ""
    rows += view.sources
    return [(f"  {name.lower():<15} {value}", "") for name, value in rows] + [
        (f"  {'run':<15} {evidence.run}{took}", "dim")
    ]


def _why(node: NodeEvidence) -> tuple[str, list[str]]:
    """Why a node failed, and the lines of output that its error has besides."""
    why, mark, printed = str((node.error or {}).get("why") or "").partition(_OUTPUT)
    if not mark and len(why.splitlines()) > _SHORT:
        why, printed = "", why
    return why, [line.rstrip() for line in printed.splitlines() if line.strip()]


def _reason(node: NodeEvidence) -> list[Line]:
    """Why a node failed and what to do next; what its build printed stands at the end (`output_lines`)."""
    error = node.error or {}
    labelled = (("why", _why(node)[0]), ("hint", str(error.get("hint") or "")))
    lines = [f"{label}: {' '.join(text.split())}" for label, text in labelled if text]
    code = [f"error[{error['code']}]"] if error.get("code") and lines else []
    return [(f"    {part}", "red" if part in code else "") for part in code + lines]


def _nodes(view: View) -> list[Line]:
    """Those that failed first; nodes of which the same is to be said together."""
    from envbuild.hostlist import fold_hosts

    lines: list[Line] = [("", "")]

    def about(node: NodeEvidence) -> tuple[str, str, str]:
        what = (node.environment or "") if node.status in GOOD else reason(node)
        return node.status, what, "".join(text for text, _ in _reason(node))

    for (status, what, _), nodes in grouped(view.nodes_by_need, about).items():
        good = status in GOOD
        names = fold_hosts(node.node for node in nodes)
        lines.append((f"  {NODE_MARKS[status]} {names:<16} {status:<12} {what}".rstrip(), "" if good else "red"))
        lines += [] if good else _reason(nodes[0])
    return lines


def _checks(evidence: Evidence, *, verbose: bool) -> list[Line]:
    rows = _check_rows(evidence.nodes)
    others = [row for row in rows if row[0].status != "passed"]
    passed = rows[len(others) :]
    rows = others + (passed if verbose else passed[:_PASSED])
    lines: list[Line] = []
    wide = max([25, *(min(_WIDEST_NAME, len(check.name)) for check, _, _ in rows)])
    for check, says, _ in rows:
        took = seconds(check.seconds) if check.seconds is not None else ""
        style = {"failed": "red", "passed": ""}.get(check.status, "dim")
        if check.metrics and check.status == "passed":
            says = f"{headline(check)}; {says}"
        lines.append((f"  {mark(check)} {check.name:<{wide}} {took:>8}  {says}", style))
    rest = 0 if verbose else sum(count for _, _, count in passed[_PASSED:])
    if rest:
        lines.append((f"    {plural(rest, 'more check')} passed; `-v` shows all", "dim"))
    return _block(lines)


def _check_rows(nodes: Sequence[NodeEvidence]) -> list[tuple[Check, str, int]]:
    """A check, what it says, and for how many it stands: failed ones first, each with its node, then unchecked ones.

    Where several nodes passed or skipped the same check, the first speaks for all.
    """
    every = [(node.node, check) for node in nodes for check in node.checks]
    many = len(nodes) > 1
    failed = [(check, f"{who}: {check.says}" if many else check.says, 1)
              for who, check in every if check.status == "failed"]  # fmt: skip
    rest = [(who, check) for who, check in every if check.status != "failed"]
    # On one node each check speaks for itself, also beside one of the same name.
    groups = [[row] for row in rest]
    if many:
        groups = list(grouped(rest, lambda row: (row[1].name, row[1].status)).values())
    others = [(group[0][1], _sentence(group), len(group)) for group in groups]
    return failed + sorted(others, key=lambda row: row[0].status == "passed")


def _sentence(group: list[tuple[str, Check]]) -> str:
    who, first = group[0]
    if len(group) == 1:
        return first.says
    equal = all(check.says == first.says and check.metrics == first.metrics for _, check in group)
    return f"{plural(len(group), 'node')}{'' if equal else f', on {who}'}: {first.says}"
