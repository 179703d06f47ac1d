"""Inline Markdown becomes markup, everything else is escaped, and the markup is always balanced."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.explain.annotate import Mark
from envbuild.explain.page import code_html, inline_html


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


def test_an_address_is_shown_when_a_finding_is_about_it() -> None:
    text = "see [t](https://x.org)."
    assert "x.org</span>" in inline_html(text, [mark(text, "https://x.org")])


def test_a_command_is_never_markdown() -> None:
    assert code_html("sed 's/*a*/`b`/' <x", ()) == "sed 's/*a*/`b`/' &lt;x"


class Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.add(tag)
        for name, value in attrs:
            assert name in ("class", "href", "rel")
            assert name != "href" or (value or "").startswith(("https://", "#f"))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@given(
    st.text(alphabet="ab *`[]()!<>&\"'$1:/h", max_size=60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=3),
)
def test_any_text_with_any_marks_gives_balanced_harmless_markup(text: str, spans: list[tuple[int, int]]) -> None:
    marks: list[Mark] = []
    for start, length in sorted(spans):
        if start < len(text) and (not marks or start >= marks[-1].end):
            marks.append(Mark(start, min(start + length, len(text)), "red", ((1, "red"),)))
    parser = Balance()
    parser.feed(inline_html(text, marks))
    parser.close()
    assert not parser.open
    assert parser.seen <= {"code", "strong", "em", "a", "span", "mark", "sup"}
