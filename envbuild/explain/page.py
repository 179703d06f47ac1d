"""The annotated document as one self-contained HTML page."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.explain.annotate import TONES, Annotated, AnnotatedRow, Row, annotate
from envbuild.explain.inline import code_html, inline_html
from envbuild.explain.view import Explained, Explanation
from envbuild.model.finding import Finding
from envbuild.report.render import codes, style

# How every page begins: with what forbids all that follows to run, to load, or to send anything.
HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
"""  # noqa: E501
_HERE = Path(__file__).parent
_WORDS = {
    "wrong": ("Wrong", "✕"),
    "stale": ("No longer true", "~"),
    "unpinned": ("Unpinned", "?"),
    "trap": ("Trap", "!"),
    "note": ("Note", "i"),
}


# Characters on a line of a note and of the text, and how many lines of room beside a note hurt nobody.
_NOTE, _TEXT, _MUCH = 52, 88, 3
_TAG = re.compile(r"<[^>]*>")


def _lines(characters: int, wide: int) -> int:
    return -(-characters // wide)


@dataclass(frozen=True, slots=True)
class Card:
    """One finding as the page shows it."""

    number: int
    tone: str
    word: str
    sign: str
    explained: Explained

    @property
    def finding(self) -> Finding:
        """The finding itself."""
        return self.explained.finding


@dataclass(frozen=True, slots=True)
class PageRow:
    """One row of the page: `html` is already escaped markup; `edge` says where in its code block a command is."""

    kind: str
    tone: str
    html: str
    level: int
    marker: str
    edge: str
    cards: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that share their notes: a row with notes and those that follow it without, so that the text flows on.

    A block of commands is never split; its notes stand beside the whole block.
    """

    rows: tuple[PageRow, ...]

    @property
    def cards(self) -> tuple[Card, ...]:
        """The notes of all rows."""
        return tuple(card for row in self.rows for card in row.cards)

    @property
    def below(self) -> bool:
        """Whether the notes are so much longer than the text that they stand below it, in columns."""
        cards = [card.finding for card in self.cards]
        notes = sum(_lines(len(f.truth), _NOTE) + _lines(len(f.does), _NOTE) + 5 for f in cards)
        notes += sum(_lines(len(f.replacement), _NOTE) + 2 for f in cards if f.replacement)
        return notes > _MUCH + 1.4 * sum(_lines(len(_TAG.sub("", row.html)), _TEXT) + 0.6 for row in self.rows)


def render_page(explanation: Explanation, text: str, doubt: str = "") -> str:
    """The page for the document's `text`. What the text holds is escaped; nothing is loaded from anywhere.

    `doubt`: why the text may not be the pinned document, said before anything else.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    annotated = annotate(text, explanation.stack.findings)
    explained = {item.finding.id: item for item in explanation.findings}
    rows = _rows(annotated, explained)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["trusted"] = Markup  # what inline.py has escaped
    environment.filters["codes"] = codes
    template = environment.from_string((_HERE / "page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        e=explanation,
        document=explanation.stack.document,
        groups=_groups(rows),
        tones=[row.tone for row in rows if row.tone != "plain"],
        left_out=_cards(annotated.left_out, explained),
        unplaced=_cards(annotated.unplaced, explained),
        doubt=doubt,
        findings=Counter(TONES[finding.severity] for finding in annotated.findings),
        nothing_found=annotated.count("green"),
        severities=[(word, sign, name) for name, (word, sign) in _WORDS.items()],
        results=_result_counts(explanation, annotated),
        commands=_commands(explanation),
        style=style(),
        head=HEAD,
    )


def _commands(explanation: Explanation) -> list[str]:
    """What takes the place of the document, from a plan to a kit for reviewers."""
    profile = "" if explanation.profile == explanation.stack.default_profile else f" --profile {explanation.profile}"
    where = f"{explanation.stack.name}{profile} -t TARGET"
    bench = [f"envbuild bench {where}"] if explanation.contents.runs == "benchmark" else []
    made = [f"envbuild {verb} {where}" for verb in ("plan", "provision", "smoke")]
    return [*made, *bench, "envbuild report kit -o KIT"]


def _rows(annotated: Annotated, explained: dict[str, Explained]) -> list[PageRow]:
    rows = annotated.rows
    out = []
    ordinals: dict[int, int] = {}
    for place, item in enumerate(rows):
        row = item.row
        if row.kind == "heading":
            ordinals.clear()
        in_code = row.fence is not None
        html = code_html(row.text, item.marks) if in_code else inline_html(row.text, item.marks)
        out.append(
            PageRow(
                kind=row.kind,
                tone=item.tone,
                html=html,
                level=row.level,
                marker=_marker(row, ordinals),
                edge=_edge(rows, place) if in_code else "",
                cards=_cards(item.findings, explained),
            )
        )
    return out


def _marker(row: Row, ordinals: dict[int, int]) -> str:
    """A bullet or, as Markdown counts, the next number: every `1.` after the first is one more."""
    if not row.marker:
        return ""
    if not row.marker[:-1].isdigit():
        return "•"
    ordinals[row.level] = ordinals.get(row.level, int(row.marker[:-1]) - 1) + 1
    return f"{ordinals[row.level]}."


def _groups(rows: list[PageRow]) -> list[Group]:
    groups: list[list[PageRow]] = []
    block: list[PageRow] = []
    for row in rows:
        block.append(row)
        # A block is one row, or all commands of one fence.
        if row.edge and "last" not in row.edge:
            continue
        if not groups or any(member.cards for member in block) or block[0].kind == "heading":
            groups.append([])
        groups[-1] += block
        block = []
    return [Group(tuple(group)) for group in [*groups, block] if group]


def _edge(rows: tuple[AnnotatedRow, ...], place: int) -> str:
    fence = rows[place].row.fence
    first = place == 0 or rows[place - 1].row.fence != fence
    last = place + 1 == len(rows) or rows[place + 1].row.fence != fence
    return " ".join(["code", *(word for word, true in (("first", first), ("last", last)) if true)])


def _cards(findings: tuple[tuple[int, Finding], ...], explained: dict[str, Explained]) -> tuple[Card, ...]:
    return tuple(
        Card(number, TONES[f.severity], *_WORDS[f.severity], explained.get(f.id, Explained(f)))
        for number, f in findings
    )


def _result_counts(explanation: Explanation, annotated: Annotated) -> dict[str, Any]:
    results = explanation.results()
    return {
        "all": len(results),
        "holds": sum(1 for r in results if r.outcome == "holds"),
        "broken": sum(1 for r in results if r.outcome == "broken"),
        "not_run": sum(1 for r in results if r.outcome == "not-run"),
        "unverified": sum(finding.unverified for finding in annotated.findings),
    }
