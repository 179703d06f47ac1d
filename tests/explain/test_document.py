"""A document is taken apart into rows without losing anything."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from envbuild.explain.annotate import parse

DOCUMENT = """# Title #

A statement over
two lines.

!!! note

    Said aside.

1. First:

    ```bash
    # a comment
    echo one \\
        two

    echo three
    ```

- bullet

`name`

:   its definition

```yaml
GPU: x \\
CPU: y
"""


def test_headings_statements_items_and_commands_are_rows_of_their_own() -> None:
    shown = [(row.kind, row.text) for row in parse(DOCUMENT)]
    assert shown == [
        ("heading", "Title"),
        ("prose", "A statement over\ntwo lines."),
        ("label", "note"),
        ("prose", "Said aside."),
        ("item", "First:"),
        ("comment", "# a comment"),
        ("command", "echo one \\\n    two"),
        ("command", "echo three"),
        ("item", "bullet"),
        ("prose", "`name`"),
        ("prose", "its definition"),
        ("command", "GPU: x \\"),
        ("command", "CPU: y"),
    ]


def test_a_continued_line_belongs_to_its_command_in_a_shell_only() -> None:
    rows = parse(DOCUMENT)
    assert [row.fence for row in rows if row.fence is not None] == [0, 0, 0, 1, 1]
    assert [row.language for row in rows if row.fence == 1] == ["yaml", "yaml"]


def test_places_are_those_in_the_document() -> None:
    for row in parse(DOCUMENT):
        assert row.text.split("\n")[0] in DOCUMENT[row.start : row.end]
        if row.offset is not None:
            assert DOCUMENT[row.offset : row.offset + len(row.text)] == row.text


def test_an_item_keeps_its_marker_and_depth() -> None:
    rows = parse("- a\n    - b\n2) c\n")
    assert [(row.marker, row.level) for row in rows] == [("-", 0), ("-", 2), ("2)", 0)]


LINES = st.sampled_from(
    ["# h", "- i", "```bash", "```", "    ```", "word *x*", "", "!!! note", ":   d", "a \\", "\t$ x"]
)


@given(st.lists(LINES, max_size=30), st.sampled_from(["\n", "\r\n"]))
def test_no_word_is_lost_and_rows_never_overlap(lines: list[str], end: str) -> None:
    text = end.join(lines)
    rows = parse(text)
    places = [(row.start, row.end) for row in rows]
    assert places == sorted(places)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(places))
    covered = set()
    for start, stop in places:
        covered.update(range(start, stop))
    left = "".join(c for n, c in enumerate(text) if n not in covered)
    assert not left.replace("`", "").replace("bash", "").strip()


@given(st.text(max_size=400))
def test_no_text_is_refused(text: str) -> None:
    for row in parse(text):
        assert 0 <= row.start <= row.end <= len(text)
