"""The reader of shell text: places, quotes and comments as a shell has them; it ends on whatever it is given."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.init.readers.words import commands, plain, without_prompts

SHELL = st.text(st.sampled_from("ab=1 \t\n\\'\"`$(){}#;&|<>-/.é"), max_size=120)


def words(text: str) -> list[tuple[str, ...]]:
    return [tuple(plain(word, {}) for word in command.words) for command in commands(text)]


def test_continued_lines_quotes_and_comments() -> None:
    text = "pip install 'a>=1' \\\n  \"b c\" d#e # f\n# pip install g\ncd x && make; true"
    assert words(text) == [("pip", "install", "a>=1", "b c", "d#e"), ("cd", "x"), ("make",), ("true",)]


def test_an_unquoted_comparison_is_a_redirection_as_it_is_for_a_shell() -> None:
    (command,) = commands("pip install numpy>=1.2")
    assert command.words == ("pip", "install", "numpy")
    assert [(each.operator, each.target) for each in command.redirects] == [(">", "=1.2")]


def test_bodies_of_here_documents_are_data() -> None:
    assert words("cat <<'EOF' > x\npip install evil\nEOF\npip install good") == [("cat",), ("pip", "install", "good")]


def test_operators_stand_beside_their_commands() -> None:
    first, second, third = commands("cd a & wget b || exit 0")
    assert (first.after, second.before, second.after, third.before) == ("&", "&", "||", "||")


def test_variables_that_are_literal_are_known_and_others_stay() -> None:
    assert plain('"${A}/$B-${C:-d}"', {"A": "x"}) == "x/$B-d"
    assert plain("'$A'", {"A": "x"}) == "$A"


def test_where_a_session_has_prompts_the_rest_is_output() -> None:
    assert words(without_prompts("$ pip install a \\\n    b\nCollecting a\n$ ls\n")) == [
        ("pip", "install", "a", "b"),
        ("ls",),
    ]


@given(SHELL)
@settings(max_examples=300)
def test_every_command_lies_where_it_says(text: str) -> None:
    lines = text.split("\n")
    for command in commands(text):
        assert lines[command.line - 1][command.column - 1 :].startswith(command.words[0].split("\n")[0])


@pytest.mark.parametrize("piece", ["$(", "'", '"\\', "`", "${", "${a-", "<<a\n", "\\\n", "a|", "$(("])
def test_hostile_text_takes_linear_time(piece: str) -> None:
    begin = time.process_time()
    for command in commands(piece * 20_000):
        plain(command.words[0], {})
    assert time.process_time() - begin < 4
