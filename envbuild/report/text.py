"""Makes foreign text harmless. Node output, package names and document texts may hold anything.

Terminal escapes, BiDi controls and invisible characters are shown as `\\x1b` or `\\u202e` instead of being acted on;
Markdown gets its own escaping. HTML is escaped by the template engine.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markupsafe import Markup

# Cc: C0 and C1 controls; Cf: BiDi controls, zero-width characters, tags; Cs, Co, Cn: what no reader should see;
# Zl, Zp: line and paragraph separators. U+034F, U+115F.. and U+FE0F and the like are invisible but not in these.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_HIDDEN_MORE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
_MARKDOWN = re.compile(r"([\\`*_\[\]|~#$])")
_LINE_END = re.compile(r"\r+(?=\n|\Z)")
_JOINTS = re.compile(r"([/_,])(?=\w)")
_BACKTICKS = re.compile(r"`+")


def visible(text: str, *, keep_newlines: bool = False) -> str:
    """`text` with every control, BiDi and invisible character written out as an escape.

    The carriage return that ssh ends its lines with goes.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _LINE_END.sub("", text)
    return "".join(char if (keep_newlines and char == "\n") or not _is_hidden(char) else _escape(char) for char in text)


def _is_hidden(char: str) -> bool:
    if " " <= char <= "~":
        return False
    return char in _HIDDEN_MORE or unicodedata.category(char) in _HIDDEN_CATEGORIES


def _escape(char: str) -> str:
    code = ord(char)
    if char == "\n":
        return " "
    if char == "\t":
        return " "
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def visible_data(value: Any) -> Any:
    """`visible` for every string (keys included) of JSON-like data; newlines stay where text has several lines."""
    if isinstance(value, str):
        return visible(value, keep_newlines=True)
    if isinstance(value, dict):
        return {visible(str(key)): visible_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [visible_data(item) for item in value]
    return value


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
