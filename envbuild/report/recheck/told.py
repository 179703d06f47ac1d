"""What the checks of a report found, for people and for programs: the verdict first, what was not checked as large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envbuild.report.recheck.opened import Finding, Kind, Opened
from envbuild.text import plural, visible

_KINDS: tuple[tuple[Kind, str, str, str], ...] = (
    ("problem", "Does not hold", "✗", "bold red"),
    ("checked", "Checked", "✓", "green"),
    ("not-checked", "Not checked", "○", "yellow"),
)
_WIDEST = 10


def as_dict(report: Opened, findings: Sequence[Finding]) -> dict[str, Any]:
    """For `--json`: `ok`, the run, and the findings; `error` is the first problem."""
    problems = [finding for finding in findings if finding.kind == "problem"]
    first = {"error": {"code": problems[0].code, "what": problems[0].says, "exit": 5}} if problems else {}
    told = {
        "run": report.evidence.run,
        "stack": report.evidence.stack,
        "findings": [each.as_dict() for each in findings],
    }
    return {"ok": not problems, **first, **told}


def lines(report: Opened, findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """Lines of (text, style)."""
    problems = [finding for finding in findings if finding.kind == "problem"]
    open_ = sum(finding.kind == "not-checked" for finding in findings)
    name = visible(f"{report.evidence.stack}, run {report.evidence.run}")
    sure = f"{plural(open_, 'thing')} could not be checked" if open_ else "everything was checked"
    if problems:
        count = f"{plural(len(problems), 'statement')} of this report do{'es' * (len(problems) == 1)} not hold"
        says, style = f"✗ {name}: {count}; {sure}", "bold red"
    else:
        says, style = f"✓ {name}: what could be checked holds; {sure}", "bold green"
    out = [(says, style)]
    for kind, title, mark, colour in _KINDS:
        rows = [finding for finding in findings if finding.kind == kind]
        out += [("", ""), (title, "bold")] if rows else []
        for row in rows:
            text = visible(f"{row.code}: {row.says}" if row.code else row.says)
            out.append((f"  {mark} {row.topic:{_WIDEST}}  {text}", colour))
    return out
