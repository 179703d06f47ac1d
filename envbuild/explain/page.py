"""The annotated document as one self-contained HTML page."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from envbuild.explain.annotate import TONES, AnnotatedRow, Mark, Row, annotate
from envbuild.explain.view import Explained, Explanation
from envbuild.model.finding import Finding
from envbuild.report.render import style, template

_INLINE = re.compile(
    r"(?P<code>`[^`\n]+`)"
    r"|(?P<image>!\[[^\]\n]*\]\([^)\s]*\))"
    r"|(?P<link>\[(?:[^\[\]]|\[[^\]]*\])*\]\)?\([^)\s]*\)\)?)"
    r"|(?P<strong>\*{2,3}[^*\n]+\*{2,3})"
    r"|(?P<em>\*[^*\s][^*\n]*\*)"
    r"|(?P<maths>\$(?:\\quad|[0-9]+)\$)"
)
_LINK = re.compile(r"\[(?P<text>.*)\](?P<stray>\)?)\((?P<url>[^)\s]*)\)(?P<end>\)?)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of the source: shown inside `opening`…`closing`, or hidden unless a mark touches it."""

    start: int
    end: int
    opening: str = ""
    closing: str = ""
    hidden: bool = False


def code_html(text: str, marks: Sequence[Mark]) -> str:
    """A command: nothing in it is Markdown."""
    return _written(text, [_Piece(0, len(text))], marks)


def inline_html(text: str, marks: Sequence[Mark]) -> str:
    """A statement, heading or item."""
    return _written(text, _pieces(text), marks)


def _pieces(text: str) -> list[_Piece]:
    out, place = list[_Piece](), 0
    for match in _INLINE.finditer(text):
        out += [_Piece(place, match.start()), *_taken_apart(match)]
        place = match.end()
    return [*out, _Piece(place, len(text))]


def _taken_apart(match: re.Match[str]) -> list[_Piece]:
    start, end, kind = match.start(), match.end(), match.lastgroup
    if kind == "link":
        return _link(match[0], start)
    if kind == "image":
        return [_Piece(start, end, '<span class="url">', "</span>")]
    if kind == "maths":
        inner = match[0].strip("$")
        return [_Piece(start, end, hidden=True)] if not inner.isdigit() else _trimmed(start, end, 1, "", "")
    if kind == "code":
        return _trimmed(start, end, 1, "<code>", "</code>")
    ticks = len(match[0]) - len(match[0].lstrip("*"))
    tag = "strong" if kind == "strong" else "em"
    return _trimmed(start, end, ticks, f"<{tag}>", f"</{tag}>")


def _trimmed(start: int, end: int, by: int, opening: str, closing: str) -> list[_Piece]:
    return [
        _Piece(start, start + by, hidden=True),
        _Piece(start + by, end - by, opening, closing),
        _Piece(end - by, end, hidden=True),
    ]


def _link(text: str, start: int) -> list[_Piece]:
    parts = _LINK.match(text)
    if parts is None:
        return [_Piece(start, start + len(text))]
    url = parts["url"]
    opening, closing = "<span>", "</span>"
    if url.startswith("https://"):
        opening, closing = f'<a href="{escape(url, quote=True)}" rel="noreferrer">', "</a>"
    first, last = parts.span("text")
    label = parts["text"]
    if label.startswith("`") and label.endswith("`") and len(label) > 2:
        first, last = first + 1, last - 1
        opening, closing = opening + "<code>", "</code>" + closing
    first, last, url_start, url_end, end = (start + at for at in (first, last, *parts.span("url"), len(text)))
    return [
        _Piece(start, first, hidden=True),
        _Piece(first, last, opening, closing),
        _Piece(last, url_start, hidden=True),
        _Piece(url_start, url_end, '<span class="url">', "</span>", hidden=True),
        _Piece(url_end, end, hidden=True),
    ]


def _written(text: str, pieces: Sequence[_Piece], marks: Sequence[Mark]) -> str:
    out: list[str] = []
    closed: set[int] = set()
    for piece in pieces:
        cuts = sorted({piece.start, piece.end, *(c for m in marks for c in (m.start, m.end))})
        cuts = [c for c in cuts if piece.start <= c <= piece.end]
        for start, end in itertools.pairwise(cuts):
            mark = next((n for n, m in enumerate(marks) if m.start <= start and end <= m.end), None)
            # Of what Markdown hides only an address is worth showing, and only when a finding is about it.
            if piece.hidden and (mark is None or not piece.opening):
                continue
            content = escape(text[start:end], quote=False)
            shown = f"{piece.opening}{content}{piece.closing}"
            if mark is not None:
                shown = f'<mark class="{marks[mark].tone}">{shown}</mark>'
            out.append(shown)
            out += _references_until(end, marks, closed)
        out += _references_until(piece.end, marks, closed)
    return "".join(out)


def _references_until(place: int, marks: Sequence[Mark], closed: set[int]) -> list[str]:
    """The numbers of the marks that end at or before a place and have not been written yet."""
    due = [n for n, mark in enumerate(marks) if n not in closed and mark.end <= place]
    closed.update(due)
    links = ["".join(f'<a class="ref {tone}" href="#f{n}">{n}</a>' for n, tone in marks[at].numbers) for at in due]
    return [f"<sup>{text}</sup>" for text in links]


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
        cards = [card.explained.finding for card in self.cards]
        notes = sum(_lines(len(f.truth), _NOTE) + _lines(len(f.does), _NOTE) + 5 for f in cards)
        notes += sum(_lines(len(f.replacement), _NOTE) + 2 for f in cards if f.replacement)
        return notes > _MUCH + 1.4 * sum(_lines(len(_TAG.sub("", row.html)), _TEXT) + 0.6 for row in self.rows)


def render_page(explanation: Explanation, text: str, doubt: str = "") -> str:
    """The page for the document's `text`. What the text holds is escaped; nothing is loaded from anywhere.

    `doubt`: why the text may not be the pinned document, said before anything else.
    """
    annotated = annotate(text, explanation.stack.findings)
    explained = {item.finding.id: item for item in explanation.findings}
    rows = _rows(annotated.rows, explained)
    return template("explain.html.j2").render(
        e=explanation,
        document=explanation.stack.document,
        groups=_groups(rows),
        tones=[row.tone for row in rows if row.tone != "plain"],
        left_out=_cards(annotated.left_out, explained),
        unplaced=_cards(annotated.unplaced, explained),
        doubt=doubt,
        findings=Counter(TONES[finding.severity] for finding in annotated.findings),
        nothing_found=sum(row.tone == "green" for row in rows),
        severities=[(word, sign, name) for name, (word, sign) in _WORDS.items()],
        results=Counter(result.outcome for result in explanation.results()),
        by_rule=len(annotated.findings) - len(explanation.findings),
        unverified=sum(finding.unverified for finding in annotated.findings),
        commands=_commands(explanation),
        style=style(),
    )


def _commands(explanation: Explanation) -> list[str]:
    """What takes the place of the document, from a plan to a kit for reviewers."""
    profile = "" if explanation.profile == explanation.stack.default_profile else f" --profile {explanation.profile}"
    where = f"{explanation.stack.name}{profile} -t TARGET"
    bench = [f"envbuild bench {where}"] if explanation.contents.runs == "benchmark" else []
    made = [f"envbuild {verb} {where}" for verb in ("plan", "provision", "smoke")]
    return [*made, *bench, "envbuild report kit -o KIT"]


def _rows(rows: tuple[AnnotatedRow, ...], explained: dict[str, Explained]) -> list[PageRow]:
    out, ordinals = list[PageRow](), dict[int, int]()
    for place, item in enumerate(rows):
        row = item.row
        if row.kind == "heading":
            ordinals.clear()
        html = inline_html(row.text, item.marks) if row.fence is None else code_html(row.text, item.marks)
        marker, edge, cards = _marker(row, ordinals), _edge(rows, place), _cards(item.findings, explained)
        out.append(PageRow(row.kind, item.tone, html, row.level, marker, edge, cards))
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
    if fence is None:
        return ""
    first = place == 0 or rows[place - 1].row.fence != fence
    last = place + 1 == len(rows) or rows[place + 1].row.fence != fence
    return " ".join(["code", *(word for word, true in (("first", first), ("last", last)) if true)])


def _cards(findings: tuple[tuple[int, Finding], ...], explained: dict[str, Explained]) -> tuple[Card, ...]:
    return tuple(
        Card(number, TONES[f.severity], *_WORDS[f.severity], explained.get(f.id, Explained(f)))
        for number, f in findings
    )
