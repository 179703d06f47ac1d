"""Writes the text of a row as HTML: inline Markdown becomes markup, marked pieces become `<mark>`; all is escaped."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from envbuild.explain.annotate import Mark

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
    out: list[_Piece] = []
    place = 0
    for match in _INLINE.finditer(text):
        if match.start() > place:
            out.append(_Piece(place, match.start()))
        out += _taken_apart(match)
        place = match.end()
    if place < len(text):
        out.append(_Piece(place, len(text)))
    return out


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
    opening = f'<a href="{escape(url, quote=True)}" rel="noreferrer">' if url.startswith("https://") else "<span>"
    closing = "</a>" if url.startswith("https://") else "</span>"
    label = text[parts.start("text") : parts.end("text")]
    if label.startswith("`") and label.endswith("`") and len(label) > 2:
        inner = (parts.start("text") + 1, parts.end("text") - 1)
        opening, closing = opening + "<code>", "</code>" + closing
    else:
        inner = (parts.start("text"), parts.end("text"))
    return [
        _Piece(start, start + inner[0], hidden=True),
        _Piece(start + inner[0], start + inner[1], opening, closing),
        _Piece(start + inner[1], start + parts.start("url"), hidden=True),
        _Piece(start + parts.start("url"), start + parts.end("url"), '<span class="url">', "</span>", hidden=True),
        _Piece(start + parts.end("url"), start + len(text), hidden=True),
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
    return [_references(marks[n]) for n in due]


def _references(mark: Mark) -> str:
    links = "".join(f'<a class="ref {tone}" href="#f{n}">{n}</a>' for n, tone in mark.numbers)
    return f"<sup>{links}</sup>"
