"""The closing summary on a terminal: verdict, what was built, where, and what to look at; one 80 by 24 screen."""

from __future__ import annotations

import posixpath
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence

from envbuild.model.evidence import Check, Evidence, NodeEvidence
from envbuild.report import equality
from envbuild.report.machines import image_rows, seconds
from envbuild.report.render import shown
from envbuild.report.tables import headline
from envbuild.report.verdict import GOOD, reason
from envbuild.report.view import MARKS, NODE_MARKS, View
from envbuild.text import plural

WIDTH = 80
HEIGHT = 23  # the last line is the shell's
_TONE_STYLES = {"good": "bold green", "partial": "bold yellow", "bad": "bold red"}
_TONE_MARKS = {"good": "✓", "partial": "!", "bad": "✗"}
_MAX_NODES = 3
_MAX_CHECKS = 6
_MAX_WARNINGS = 2
_MAX_BUILT = 3
_MAX_WHY = 4
_MAX_HINT = 4
_MAX_LAST = 15
_LONGEST = 240  # a compile command may be some thousand characters
_WIDEST_NAME = 38
_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")

Line = tuple[str, str]
"""text and style: words of bold, dim and a colour"""


def summary_lines(evidence: Evidence, report: str = "", *, width: int = WIDTH) -> list[Line]:
    """`closing_lines`, those of deviations and of drift, and `failure_lines`; `report`: the HTML page to name."""
    view = shown(evidence)
    lines = closing_lines(view, report, width=width) + deviation_lines(view.evidence) + drift_lines(view.evidence)
    return lines + failure_lines(view)


def closing_lines(view: View, report: str = "", *, width: int = WIDTH) -> list[Line]:
    """At most 23 lines of at most `width` columns, each with a style; colour is never the only signal.

    Only commands and the paths of the report and of the first failed node's log may be longer, to be copied.
    """
    evidence, verdict = view.evidence, view.verdict
    lines: list[Line] = []
    for index, part in enumerate(_wrap(f"{_TONE_MARKS[verdict.tone]} {verdict.sentence}", 3, width)):
        lines.append((part if index == 0 else f"  {part}", _TONE_STYLES[verdict.tone]))
    lines.append((f"  {verdict.detail}", ""))
    lines.append(("", ""))
    lines += _what(view)
    lines += _nodes(view, width)
    lines += _warnings(evidence)
    tail = [(f"  log     {path}", "cyan") for path in _logs(view)[:1]]
    tail += [(f"  {name:<7} {text}", "cyan") for name, text in _next(view)]
    tail += [(f"  report  {report}", "cyan")] if report else []
    lines += _checks(evidence, HEIGHT - len(lines) - len(tail))
    lines += _deviations(evidence, HEIGHT - len(lines) - len(tail))
    return [(_cut(text, width), style) for text, style in lines[: HEIGHT - len(tail)]] + tail


def _logs(view: View) -> list[str]:
    """Paths, on their nodes, of what the builds that failed printed."""
    details = [(node.error or {}).get("details") or {} for node in view.nodes_by_need]
    return [str(each["log"]) for each in details if each.get("log")]


def deviation_lines(evidence: Evidence) -> list[Line]:
    """In what nodes deviate from the root that most have; what has drifted since it was stamped is named apart."""
    lines: list[Line] = []
    drifted = {node.node for node in evidence.nodes if node.drift_count}
    for each in evidence.equality.deviating if evidence.equality is not None else ():
        if not drifted.issuperset(each.nodes):
            lines += [("", ""), (f"  ! {equality.names(each.nodes)} deviates: root {(each.root or '')[:12]}", "yellow")]
            lines += [(f"    {text}", "") for text in each.differs]
    return lines


def _owner(item: Mapping[str, str]) -> str:
    """The conda package of a drifted file, where it is of one."""
    return f" ({item['package']})" if "package" in item else ""


def drift_lines(evidence: Evidence) -> list[Line]:
    """Every drifted file that the evidence names, whole, because paths are there to be copied, and how many more."""
    lines: list[Line] = []
    for node in evidence.nodes:
        if not node.drift_count:
            continue
        lines += [("", ""), (f"  {plural(node.drift_count, 'drifted file')} on {node.node}", "red")]
        lines += [(f"    {item.get('kind', ''):<10} {item.get('path', '')}{_owner(item)}", "") for item in node.drift]
        if node.drift_count > len(node.drift):
            lines.append((f"    and {node.drift_count - len(node.drift)} more", "dim"))
    return lines


def failure_lines(view: View) -> list[Line]:
    """The last lines of what the first node that failed said, where there are more than stand in the summary."""
    for node in view.nodes_by_need[:1]:
        said = [line.rstrip() for line in str((node.error or {}).get("why", "")).splitlines() if line.strip()]
        if node.status not in GOOD and len(said) > _MAX_WHY:
            shown = said[-_MAX_LAST:]
            head = ("", ""), (f"  the last {plural(len(shown), 'line')} from {node.node}", "red")
            return [*head, *((f"    {_cut(line, _LONGEST)}", "") for line in shown)]
    return []


def _next(view: View) -> list[tuple[str, str]]:
    """One line that activates what has been provisioned, and one that looks at every file of it again."""
    evidence = view.evidence
    node = next(
        (node for node in evidence.nodes if node.status in GOOD and node.environment and node.image is None), None
    )
    if evidence.verb != "provision" or node is None or node.environment is None:
        return []
    prefix = posixpath.dirname(posixpath.dirname(node.environment))
    script = posixpath.join(prefix, "current", evidence.stack, ".envbuild", "activate.sh")
    return [("use", f". {shlex.quote(script)}"), ("next", view.commands[1])]


def _cut(text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def _wrap(text: str, most: int, width: int) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width - 2, max_lines=most, placeholder=" …") or [text]


def _what(view: View) -> list[Line]:
    evidence = view.evidence
    wanted = ("Variant", "Python", "torch", "Variant digest", "Merkle root")
    values = {name: _DIGEST.sub(r"\1", value) for name, value in view.summary}
    rows = [(name, values[name]) for name in wanted if values[name] != "–"]
    if said := equality.sentence(evidence):
        rows = [row for row in rows if row[0] != "Merkle root"] + [("equality", said)]
    rows += image_rows(evidence)
    took = f", {seconds(sum(evidence.phases.values()))} in all" if evidence.phases else ""
    built = view.sources
    rows += built[:_MAX_BUILT]
    if len(built) > _MAX_BUILT:
        rows.append(("", f"and {plural(len(built) - _MAX_BUILT, 'more source')}"))
    return [(f"  {name.lower():<15} {value}", "") for name, value in rows] + [
        (f"  {'run':<15} {evidence.run}{took}", "dim")
    ]


def _reason(node: NodeEvidence, width: int) -> list[Line]:
    """Why a node failed and what to do next."""
    error = node.error or {}
    # The last lines of an output stand at the end (`failure_lines`); before its `…` is the one that says why.
    told = {"why": str(error.get("why") or "").partition("\n…\n")[0], "hint": str(error.get("hint") or "")}
    said = ((label, most, told[label]) for label, most in (("why", _MAX_WHY), ("hint", _MAX_HINT)))
    wrapped = [part for label, most, text in said if text for part in _wrap(f"{label}: {text}", most, width - 4)]
    code = [f"error[{error['code']}]"] if error.get("code") and wrapped else []
    return [(f"    {part}", "red" if part in code else "") for part in code + wrapped]


def _nodes(view: View, width: int) -> list[Line]:
    nodes = view.nodes_by_need
    lines: list[Line] = [("", "")]
    for index, node in enumerate(nodes[:_MAX_NODES]):
        good = node.status in GOOD
        what = (node.environment or "") if good else reason(node)
        style = "" if good else "red"
        lines.append((f"  {NODE_MARKS[node.status]} {node.node:<16} {node.status:<12} {what}", style))
        # Those that failed stand first, most often all of them for one reason.
        lines += _reason(node, width) if not good and not index else []
    rest = nodes[_MAX_NODES:]
    if rest:
        bad = sum(node.status not in GOOD for node in rest)
        note = f", {bad} of them failed" if bad else ""
        lines.append((f"    and {plural(len(rest), 'more node')}{note}", "red" if bad else "dim"))
    return lines


def _warnings(evidence: Evidence) -> list[Line]:
    """The first ones; how many there are is in the verdict."""
    shown = [f"  warning: {text}".replace("\n", " ") for text in evidence.warnings[:_MAX_WARNINGS]]
    rest = len(evidence.warnings) - len(shown)
    shown += [f"    and {plural(rest, 'more warning')} in the report"] if rest else []
    return [("", "")] * bool(shown) + [(text, "yellow") for text in shown]


def _checks(evidence: Evidence, room: int) -> list[Line]:
    rows = _check_rows(evidence.nodes)
    if not rows or room < 3:
        return []
    shown = rows[: min(_MAX_CHECKS, room - 1 if len(rows) < room else room - 2)]
    lines: list[Line] = [("", "")]
    wide = max([25, *(min(_WIDEST_NAME, len(check.name)) for check, _, _ in shown)])
    for check, says, _ in shown:
        took = seconds(check.seconds) if check.seconds is not None else ""
        style = {"failed": "red", "passed": ""}.get(check.status, "dim")
        if check.metrics and check.status == "passed":
            says = f"{headline(check)}; {says}"
        lines.append((f"  {MARKS[check.status]} {check.name:<{wide}} {took:>8}  {says}", style))
    rest = sum(count for _, _, count in rows[len(shown) :])
    if rest:
        lines.append((f"    and {plural(rest, 'more check')}", "dim"))
    return lines


def _check_rows(nodes: Sequence[NodeEvidence]) -> list[tuple[Check, str, int]]:
    """A check, what it says, and for how many it stands: failed ones first, each with its node, then unchecked ones.

    Where several nodes passed or skipped the same check, the first speaks for all.
    """
    every = [(node.node, check) for node in nodes for check in node.checks]
    many = len(nodes) > 1
    failed = [(check, f"{who}: {check.says}" if many else check.says, 1) for who, check in every if _bad(check)]
    groups: dict[object, list[tuple[str, Check]]] = {}
    for index, (who, check) in enumerate(every):
        if not _bad(check):
            groups.setdefault((check.name, check.status) if many else index, []).append((who, check))
    others = [(group[0][1], _said(group), len(group)) for group in groups.values()]
    return failed + sorted(others, key=lambda row: row[0].status == "passed")


def _bad(check: Check) -> bool:
    return check.status == "failed"


def _said(group: list[tuple[str, Check]]) -> str:
    who, first = group[0]
    if len(group) == 1:
        return first.says
    equal = all(check.says == first.says and check.metrics == first.metrics for _, check in group)
    return f"{plural(len(group), 'node')}{'' if equal else f', on {who}'}: {first.says}"


def _deviations(evidence: Evidence, room: int) -> list[Line]:
    """In at most `room` lines; how many there are is in the verdict."""
    texts = evidence.deviations
    if not texts or room < 2:
        return []
    fits = len(texts) if len(texts) < room else room - 2
    lines: list[Line] = [("", "")]
    lines += [(f"  deviation: {text}".replace("\n", " "), "") for text in texts[:fits]]
    if len(texts) > fits:
        lines.append((f"  {plural(len(texts) - fits, 'more deviation')} in the report", "dim"))
    return lines
