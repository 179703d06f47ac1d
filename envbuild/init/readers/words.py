"""Shell text as simple commands: words, operators and places. Nothing is expanded but literal variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

LARGEST = 2_000_000
# Possessive, so that hostile text costs linear time. A lone quote or `$` is a word of its own.
_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t\r\f\v]|\\\r?\n)++)
    |(?P<comment>\#[^\n]*+)
    |(?P<newline>\n)
    |(?P<redirect>[0-9]?(?:>>|>\||>&|<<<|<<-|<<|<&|<>|>|<)|&>>|&>)
    |(?P<operator>&&|\|\||;;|;|\|&|\||&|\(|\))
    |(?P<word>(?:
        \\.|'[^']*+'|"(?:\\.|[^"\\])*+"|`[^`]*+`
        |\$\((?:[^()]|\((?:[^()]|\([^()]*+\))*+\))*+\)|\$\{[^}\n]{0,400}+\}
        |[^\s;&|()<>'"\\`])++)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_PIECE = re.compile(r"""'([^']*+)'|"((?:\\.|[^"\\])*+)"|\\(.)|([^'"\\]+)""", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}]{0,400}))?\})")
# `$PROGRAM` is a variable, unless it is glued to a program that pages install with.
_PROMPT = re.compile(
    r"^[ \t]*(?:\([\w.-]+\)[ \t]*)?"
    r"(?:\$(?=[ \t]|(?:pip3?|conda|python3?|git|sudo|cd)\b)|%(?=[ ])|>(?=[ ])|!)[ \t]*(?=[A-Za-z./$~])"
)


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where output goes or input comes from."""

    operator: str
    target: str


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command: `before` and `after` are the operators beside it, newline as `\\n`."""

    words: tuple[str, ...]
    line: int
    column: int
    text: str
    before: str = "\n"
    after: str = "\n"
    redirects: tuple[Redirect, ...] = ()


def commands(text: str) -> Iterator[Command]:
    """The simple commands of a script; the bodies of here-documents are data and left out."""
    text = text[:LARGEST]
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    words: list[str] = []
    redirects: list[Redirect] = []
    before, first, last, line = "\n", 0, 0, 0
    pending = ""
    ends: list[str] = []
    place = 0
    while place <= len(text):
        match = _TOKEN.match(text, place)
        kind, token = (match.lastgroup or "", match[0]) if match else ("newline", "")
        while line + 1 < len(starts) and starts[line + 1] <= place:
            line += 1
        place = match.end() if match else len(text) + 1
        if kind in ("word", "other"):
            if pending:
                redirects.append(Redirect(pending, _plain(token)))
                if pending in ("<<", "<<-"):
                    ends.append(_plain(token))
                pending = ""
            else:
                if not words:
                    first, began = place - len(token), line
                words.append(token)
            last = place
        elif kind == "redirect":
            pending = token.lstrip("0123456789")
        elif kind in ("operator", "newline"):
            operator = token or "\n"
            if words:
                column = first - starts[began] + 1
                shown = text[first:last]
                yield Command(tuple(words), began + 1, column, shown, before, operator, tuple(redirects))
            if words or operator not in ("\n", "(", ")"):
                before = operator
            words, redirects, pending = [], [], ""
            if kind == "newline" and ends and match:
                place = _after_documents(text, place, ends)
                ends = []


def _after_documents(text: str, place: int, ends: list[str]) -> int:
    """Where a script goes on behind its here-documents."""
    for end in ends:
        match = re.compile(rf"^[ \t]*{re.escape(end)}[ \t]*$", re.MULTILINE).search(text, place)
        place = min(len(text), match.end() + 1) if match else len(text)
    return place


def _plain(word: str) -> str:
    """A word without its quotes and escapes."""
    return "".join(
        one if one is not None else re.sub(r"\\(.)", r"\1", two) if two is not None else (three or four or "")
        for one, two, three, four in (match.groups() for match in _PIECE.finditer(word))
    )


def plain(word: str, variables: Mapping[str, str]) -> str:
    """A word as the shell would give it to a program, as far as literal variables say; others stay `$NAME`."""
    if word.startswith("'") and word.endswith("'"):
        return _plain(word)

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[2], match[3]
        return variables.get(name, default if default is not None else match[0])

    return _VARIABLE.sub(value, _plain(word))


def without_prompts(text: str) -> str:
    """The commands of a session: where lines begin with a prompt, all others are what was printed."""
    lines = text.split("\n")
    shown = [bool(_PROMPT.match(line)) for line in lines]
    if not any(shown):
        return text
    kept, goes_on = [], False
    for line, prompt in zip(lines, shown, strict=True):
        blank = _PROMPT.sub(lambda match: " " * len(match[0]), line) if prompt else line if goes_on else ""
        kept.append(blank)
        goes_on = bool(blank) and blank.rstrip().endswith("\\")
    return "\n".join(kept)
