"""Joins the rows of a document with the findings about them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from envbuild.init.known import exact_version
from envbuild.init.readers.shell import Shell
from envbuild.init.statement import Statement
from envbuild.model.finding import Finding, Severity, requirement

RowKind = Literal["heading", "prose", "item", "label", "command", "comment"]

_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([A-Za-z0-9_+-]*)\s*$")
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$")
_ITEM = re.compile(r"^(\s*)([-*+]|[0-9]+[.)])\s+(?=\S)")
_DEFINITION = re.compile(r"^:\s+(?=\S)")
_LABEL = re.compile(r"^!!!\s+(\S.*)$")
_SHELL = frozenset({"", "bash", "sh", "shell", "console", "python"})
_CONTINUED = re.compile(r"\\\s*$")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the document: `text` as shown, `start` and `end` its place in the document (characters).

    A command of several lines loses the indentation of its fence. `level` is the depth of a heading or list item,
    `fence` numbers the code block that a command is in, `marker` is the bullet or number of an item.
    """

    kind: RowKind
    text: str
    start: int
    end: int
    level: int = 0
    fence: int | None = None
    marker: str = ""


_Lines = deque[tuple[int, str]]
"""The lines that are left, each with its place in the document."""


def parse(text: str) -> tuple[Row, ...]:
    """The rows of a document, in order. Never fails; line ends may be of any kind."""
    lines, place = _Lines(), 0
    for line in text.splitlines(keepends=True):
        lines.append((place, line.rstrip("\r\n")))
        place += len(line)
    rows, fences = list[Row](), 0
    while lines:
        start, line = lines.popleft()
        if fence := _FENCE.match(line):
            rows += _fenced(lines, fence, fences)
            fences += 1
        elif heading := _HEADING.match(line):
            rows.append(Row("heading", heading[2], start, start + len(line), level=len(heading[1])))
        elif label := _LABEL.match(line):
            rows.append(Row("label", label[1].strip('"'), start, start + len(line)))
        elif line.strip():
            rows.append(_statement(lines, start, line))
    return tuple(rows)


def _statement(lines: _Lines, start: int, line: str) -> Row:
    """A paragraph or list item with the lines that continue it."""
    item = _ITEM.match(line)
    lead = item or _DEFINITION.match(line)
    texts, end = [line[lead.end() :] if lead else line.lstrip()], start + len(line)
    others = (_FENCE, _HEADING, _ITEM, _DEFINITION, _LABEL)
    while lines and lines[0][1].strip() and not any(form.match(lines[0][1]) for form in others):
        place, line = lines.popleft()
        texts.append(line)
        end = place + len(line)
    text = "\n".join(texts)
    return Row("item", text, start, end, len(item[1]) // 2, marker=item[2]) if item else Row("prose", text, start, end)


def _fenced(lines: _Lines, opening: re.Match[str], number: int) -> Iterator[Row]:
    """The commands of one fenced block; an unclosed one ends with the document."""
    indent, ticks, language = len(opening[1]), opening[2], opening[3].lower()
    while lines:
        start, line = lines.popleft()
        if line.strip().startswith(ticks) and not line.strip().strip(ticks[0]):
            return
        if not line.strip():
            continue
        kind: RowKind = "comment" if line.strip().startswith("#") else "command"
        texts, end = [line], start + len(line)
        while language in _SHELL and lines and _CONTINUED.search(line):
            place, line = lines.popleft()
            texts.append(line)
            end = place + len(line)
        dedented = (text[indent:] if not text[:indent].strip() else text for text in texts)
        yield Row(kind, "\n".join(dedented), start, end, fence=number)


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

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them, those by rule too."""
        rows = (pair for row in self.rows for pair in row.findings)
        return tuple(finding for _, finding in (*rows, *self.left_out, *self.unplaced))


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
    """Place every finding at its anchors, and what a rule finds at rows that no finding speaks of.

    An anchor belongs to the row of its first place in the text, or of the finding's `nth`.
    """
    rows = parse(text)
    first, also, left_out, unplaced = list[_Place](), list[_Place](), list[Finding](), list[Finding]()
    for finding in findings:
        if finding.anchor is None:
            left_out.append(finding)
        elif place := _place(text, rows, finding, finding.anchor, finding.nth):
            first.append(place)
            also += [spot for anchor in finding.also if (spot := _place(text, rows, finding, anchor))]
        else:
            unplaced.append(finding)
    taken = {place.row for place in (*first, *also)}
    first += [_Place(n, rows[n].start, rows[n].text, f) for n, f in _unpinned(rows).items() if n not in taken]
    first.sort(key=lambda place: (place.row, place.at))
    order = [*(place.finding for place in first), *left_out, *unplaced]
    numbers = {finding.id: n for n, finding in enumerate(order, 1)}

    def numbered(some: Iterable[Finding]) -> tuple[tuple[int, Finding], ...]:
        return tuple((numbers[finding.id], finding) for finding in some)

    out = []
    for index, row in enumerate(rows):
        here = [place for place in first if place.row == index]
        places = [*here, *(place for place in also if place.row == index)]
        unmarked: Tone = "plain" if row.kind in ("heading", "comment", "label") else "green"
        tone = gravest([TONES[place.finding.severity] for place in places]) if places else unmarked
        out.append(AnnotatedRow(row, tone, numbered(place.finding for place in here), _marks(row, places, numbers)))
    return Annotated(tuple(out), numbered(left_out), numbered(unplaced))


def _place(text: str, rows: Sequence[Row], finding: Finding, anchor: str, nth: int = 1) -> _Place | None:
    at = -1
    for _ in range(nth):
        at = text.find(anchor, at + 1)
        if at < 0:
            return None
    index = next((n for n, row in enumerate(rows) if row.start <= at < row.end), None)
    return None if index is None else _Place(index, at, anchor, finding)


_DOCKERFILE = re.compile(r"RUN\s+")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


def _unpinned(rows: Sequence[Row]) -> dict[int, Finding]:
    """By row what its command installs without a version or commit, as `init` reads commands."""
    shell = Shell("document", session=True)
    statements = [(n, statement) for n, row in enumerate(rows) if row.kind == "command"
            for statement in shell.read(_DOCKERFILE.sub("", row.text, count=1))]  # fmt: skip
    pinned = {
        statement.get("source")
        for _, statement in statements
        if statement.kind == "checkout" and _COMMIT.fullmatch(statement.value)
    }
    names: dict[int, list[str]] = {}
    for n, statement in statements:
        if name := _open_name(statement, pinned):
            names.setdefault(n, []).append(name)
    return {
        n: Finding(
            id=f"unpinned-{n}",
            says=rows[n].text,
            truth=f"No version or commit is named of {', '.join(open_names)}: what is installed changes with the day.",
            evidence="the command, found by rule",
            does="installs the versions and commits of the lock",
            severity="unpinned",
            unverified=True,
        )
        for n, open_names in names.items()
    }


def _open_name(statement: Statement, pinned: Set[str]) -> str:
    """What an install leaves open; empty where it is pinned, or is no install."""
    if statement.kind == "package":
        package = requirement(statement.value)
        return "" if package.url or exact_version(package.specifier) else package.name
    if statement.kind == "conda":
        return "" if statement.get("version") else statement.get("name")
    if statement.kind == "source":
        return "" if statement.value in pinned or _COMMIT.fullmatch(statement.get("ref")) else statement.value
    if statement.kind == "local":
        source = statement.get("source")
        return "" if source in pinned else source
    return statement.value if statement.kind == "system" else ""


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
