"""A document is read in rows, and findings are notes beside them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from envbuild.explain.annotate import annotate, parse
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
        {"anchor": "$ git clone", "severity": "unpinned"},
        {"anchor": "clone x", "severity": "wrong"},
        {"anchor": "--flag", "severity": "note"},
        {"anchor": "done well", "also": ["Take the newest"], "severity": "trap"},
    )
    rows = {row.row.text.split("\n")[0]: row for row in annotate(TEXT, stack.findings).rows}
    assert {text: row.tone for text, row in rows.items()} == {
        "Set-up": "plain",
        "Take the newest one.": "amber",
        "$ git clone x": "red",
        "$ pip install \\": "green",
        "Done twice, done well.": "amber",
    }

    def marked(start: str) -> list[tuple[str, str, list[int]]]:
        row = rows[start]
        return [(row.row.text[m.start : m.end], m.tone, [number for number, _ in m.numbers]) for m in row.marks]

    assert marked("$ git clone x") == [("$ git clone x", "red", [1, 2])], "anchors that overlap share one mark"
    assert marked("$ pip install \\") == [("--flag", "green", [3])]
    assert rows["$ pip install \\"].row.text == "$ pip install \\\n    --flag .", "a continued line is of its command"
    other = rows["Take the newest one."]
    assert (other.findings, marked("Take the newest one.")[0][2]) == ((), [4]), "a further place has no second note"


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


INSTALLS = """## One
```bash
$ git clone https://git.example.org/one.git
$ cd one
$ pip install -e .
$ cd ..
$ git clone https://git.example.org/two.git
$ cd two
$ git checkout 0123456789abcdef0123456789abcdef01234567
$ pip install -e .
$ pip3 install ninja "six==1.17.0"
$ python -m pip install six==1.17.0
$ pip install -r requirements.txt
$ conda install -y cmake
$ conda create -y -n x python=3.9
$ pip install "git+https://git.example.org/three"
$ sudo apt-get install -y libopenmpi-dev
```
```dockerfile
RUN pip install deepspeed
```
"""


def test_d85_an_anchor_that_is_there_twice_belongs_to_its_nth_place(make_stack: Make) -> None:
    annotated = annotate(INSTALLS, make_stack({"anchor": "$ pip install -e .", "nth": 2, "severity": "wrong"}).findings)
    assert [row.tone for row in annotated.rows if row.row.text == "$ pip install -e ."] == ["amber", "red"]
    assert annotate(INSTALLS, make_stack({"anchor": "$ pip install -e .", "nth": 3}).findings).unplaced
    with pytest.raises(ValidationError, match="need an `anchor`"):
        make_stack({"nth": 2})


def test_d85_an_install_without_a_version_is_found_by_rule_in_any_document(make_stack: Make) -> None:
    annotated = annotate(INSTALLS, make_stack({"anchor": "pip install deepspeed", "severity": "note"}).findings)
    found = {row.row.text: finding.truth for row in annotated.rows for _, finding in row.findings}
    assert {text: re.search("of (.*):", truth)[1] for text, truth in found.items() if truth != "t"} == {  # type: ignore[index]
        "$ git clone https://git.example.org/one.git": "https://git.example.org/one",
        "$ pip install -e .": "https://git.example.org/one",
        '$ pip3 install ninja "six==1.17.0"': "ninja",
        "$ conda install -y cmake": "cmake",
        '$ pip install "git+https://git.example.org/three"': "https://git.example.org/three",
        "$ sudo apt-get install -y libopenmpi-dev": "libopenmpi-dev",
    }
    assert all(number == n for n, number in enumerate((n for row in annotated.rows for n, _ in row.findings), 1))
    assert {row.tone for row in annotated.rows if row.row.text == "RUN pip install deepspeed"} == {"green"}


WORDS = ("pip install", "git clone", "git checkout x", "-C", "-b", "-c", "conda create", "'", '"', "\\", "$(", "x",
         "\n", "@")  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=8))
@example(["git clone"])
@example(["git checkout x", "-C"])
def test_d85_no_command_is_refused_by_the_rule(words: list[str]) -> None:
    annotate(f"```sh\n{' '.join(words)}\n```", ())


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
    rows = parse(DOCUMENT)
    assert [(row.kind, row.text) for row in rows] == [
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
    assert [row.fence for row in rows if row.fence is not None] == [0, 0, 0, 1, 1], "lines continue in a shell only"
    for row in rows:
        assert row.text.split("\n")[0] in DOCUMENT[row.start : row.end]
    items = parse("- a\n    - b\n2) c\n")
    assert [(row.marker, row.level) for row in items] == [("-", 0), ("-", 2), ("2)", 0)]


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
