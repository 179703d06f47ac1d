"""Findings are placed at their anchors, numbered in the order of the document, and give rows their tone."""

from __future__ import annotations

from collections.abc import Callable

from envbuild.explain.annotate import annotate, gravest
from envbuild.model.stack import Stack

TEXT = """# Set-up

Take the newest one.

```bash
$ git clone x
$ pip install \\
    --flag .
```

Done twice, done well.
"""

Make = Callable[..., Stack]


def test_a_row_takes_the_gravest_tone_of_its_findings(make_stack: Make) -> None:
    stack = make_stack(
        {"anchor": "$ git clone x", "severity": "unpinned"},
        {"anchor": "git clone", "severity": "wrong"},
        {"anchor": "Take the newest", "severity": "note"},
    )
    tones = {row.row.text.split("\n")[0]: row.tone for row in annotate(TEXT, stack.findings).rows}
    assert tones == {
        "Set-up": "plain",
        "Take the newest one.": "green",
        "$ git clone x": "red",
        "$ pip install \\": "green",
        "Done twice, done well.": "green",
    }


def test_numbers_follow_the_document_and_what_it_leaves_out_comes_last(make_stack: Make) -> None:
    stack = make_stack(
        {"id": "silent"},
        {"id": "last", "anchor": "done well"},
        {"id": "gone", "anchor": "nowhere"},
        {"id": "top", "anchor": "# Set"},
    )
    annotated = annotate(TEXT, stack.findings)
    placed = [(number, finding.id) for row in annotated.rows for number, finding in row.findings]
    assert placed == [(1, "top"), (2, "last")]
    assert [(n, f.id) for n, f in annotated.left_out] == [(3, "silent")]
    assert [(n, f.id) for n, f in annotated.unplaced] == [(4, "gone")]


def test_an_anchor_in_a_continued_line_belongs_to_the_whole_command(make_stack: Make) -> None:
    [row] = [r for r in annotate(TEXT, make_stack({"anchor": "--flag"}).findings).rows if r.findings]
    assert row.row.text == "$ pip install \\\n    --flag ."
    [mark] = row.marks
    assert row.row.text[mark.start : mark.end] == "--flag"


def test_further_places_get_the_tone_and_the_number_but_no_second_note(make_stack: Make) -> None:
    annotated = annotate(
        TEXT, make_stack({"anchor": "done well", "also": ["Take the newest"], "severity": "trap"}).findings
    )
    [other] = [row for row in annotated.rows if row.row.text.startswith("Take")]
    assert (other.tone, other.findings, other.marks[0].numbers) == ("amber", (), ((1, "amber"),))


def test_anchors_that_overlap_share_one_mark(make_stack: Make) -> None:
    stack = make_stack({"anchor": "git clone", "severity": "trap"}, {"anchor": "clone x", "severity": "wrong"})
    [row] = [r for r in annotate(TEXT, stack.findings).rows if r.findings]
    [mark] = row.marks
    assert row.row.text[mark.start : mark.end] == "git clone x"
    assert (mark.tone, mark.numbers) == ("red", ((1, "amber"), (2, "red")))


def test_the_gravest_of_nothing_is_plain() -> None:
    assert gravest([]) == "plain"
    assert gravest(["green", "red", "amber"]) == "red"
