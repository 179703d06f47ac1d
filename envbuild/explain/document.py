"""Takes a setup document (Markdown) apart into rows: headings, statements and single commands, each with its place.

Only what such documents use: headings, paragraphs, lists, definition lists, fenced code (also indented), admonitions.
Nothing is lost: whatever is not recognised is a paragraph.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

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
