"""The annotated document and its markup: self-contained, escaped, and with every finding on it once."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.explain.annotate import Mark
from envbuild.explain.checks import CheckResult
from envbuild.explain.page import code_html, inline_html, render_page
from envbuild.explain.view import explain
from envbuild.model.stack import Stack
from tests.support.page import Page

Make = Callable[..., Stack]

TEXT = """# Set-up

Take <b>the newest</b> one.

1. One:

    ```bash
    $ git clone x
    $ echo '<script>alert(1)</script>'
    ```

1. Two.

See [the guide](https://example.org/guide).
"""


def page(stack: Stack, results: tuple[CheckResult, ...] = (), text: str = TEXT) -> str:
    return render_page(explain(stack, "exact", results=results), text)


def test_markup_is_balanced_and_nothing_is_loaded(make_stack: Make) -> None:
    html = page(make_stack({"anchor": "git clone", "replacement": "git checkout"}, {"severity": "note"}))
    parsed = Page(html)
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in parsed.tags}
    assert not re.search(r"url\(|@import|src=", html)
    assert all(a.get("href", "#").startswith(("#", "https://")) for tag, a in parsed.tags if tag == "a")
    assert "default-src 'none'" in html


def test_what_the_document_and_a_finding_hold_is_shown_and_never_run(make_stack: Make) -> None:
    finding = {"anchor": "the newest", "truth": "<img src=x>", "replacement": "<i>", "evidence": "<u>"}
    html = page(make_stack(finding))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "<b>the newest" not in html
    assert "&lt;b&gt;" in html
    assert "&lt;img src=x&gt;" in html
    assert "<img" not in html
    assert "<i>" not in html.replace("<i class", "")
    Page(page(make_stack(finding), text=""))


def test_every_finding_is_on_the_page_once_and_linked_from_its_place(make_stack: Make) -> None:
    stack = make_stack(
        {"id": "a", "anchor": "git clone"},
        {"id": "b", "anchor": "git clone x"},
        {"id": "silent"},
        {"id": "gone", "anchor": "not in this text"},
    )
    html = page(stack)
    ids = [a["id"] for tag, a in Page(html).tags if tag == "article"]
    assert sorted(ids) == ["f1", "f2", "f3", "f4"]
    assert 'href="#f1">1</a><a class="ref red" href="#f2">2</a>' in html
    unpinned = page(make_stack({"id": "silent"}), text=TEXT.replace("git clone x", "pip install six"))
    assert "of them by rule" not in html and "findings, 1 of them by rule" in unpinned
    assert "What the document does not say" in html
    assert "Findings about text that is not in this document" in html


def test_the_outcome_of_a_check_is_beside_its_finding(make_stack: Make) -> None:
    stack = make_stack({"id": "a", "anchor": "x", "check": {"kind": "zero-stage-refused", "stage": 2}})
    assert "1 check, not run<" in page(stack)
    holds = CheckResult("a", "zero-stage-refused", "asks `this`", "holds", "so it is")
    html = page(stack, (holds,))
    assert "checked, still so" in html
    assert "asks <code>this</code>" in html
    broken = CheckResult("a", "zero-stage-refused", "q", "broken", "no")
    assert "check failed" in page(stack, (broken,))


def test_ordered_items_count_on_and_commands_of_a_block_stay_together(make_stack: Make) -> None:
    html = page(make_stack({"anchor": "echo"}))
    assert re.findall(r'class="marker">([^<]+)<', html) == ["1.", "2."]
    [noted] = re.findall(r'<div class="group noted">(.*?)<div class="right">', html, re.S)
    assert "git clone x" in noted
    assert "echo" in noted


def mark(text: str, piece: str, number: int = 1) -> Mark:
    start = text.index(piece)
    return Mark(start, start + len(piece), "red", ((number, "red"),))


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a `b` c", "a <code>b</code> c"),
        ("**b** and *e*", "<strong>b</strong> and <em>e</em>"),
        ("[t](https://x.org/a?b=1&c)", '<a href="https://x.org/a?b=1&amp;c" rel="noreferrer">t</a>'),
        ("[`t`](https://x.org)", '<a href="https://x.org" rel="noreferrer"><code>t</code></a>'),
        ("[t](../README.md)", "<span>t</span>"),
        ("[t](javascript:alert(1))", "<span>t</span>"),
        ("$2$ pods", "2 pods"),
        ("<script>&", "&lt;script&gt;&amp;"),
    ],
)
def test_markdown_becomes_markup(text: str, html: str) -> None:
    assert inline_html(text, ()) == html


def test_a_marked_piece_is_followed_by_its_number() -> None:
    text = "one two three"
    assert inline_html(text, [mark(text, "two", 7)]) == (
        'one <mark class="red">two</mark><sup><a class="ref red" href="#f7">7</a></sup> three'
    )
    text = "see [t](https://x.org)."
    assert "x.org</span>" in inline_html(text, [mark(text, "https://x.org")]), "an address that a finding is about"
    assert code_html("sed 's/*a*/`b`/' <x", ()) == "sed 's/*a*/`b`/' &lt;x", "a command is never Markdown"


@given(
    st.text(alphabet="ab *`[]()!<>&\"'$1:/h", max_size=60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=3),
)
def test_any_text_with_any_marks_gives_balanced_harmless_markup(text: str, spans: list[tuple[int, int]]) -> None:
    marks: list[Mark] = []
    for start, length in sorted(spans):
        if start < len(text) and (not marks or start >= marks[-1].end):
            marks.append(Mark(start, min(start + length, len(text)), "red", ((1, "red"),)))
    tags = Page(inline_html(text, marks)).tags
    assert {tag for tag, _ in tags} <= {"code", "strong", "em", "a", "span", "mark", "sup"}
    for _, attributes in tags:
        assert attributes.keys() <= {"class", "href", "rel"}
        assert (attributes.get("href", "#f") or "").startswith(("https://", "#f"))
