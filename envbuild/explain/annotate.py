"""Joins the rows of a document with the findings about them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
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

    `offset` is the place of `text` in the document for rows whose text is one piece of it, else None: a command of
    several lines loses the indentation of its fence. `level` is the depth of a heading or list item, `fence` numbers
    the code block that a command is in, `marker` is the bullet or number of an item.
    """

    kind: RowKind
    text: str
    start: int
    end: int
    offset: int | None = None
    level: int = 0
    fence: int | None = None
    language: str = ""
    marker: str = ""


@dataclass
class _Cursor:
    lines: list[str]
    starts: list[int]
    at: int = 0

    def more(self) -> bool:
        return self.at < len(self.lines)


def parse(text: str) -> tuple[Row, ...]:
    """The rows of a document, in order. Never fails; line ends may be of any kind."""
    lines, starts, place = [], [], 0
    for line in text.splitlines(keepends=True):
        lines.append(line.rstrip("\r\n"))
        starts.append(place)
        place += len(line)
    cursor, rows, fences = _Cursor(lines, starts), [], 0
    while cursor.more():
        line, start = cursor.lines[cursor.at], cursor.starts[cursor.at]
        fence = _FENCE.match(line)
        if fence:
            rows += _fenced(cursor, fence, fences)
            fences += 1
        elif not line.strip():
            cursor.at += 1
        elif heading := _HEADING.match(line):
            inner = heading.start(2)
            rows.append(
                Row(
                    "heading",
                    heading[2],
                    start,
                    start + len(line),
                    offset=start + inner,
                    level=len(heading[1]),
                )
            )
            cursor.at += 1
        elif label := _LABEL.match(line):
            rows.append(Row("label", label[1].strip('"'), start, start + len(line)))
            cursor.at += 1
        else:
            rows.append(_statement(cursor))
    return tuple(rows)


def _statement(cursor: _Cursor) -> Row:
    """A paragraph or list item with the lines that continue it."""
    first = cursor.at
    line, start = cursor.lines[first], cursor.starts[first]
    item, definition = _ITEM.match(line), _DEFINITION.match(line)
    lead = item or definition
    inner = lead.end() if lead else len(line) - len(line.lstrip())
    cursor.at += 1
    while cursor.more() and _continues(cursor.lines[cursor.at]):
        cursor.at += 1
    last = cursor.at - 1
    end = cursor.starts[last] + len(cursor.lines[last])
    text = "\n".join([line[inner:], *(cursor.lines[n] for n in range(first + 1, cursor.at))])
    return Row(
        "item" if item else "prose",
        text,
        start,
        end,
        offset=start + inner,
        level=len(item[1]) // 2 if item else 0,
        marker=item[2] if item else "",
    )


def _continues(line: str) -> bool:
    return bool(line.strip()) and not any(form.match(line) for form in (_FENCE, _HEADING, _ITEM, _DEFINITION, _LABEL))


def _fenced(cursor: _Cursor, opening: re.Match[str], number: int) -> list[Row]:
    """The commands of one fenced block; an unclosed one ends with the document."""
    indent, ticks, language = len(opening[1]), opening[2], opening[3].lower()
    rows: list[Row] = []
    cursor.at += 1
    while cursor.more():
        line = cursor.lines[cursor.at]
        if line.strip().startswith(ticks) and not line.strip().strip(ticks[0]):
            cursor.at += 1
            break
        first = cursor.at
        cursor.at += 1
        if not line.strip():
            continue
        while language in _SHELL and cursor.more() and _CONTINUED.search(cursor.lines[cursor.at - 1]):
            cursor.at += 1
        taken = range(first, cursor.at)
        end = cursor.starts[taken[-1]] + len(cursor.lines[taken[-1]])
        text = "\n".join(_dedented(cursor.lines[n], indent) for n in taken)
        kind: RowKind = "comment" if line.strip().startswith("#") else "command"
        rows.append(Row(kind, text, cursor.starts[first], end, fence=number, language=language))
    return rows


def _dedented(line: str, indent: int) -> str:
    return line[indent:] if not line[:indent].strip() else line


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
    """Place every finding at its anchors, and what a rule finds at rows that no finding speaks of.

    An anchor belongs to the row of its first place in the text, or of the finding's `nth`.
    """
    rows = parse(text)
    first: list[_Place] = []
    also: list[_Place] = []
    rest: dict[bool, list[Finding]] = {True: [], False: []}
    for finding in findings:
        place = _place(text, rows, finding, finding.anchor, finding.nth) if finding.anchor else None
        if place is None:
            rest[finding.anchor is None].append(finding)
            continue
        first.append(place)
        also += [spot for anchor in finding.also if (spot := _place(text, rows, finding, anchor))]
    taken = {place.row for place in (*first, *also)}
    first += [_Place(n, rows[n].start, rows[n].text, f) for n, f in _unpinned(rows).items() if n not in taken]
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
