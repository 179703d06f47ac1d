"""Foreign text can neither act on a terminal nor be markup."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.report import sources, tables
from envbuild.report.render import codes, markdown_block, markdown_code, markdown_sentence, markdown_text
from envbuild.text import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("\x9b31m", "\\x9b31m"),
        ("abc\u202etxt.exe", "abc\\u202etxt.exe"),
        ("a\u200bb\ufeffc", "a\\u200bb\\ufeffc"),
        ("a\U000e0041b", "a\\U000e0041b"),
        ("two\nlines\tand tab", "two lines and tab"),
        ("Zürich 8192×8192 东京 ✓", "Zürich 8192×8192 东京 ✓"),
    ],
)
def test_hidden_characters_are_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_nothing_hidden_is_left(text: str) -> None:
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in visible(text))


def test_only_code_between_backticks_is_markup_in_a_sentence() -> None:
    assert codes("rm `a*` *b* <") == "rm <code>a*</code> *b* &lt;"
    assert codes("one ` tick <") == "one ` tick &lt;"
    assert markdown_sentence("`rm *` or *b* <") == "`rm *` or \\*b\\* &lt;"
    assert markdown_sentence("one ` tick") == "one \\` tick"


@pytest.mark.parametrize(
    "text",
    [
        "<script>",
        "[a](http://b)",
        "![x](y)",
        "`code`",
        "a|b",
        "*bold*",
        "@someone",
        "www.example.org",
        "&lt;",
        "~~no~~",
    ],
)
def test_markdown_prose_has_no_markup_of_its_own(text: str) -> None:
    shown = markdown_text(text)
    assert shown != text
    for start in ("<", "[", "`", "|", "*", "~"):
        assert all(shown[i - 1] == "\\" for i, char in enumerate(shown) if char == start)


@given(st.text(alphabet="`|ab\n <"))
def test_a_code_span_and_a_block_cannot_be_left(text: str) -> None:
    span = markdown_code(text)
    if span != "–":
        fence = span[: len(span) - len(span.lstrip("`"))]
        inside = span[len(fence) : -len(fence)]
        assert span.endswith(fence)
        assert fence not in inside
        assert "\n" not in span
        assert "|" not in inside.replace("\\|", "")
    block = markdown_block(text)
    fence = block.split("text\n", 1)[0]
    assert fence not in block[len(fence) : -len(fence)]


def test_the_line_ends_of_ssh_are_no_escapes() -> None:
    assert visible("Permission denied (publickey).\r\r\nagain\r") == "Permission denied (publickey). again"
    assert visible("over\rwritten") == "over\\x0dwritten", "one that acts on a terminal is still shown"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(299.6, "5 min 0 s"), (179.5, "3 min 0 s"), (125.2, "2 min 5 s"), (7199.9, "120 min 0 s")]
)
def test_no_time_has_sixty_seconds_beside_its_minutes(seconds: float, shown: str) -> None:
    assert tables.seconds(seconds) == sources._seconds(seconds) == shown
