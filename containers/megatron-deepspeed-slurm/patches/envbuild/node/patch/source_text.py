"""The text of one file to patch: bytes kept as they are, places by syntax, masks for what is not Python.

Offsets are character offsets into `Source.text`. The text keeps its own line ends; encoding and byte order mark are
kept apart, so that an unchanged text encodes to the same bytes.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile("\r\n|\r|\n")
_SHOWN = 3
_Node = TypeVar("_Node", bound=ast.AST)


class UnfitError(Exception):
    """A file is not what an edit was written for; the text says what was expected and what was found.

    `where`: character offset of the place, when there is one.
    """

    def __init__(self, text: str, where: "int | None" = None) -> None:
        """Keep the place for the error message."""
        super().__init__(text)
        self.where = where


class Change(NamedTuple):
    """Replace `text[start:end]` by `new` (with `\\n` line ends). `hit`: counts towards the expected number of hits."""

    start: int
    end: int  # equal to `start`: inserts
    new: str
    hit: bool = True


class Source:
    """One file. `path` is relative to the patched directory, for messages only."""

    def __init__(self, path: str, data: bytes) -> None:
        """Raises UnfitError when the bytes are no text in the encoding that they declare."""
        self.path = path
        self.bom = data.startswith(_BOM)
        body = data[len(_BOM) :] if self.bom else data
        self.encoding = _encoding(path, body)
        try:
            self.text = body.decode(self.encoding)
        except (UnicodeDecodeError, LookupError) as error:
            raise UnfitError("is no %s text: %s" % (self.encoding, error)) from None
        ends = _LINE_END.findall(self.text)
        self.newline = max(("\n", "\r\n", "\r"), key=ends.count)
        self._starts = [0] + [match.end() for match in _LINE_END.finditer(self.text)]
        self._tree: ast.Module | None = None

    @property
    def suffix(self) -> str:
        """`py`, `sh`, `cpp`, `toml`, …; empty when the name has none."""
        name = self.path.rsplit("/", 1)[-1]
        return name.rsplit(".", 1)[1].lower() if "." in name else ""

    def encoded(self, text: str) -> bytes:
        """`text` as bytes of this file. Raises UnfitError when the file's encoding cannot say it."""
        try:
            return (_BOM if self.bom else b"") + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise UnfitError("cannot hold the edit in its encoding %s: %s" % (self.encoding, error)) from None

    def tree(self) -> "ast.Module":
        """The syntax tree. Raises UnfitError when the file does not parse."""
        if self._tree is None:
            try:
                self._tree = ast.parse(self.text)
            except (SyntaxError, ValueError) as error:
                raise UnfitError("does not parse as Python: %s" % error) from None
        return self._tree

    def offset(self, line: int, column: int) -> int:
        """Character offset of a place as `ast` gives it: line from 1, column in UTF-8 bytes from 0."""
        start = self._starts[line - 1]
        end = self._starts[line] if line < len(self._starts) else len(self.text)
        return start + len(self.text[start:end].encode("utf-8")[:column].decode("utf-8"))

    def span(self, node: "Any") -> "tuple[int, int]":
        """Start and end of a syntax node."""
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def code(self, node: "Any") -> str:
        """The text of a syntax node."""
        start, end = self.span(node)
        return self.text[start:end]

    def replaced(self, node: "Any", new: str, hit: bool = True) -> "Change":
        """The change that puts `new` in the place of a syntax node."""
        return Change(*self.span(node), new, hit)

    def without(self, elements: "list[ast.expr]", number: int, name: str) -> "Change":
        """The change that takes an element out of a list, with the comma and the space up to the next."""
        start = self.span(elements[number])[0]
        if number + 1 == len(elements):
            raise UnfitError("%s is the last element of its list" % name, start)
        return Change(start, self.span(elements[number + 1])[0], "")

    def indent(self, where: int) -> str:
        """What stands between the start of its line and offset `where`."""
        return self.text[self.line_start(where) : where]

    def functions(self, *names: str) -> "list[ast.FunctionDef]":
        """The functions of these names, wherever they are defined."""
        return [node for node in self.every(ast.FunctionDef) if node.name in names]

    def every(self, kind: "type[_Node]", tree: "ast.AST | None" = None) -> "list[_Node]":
        """The nodes of one kind, in the order of `ast.walk`, of the file or of one `tree` in it."""
        return [node for node in ast.walk(tree or self.tree()) if isinstance(node, kind)]

    def top(self, kind: "type[_Node]") -> "list[_Node]":
        """The statements of one kind that stand in nothing else."""
        return [node for node in self.tree().body if isinstance(node, kind)]

    def line_start(self, where: int) -> int:
        """Offset of the first character of the line that holds offset `where`."""
        return max(start for start in self._starts if start <= where)

    def around(self, where: int) -> str:
        """The lines around an offset, numbered, for an error message."""
        number = sum(1 for start in self._starts if start <= where)
        lines = _LINE_END.split(self.text)
        first = max(0, number - 1 - _SHOWN)
        return "\n".join("%d: %s" % (first + i + 1, line) for i, line in enumerate(lines[first : number + _SHOWN]))

    def string_tokens(self) -> "Iterator[tuple[int, int, str]]":
        """Start, end and text of every string token of a Python file (no f-strings from Python 3.12 on)."""
        for token in tokenize.generate_tokens(io.StringIO(self.text, newline="").readline):
            if token.type == tokenize.STRING:
                start = self._starts[token.start[0] - 1] + token.start[1]
                end = self._starts[token.end[0] - 1] + token.end[1]
                yield start, end, self.text[start:end]


def _encoding(path: str, body: bytes) -> str:
    """What a Python file declares; UTF-8 for others, or Latin-1 where that is no UTF-8 (it keeps every byte)."""
    if path.endswith(".py"):
        try:
            return tokenize.detect_encoding(io.BytesIO(body).readline)[0]
        except SyntaxError as error:
            raise UnfitError("does not say its encoding rightly: %s" % error) from None
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def changed_text(source: "Source", changes: "Iterable[Change]") -> str:
    """The text of `source` after `changes`. Raises UnfitError when two of them overlap."""
    out, last = [], 0
    for change in sorted(changes, key=lambda each: (each.start, each.end)):
        if change.start < last:
            raise UnfitError("two edits of one patch overlap", change.start)
        out += [source.text[last : change.start], change.new.replace("\n", source.newline)]
        last = change.end
    return "".join(out) + source.text[last:]


def nothing_left(find: "Callable[[Source], list[Change]]", what: str) -> "Callable[[Source], None]":
    """The postcondition that an edit finds nothing any more; `what` would be left."""

    def check(source: "Source") -> None:
        left = find(source)
        if any(change.hit for change in left):
            raise UnfitError("%s is still there" % what, left[0].start)

    return check


def called(tree: "ast.AST") -> "set[str]":
    """What is called in a syntax tree, as `dotted` has it."""
    return {dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def parents(tree: "ast.AST") -> "dict[ast.AST, ast.AST]":
    """The parent of every node of a syntax tree."""
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def above(node: "ast.AST", parent: "dict[ast.AST, ast.AST]") -> "list[ast.AST]":
    """The ancestors of a node, the nearest first."""
    out = []
    while node in parent:
        node = parent[node]
        out.append(node)
    return out


def dotted(node: "ast.AST | None") -> str:
    """`a.b.c` for a chain of names, else empty."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return base + "." + node.attr if base else ""
    return ""


def constant(node: "Any") -> "Any":
    """The value of a constant, None for everything else (Python 3.8 and newer)."""
    return node.value if isinstance(node, ast.Constant) else None


_C_TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)


def mask_c(text: str, strings: bool = True) -> str:
    """C++ text of equal length with comments (and, if asked, what strings hold) blanked. Raw strings are not known."""

    def blank(match: "re.Match[str]") -> str:
        piece = match.group()
        if piece[0] == "/":
            return re.sub(r"[^\r\n]", " ", piece)
        return piece[0] + " " * (len(piece) - 2) + piece[-1] if strings else piece

    return _C_TOKEN.sub(blank, text)


def unbalanced(masked: str) -> str:
    """What is wrong with the brackets of masked C++ text; empty when they match."""
    stack: list[str] = []
    pairs = {")": "(", "]": "[", "}": "{"}
    for letter in masked:
        if letter in "([{":
            stack.append(letter)
        elif letter in pairs and (not stack or stack.pop() != pairs[letter]):
            return "a %r has no partner" % letter
    return "a %r has no partner" % stack[-1] if stack else ""
