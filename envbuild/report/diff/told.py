"""Changes as lines of a terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence

from envbuild.model.evidence import Evidence
from envbuild.report import equality, render
from envbuild.report.diff.compare import Change, compare
from envbuild.report.verdict import make_verdict
from envbuild.text import plural, visible

_MARKS = {"worse": ("✗", "red"), "slipped": ("↓", "red"), "changed": ("·", "")}


def sentence(changes: Sequence[Change]) -> str:
    """`2 things got worse, 1 figure slipped, 3 changed`."""
    counts = {kind: sum(change.kind == kind for change in changes) for kind in _MARKS}
    said = [f"{plural(counts['worse'], 'thing')} got worse"] if counts["worse"] else []
    said += [f"{plural(counts['slipped'], 'figure')} slipped out of the spread"] if counts["slipped"] else []
    said += [f"{plural(counts['changed'], 'thing')} changed"] if counts["changed"] else []
    return ", ".join(said) or "nothing that both runs looked at is other"


def _verdict(after: Evidence, changes: Sequence[Change]) -> tuple[bool, str]:
    """Whether all is well, and that in words; what `changes` leave open, the verdict of `after` says."""
    bad = any(change.kind != "changed" for change in changes)
    failed = f". {make_verdict(after).sentence}" if after.exit and not bad else ""
    return not bad and not after.exit, sentence(changes) + failed


def lines(before: Evidence, after: Evidence, changes: Sequence[Change]) -> list[tuple[str, str]]:
    """Lines of (text, style)."""
    good, says = _verdict(after, changes)
    title = f"{'✓' if good else '✗'} {after.run} against {before.run}: {says}"
    out = [(visible(title), "bold green" if good else "bold red")]
    for change in changes:
        mark, colour = _MARKS[change.kind]
        where = f" on {equality.names(change.nodes)}" if change.nodes else ""
        text = f"{change.topic} {change.what}{where}: {change.before} → {change.after}"
        out.append((f"  {mark} {visible(text)}", colour))
    return out


def page(before: Evidence, after: Evidence) -> str:
    """One self-contained page, in the style of the report."""
    one, other = render.harmless(before), render.harmless(after)
    changes = compare(one, other)
    good, says = _verdict(other, changes)
    more = {"changes": changes, "good": good, "sentence": says, "marks": _MARKS}
    return render.template("diff.html.j2").render(before=one, after=other, style=render.safe_style(), **more)
