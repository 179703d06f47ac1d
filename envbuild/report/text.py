"""Makes foreign text harmless in Markdown; HTML is escaped by the template engine. Node output may hold anything."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envbuild.text import visible

if TYPE_CHECKING:
    from markupsafe import Markup

_MARKDOWN = re.compile(r"([\\`*_\[\]|~#$])")
_JOINTS = re.compile(r"([/_,])(?=\w)")
_BACKTICKS = re.compile(r"`+")


def breakable(name: object) -> Markup:
    """`name` as HTML that a narrow column may break after `/`, `_` and `,` and not in a word."""
    from markupsafe import Markup, escape

    return Markup(_JOINTS.sub(r"\1<wbr>", str(escape(name))))  # noqa: S704


def unbroken(figure: str) -> str:
    """A figure that a narrow column breaks neither at `=` nor before `%`."""
    return figure.replace(" = ", "\u00a0=\u00a0").replace(" %", "\u00a0%")


def markdown_text(value: object) -> str:
    """`value` as inline Markdown prose that contains no markup, HTML, mention or link of its own."""
    text = _MARKDOWN.sub(r"\\\1", visible(str(value)))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")
    return text.replace("://", "&#58;//").replace("www.", "www&#46;") or "–"


def markdown_code(value: object) -> str:
    """`value` as a Markdown code span that cannot be left from inside, also in a table cell."""
    text = visible(str(value))
    if not text.strip():
        return "–"
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest or text[0] == " " or text[-1] == " " else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


def markdown_block(text: str, language: str = "text") -> str:
    """Several lines as a fenced block that cannot be left from inside; `language` is a word of ours, for colours."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{visible(text, keep_newlines=True)}\n{fence}"
