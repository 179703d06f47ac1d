"""The annotated document as one self-contained HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.explain.annotate import TONES, Annotated, AnnotatedRow, annotate
from envbuild.explain.inline import code_html, inline_html
from envbuild.explain.view import Explained, Explanation
from envbuild.model.finding import Finding

_HERE = Path(__file__).parent
_WORDS = {
    "wrong": ("Wrong", "✕"),
    "stale": ("No longer true", "⌛"),
    "unpinned": ("Unpinned", "◇"),
    "trap": ("Trap", "!"),
    "note": ("Note", "i"),
}


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


def render_page(explanation: Explanation, text: str) -> str:
    """The page for the document's `text`. What the text holds is escaped; nothing is loaded from anywhere."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    annotated = annotate(text, explanation.stack.findings)
    explained = {item.finding.id: item for item in explanation.findings}
    rows = _rows(annotated, explained)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["trusted"] = Markup
    template = environment.from_string((_HERE / "page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        e=explanation,
        document=explanation.stack.document,
        rows=rows,
        left_out=_cards(annotated.left_out, explained),
        unplaced=_cards(annotated.unplaced, explained),
        counts={tone: annotated.count(tone) for tone in ("red", "amber", "green")},
        severities=[(word, sign, name) for name, (word, sign) in _WORDS.items()],
        results=_result_counts(explanation),
        style=(_HERE / "page.css").read_text(encoding="utf-8"),
    )


def _rows(annotated: Annotated, explained: dict[str, Explained]) -> list[PageRow]:
    rows = annotated.rows
    out = []
    for place, item in enumerate(rows):
        row = item.row
        in_code = row.fence is not None
        html = code_html(row.text, item.marks) if in_code else inline_html(row.text, item.marks)
        out.append(
            PageRow(
                kind=row.kind,
                tone=item.tone,
                html=html,
                level=row.level,
                marker=row.marker,
                edge=_edge(rows, place) if in_code else "",
                cards=_cards(item.findings, explained),
            )
        )
    return out


def _edge(rows: tuple[AnnotatedRow, ...], place: int) -> str:
    fence = rows[place].row.fence
    first = place == 0 or rows[place - 1].row.fence != fence
    last = place + 1 == len(rows) or rows[place + 1].row.fence != fence
    return " ".join(word for word, true in (("first", first), ("last", last)) if true)


def _cards(findings: tuple[tuple[int, Finding], ...], explained: dict[str, Explained]) -> tuple[Card, ...]:
    return tuple(
        Card(number, TONES[f.severity], *_WORDS[f.severity], explained.get(f.id, Explained(f)))
        for number, f in findings
    )


def _result_counts(explanation: Explanation) -> dict[str, Any]:
    results = explanation.results()
    return {
        "all": len(results),
        "holds": sum(1 for r in results if r.outcome == "holds"),
        "broken": sum(1 for r in results if r.outcome == "broken"),
        "not_run": sum(1 for r in results if r.outcome == "not-run"),
        "unverified": sum(1 for item in explanation.findings if item.finding.unverified),
    }
