"""Joins the rows of a document with the findings that speak of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from envbuild.explain.document import Row, parse
from envbuild.model.finding import Finding, Severity

Tone = Literal["red", "amber", "green", "plain"]

TONES: dict[Severity, Tone] = {"wrong": "red", "stale": "amber", "unpinned": "amber", "trap": "amber", "note": "green"}
_GRAVEST: tuple[Tone, ...] = ("red", "amber", "green", "plain")


@dataclass(frozen=True, slots=True)
class Mark:
    """A piece of a row's text (characters) that findings speak of; `numbers` are theirs."""

    start: int
    end: int
    tone: Tone
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnnotatedRow:
    """A row with its tone, its findings (numbered from 1 in the order of the document) and the pieces to mark."""

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


def gravest(tones: Sequence[Tone]) -> Tone:
    """The one tone that stands for several; `plain` for none."""
    return min(tones, key=_GRAVEST.index, default="plain")


def annotate(text: str, findings: Sequence[Finding]) -> Annotated:
    """Place every finding at its anchor. A finding belongs to the first row that its anchor is in."""
    rows = parse(text)
    placed: dict[int, list[tuple[int, Finding]]] = {}
    left_out: list[Finding] = []
    unplaced: list[Finding] = []
    for finding in findings:
        if finding.anchor is None:
            left_out.append(finding)
            continue
        place = text.find(finding.anchor)
        index = next((n for n, row in enumerate(rows) if place >= 0 and row.start <= place < row.end), None)
        if index is None:
            unplaced.append(finding)
        else:
            placed.setdefault(index, []).append((place, finding))
    out: list[AnnotatedRow] = []
    number = 0
    for index, row in enumerate(rows):
        here = sorted(placed.get(index, ()), key=lambda pair: pair[0])
        numbered = tuple((number + n + 1, finding) for n, (_, finding) in enumerate(here))
        number += len(here)
        out.append(AnnotatedRow(row, _tone(row, numbered), numbered, _marks(row, numbered)))
    rest = [*left_out, *unplaced]
    numbers = {finding.id: number + n + 1 for n, finding in enumerate(rest)}
    return Annotated(
        tuple(out),
        tuple((numbers[finding.id], finding) for finding in left_out),
        tuple((numbers[finding.id], finding) for finding in unplaced),
    )


def _tone(row: Row, findings: Sequence[tuple[int, Finding]]) -> Tone:
    if findings:
        return gravest([TONES[finding.severity] for _, finding in findings])
    return "plain" if row.kind in ("heading", "comment", "label") else "green"


def _marks(row: Row, findings: Sequence[tuple[int, Finding]]) -> tuple[Mark, ...]:
    """Where in the row's text the anchors are; anchors that overlap share one mark."""
    spans: list[Mark] = []
    for number, finding in findings:
        anchor = finding.anchor or ""
        start = row.text.find(anchor)
        if start < 0:
            # A heading is shown without its hashes, an item without its bullet.
            anchor = anchor.lstrip("#-*0123456789. ")
            start = row.text.find(anchor)
        if start < 0 or not anchor:
            start, anchor = 0, row.text
        spans.append(Mark(start, start + len(anchor), TONES[finding.severity], (number,)))
    merged: list[Mark] = []
    for span in sorted(spans, key=lambda mark: (mark.start, mark.end)):
        if merged and span.start < merged[-1].end:
            last = merged.pop()
            tone = gravest([last.tone, span.tone])
            merged.append(Mark(last.start, max(last.end, span.end), tone, last.numbers + span.numbers))
        else:
            merged.append(span)
    return tuple(merged)
