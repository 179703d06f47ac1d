"""Joins the rows of a document with the findings that speak of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from envbuild.explain.document import Row, parse
from envbuild.model.finding import Finding, Severity

Tone = Literal["red", "amber", "green", "plain"]

TONES: dict[Severity, Tone] = {"wrong": "red", "stale": "amber", "unpinned": "amber", "trap": "amber", "note": "green"}
_GRAVEST: tuple[Tone, ...] = ("red", "amber", "green", "plain")


@dataclass(frozen=True, slots=True)
class Mark:
    """A piece of a row's text (characters) that findings speak of; `numbers` are theirs, each with its own tone."""

    start: int
    end: int
    tone: Tone
    numbers: tuple[tuple[int, Tone], ...]


@dataclass(frozen=True, slots=True)
class AnnotatedRow:
    """A row with its tone and the pieces to mark; `findings` are those whose first anchor is here, numbered from 1."""

    row: Row
    tone: Tone
    findings: tuple[tuple[int, Finding], ...]
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Annotated:
    """The whole document. `left_out`: findings about what it does not say; `unplaced`: their anchor is not in it."""

    rows: tuple[AnnotatedRow, ...]
    left_out: tuple[tuple[int, Finding], ...]
    unplaced: tuple[tuple[int, Finding], ...]

    def count(self, tone: Tone) -> int:
        """Statements and commands of a tone."""
        return sum(1 for row in self.rows if row.tone == tone)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one anchor of a finding is: the row, and the character in the document."""

    row: int
    at: int
    anchor: str
    finding: Finding


def gravest(tones: Sequence[Tone]) -> Tone:
    """The one tone that stands for several; `plain` for none."""
    return min(tones, key=_GRAVEST.index, default="plain")


def annotate(text: str, findings: Sequence[Finding]) -> Annotated:
    """Place every finding at its anchors. An anchor belongs to the first row that it is found in."""
    rows = parse(text)
    first: list[_Place] = []
    also: list[_Place] = []
    rest: dict[bool, list[Finding]] = {True: [], False: []}
    for finding in findings:
        place = _place(text, rows, finding, finding.anchor) if finding.anchor else None
        if place is None:
            rest[finding.anchor is None].append(finding)
            continue
        first.append(place)
        also += [found for anchor in finding.also if (found := _place(text, rows, finding, anchor))]
    first.sort(key=lambda place: (place.row, place.at))
    order = [*(place.finding for place in first), *rest[True], *rest[False]]
    numbers = {finding.id: n for n, finding in enumerate(order, 1)}
    out = []
    for index, row in enumerate(rows):
        here = [place for place in first if place.row == index]
        everything = [*here, *(place for place in also if place.row == index)]
        out.append(
            AnnotatedRow(
                row,
                _tone(row, everything),
                tuple((numbers[place.finding.id], place.finding) for place in here),
                _marks(row, everything, numbers),
            )
        )
    return Annotated(
        tuple(out),
        tuple((numbers[finding.id], finding) for finding in rest[True]),
        tuple((numbers[finding.id], finding) for finding in rest[False]),
    )


def _place(text: str, rows: Sequence[Row], finding: Finding, anchor: str) -> _Place | None:
    at = text.find(anchor)
    index = next((n for n, row in enumerate(rows) if at >= 0 and row.start <= at < row.end), None)
    return None if index is None else _Place(index, at, anchor, finding)


def _tone(row: Row, places: Sequence[_Place]) -> Tone:
    if places:
        return gravest([TONES[place.finding.severity] for place in places])
    return "plain" if row.kind in ("heading", "comment", "label") else "green"


def _marks(row: Row, places: Sequence[_Place], numbers: Mapping[str, int]) -> tuple[Mark, ...]:
    """Where in the row's text the anchors are; anchors that overlap share one mark."""
    spans: list[Mark] = []
    for place in places:
        anchor = place.anchor
        start = row.text.find(anchor)
        if start < 0:
            # A heading is shown without its hashes, an item without its bullet.
            anchor = anchor.lstrip("#-*0123456789. ")
            start = row.text.find(anchor)
        if start < 0 or not anchor:
            start, anchor = 0, row.text
        tone = TONES[place.finding.severity]
        spans.append(Mark(start, start + len(anchor), tone, ((numbers[place.finding.id], tone),)))
    merged: list[Mark] = []
    for span in sorted(spans, key=lambda mark: (mark.start, mark.end)):
        if merged and span.start < merged[-1].end:
            last = merged.pop()
            tone = gravest([last.tone, span.tone])
            merged.append(Mark(last.start, max(last.end, span.end), tone, last.numbers + span.numbers))
        else:
            merged.append(span)
    return tuple(merged)
