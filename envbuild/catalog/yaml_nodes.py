"""What the YAML loader parses with: libyaml's events to a bounded tree of nodes, and that to plain data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import yaml
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from envbuild.catalog.manifest_file import MAX_BYTES, refuse, too_large
from envbuild.errors import EnvbuildError

if TYPE_CHECKING:

    class _Events:
        """What the composer needs of a parser."""

        def __init__(self, text: str) -> None: ...
        def peek_event(self) -> Any: ...
        def get_mark(self) -> yaml.Mark: ...

else:
    try:
        from yaml.cyaml import CParser as _Events
    except ImportError:

        class _Events(Reader, Scanner, Parser):
            """The same events where PyYAML was built without libyaml, several times slower."""

            def __init__(self, text):
                Reader.__init__(self, text)
                Scanner.__init__(self)
                Parser.__init__(self)


MAX_DEPTH = 40
MAX_NODES = 50_000
MAX_ALIASES = 200

_CORE = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_A_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NUMBERS_BEGIN = frozenset("+-.0123456789")
_HALF = re.compile("[\ud800-\udfff]")
# What YAML 1.2 does not call printable, and the byte order mark. The complement would take milliseconds to compile.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")
# Longer integers do not survive a round trip through JSON in other programs.
_LONGEST_INT = 18


def plain_data(content: bytes, name: str) -> Any:
    """The plain data of one document; `name` stands for the file in errors. Raises EnvbuildError."""
    root = composed(content, name)
    return None if root is None else _plain(root, name)


@lru_cache(maxsize=2)
def composed(content: bytes, name: str) -> Node | None:
    """The tree of one document, None for an empty one; kept, as places of mistakes are asked for one by one."""
    if len(content) > MAX_BYTES:
        raise too_large(name, len(content))
    return _tree(_decoded(content, name), name)


def find(node: Node | None, path: Iterable[str | int]) -> Iterator[tuple[yaml.Mark, Node]]:
    """Mark (that of the key, in a mapping) and node of every step of a data path that exists."""
    for step in path:
        found = _child(node, step)
        if found is None:
            return
        node = found[1]
        yield found


def _at(code: str, name: str, mark: yaml.Mark | None, problem: str, hint: str = "") -> EnvbuildError:
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    return refuse(code, name, line, column, problem, hint)


def _decoded(content: bytes, name: str) -> str:
    if content.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise refuse("manifest-encoding", name, 1, 1, "begins with a byte order mark", "save it as plain UTF-8")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        problem = f"byte 0x{content[error.start]:02x} is not valid UTF-8"
        raise refuse("manifest-encoding", name, line, column, problem, "save it as UTF-8") from None
    bad = _UNPRINTABLE.search(text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        column = bad.start() - text.rfind("\n", 0, bad.start())
        problem = f"control character U+{ord(bad.group()):04X}"
        raise refuse("manifest-encoding", name, line, column, problem, "remove it, or write it as an escape in quotes")
    return text


class _Composer(Composer, _Events, BaseResolver):
    """libyaml's events to a node tree, with limits; nothing here can construct a Python object."""

    def __init__(self, text: str, name: str) -> None:
        _Events.__init__(self, text)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self.file_name = name
        # `nodes` as if every alias were written out; `deepest`: the lowest level that was reached so far.
        self.depth = self.nodes = self.aliases = self.deepest = 0
        self.anchored: dict[str, tuple[int, int] | None] = {}  # values and levels of each; None while it is read

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()
        self.nodes += 1
        if self.depth == MAX_DEPTH:
            problem = f"nested deeper than {MAX_DEPTH} levels"
            raise _at("manifest-too-deep", self.file_name, event.start_mark, problem)
        if self.nodes > MAX_NODES:
            problem = f"more than {MAX_NODES} values"
            raise _at("manifest-too-large", self.file_name, event.start_mark, problem)
        if self.depth >= self.deepest:
            self.deepest = self.depth + 1
        if type(event) is yaml.ScalarEvent and event.anchor is None:
            # Most values; `super` would ask of each whether it is anything else.
            return self.compose_scalar_node(None)  # type: ignore[arg-type]
        if isinstance(event, yaml.AliasEvent):
            self._expand(event)
            return super().compose_node(parent, index)
        before, deepest = self.nodes - 1, self.deepest
        if event.anchor is not None:
            self.anchored.setdefault(event.anchor, None)  # a second one of that name is an error of `super`
            self.deepest = self.depth + 1
        self.depth += 1
        node: Node | None = super().compose_node(parent, index)
        self.depth -= 1
        if event.anchor is not None:
            self.anchored[event.anchor] = self.nodes - before, self.deepest - self.depth
            self.deepest = max(self.deepest, deepest)
        return node

    def _expand(self, event: Any) -> None:
        """Count what an alias stands for; refuse one that contains itself, and too many or too much of them."""
        found = self.anchored.get(event.anchor, (0, 0))
        values, levels = found or (0, 0)
        self.aliases += 1
        self.nodes += max(values - 1, 0)
        problem = ""
        if self.aliases > MAX_ALIASES:
            problem = f"more than {MAX_ALIASES} aliases"
        elif found is None:
            problem = "an alias contains itself"
        elif self.nodes > MAX_NODES or self.depth + levels > MAX_DEPTH:
            problem = f"aliases expand to more than {MAX_NODES} values or {MAX_DEPTH} levels"
        if problem:
            raise _at("manifest-alias", self.file_name, event.start_mark, problem)
        self.deepest = max(self.deepest, self.depth + levels)

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        """Tag of an untagged node; plain scalars get the empty tag and are read in `_scalar`."""
        if kind is ScalarNode:
            return "" if implicit[0] else f"{_CORE}str"
        return f"{_CORE}seq" if kind is SequenceNode else f"{_CORE}map"


def _tree(text: str, name: str) -> Node | None:
    composer: Any = None
    try:
        composer = _Composer(text, name)
        node: Node | None = composer.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(text, name, error) from None
    # PyYAML's scanner lets these escape for impossible escapes ("\UFFFFFFFF") and version numbers.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        mark = composer.get_mark() if composer else None
        code = "manifest-encoding" if isinstance(error, (ValueError, OverflowError)) else "manifest-invalid"
        raise _at(code, name, mark, f"not valid YAML: {_one_line(error)}") from None
    return node


def _syntax_error(text: str, name: str, error: yaml.MarkedYAMLError) -> EnvbuildError:
    mark = error.problem_mark or error.context_mark
    line_text = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
    if "\t" in line_text[: (mark.column if mark else 0) + 1]:
        column = line_text.index("\t") + 1
        line = mark.line + 1 if mark else 1
        return refuse("manifest-tab", name, line, column, "a tab in the indentation", "indent with spaces")
    said = "; ".join(part for part in (error.context, error.problem) if part)
    if "Unicode character escape" in said:
        return _at("manifest-encoding", name, mark, f"not valid YAML: {said}")
    if "alias" in said or "anchor" in said:
        return _at("manifest-alias", name, mark, f"not valid YAML: {said}")
    return _at("manifest-invalid", name, mark, f"not valid YAML: {said}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _child(node: Node | None, step: str | int) -> tuple[yaml.Mark, Node] | None:
    """Where one step of a path leads: its mark (that of the key, in a mapping) and its node."""
    if isinstance(node, MappingNode):
        for key, value in node.value:
            if key.value == step:
                return key.start_mark, value
    elif isinstance(node, SequenceNode) and isinstance(step, int) and 0 <= step < len(node.value):
        return node.value[step].start_mark, node.value[step]
    return None


def _plain(node: Node, name: str) -> Any:
    if isinstance(node, MappingNode):
        return _mapping(node, name)
    if isinstance(node, SequenceNode):
        if node.tag != f"{_CORE}seq":
            raise _bad_tag(node, name)
        return [_plain(item, name) for item in node.value]
    return _scalar(node, name)


def _mapping(node: MappingNode, name: str) -> dict[str, Any]:
    if node.tag != f"{_CORE}map":
        raise _bad_tag(node, name)
    out: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _scalar(key_node, name) if isinstance(key_node, ScalarNode) else None
        if not isinstance(key, str):
            raise _at("manifest-invalid", name, key_node.start_mark, "a key must be text", "put it in quotes")
        if key in out:
            first = next(other.start_mark.line for other, _ in node.value if _scalar(other, name) == key)
            problem = f"duplicate key {key!r} (first on line {first + 1})"
            raise _at("manifest-duplicate-key", name, key_node.start_mark, problem, "keep one of the two")
        out[key] = _plain(value_node, name)
    return out


def _scalar(node: Node, name: str) -> str | int | float | bool | None:
    value: str = node.value
    if not value.isascii() and _HALF.search(value):
        raise _at("manifest-encoding", name, node.start_mark, "half of a surrogate pair, not a character")
    if node.tag == "":
        return _plain_scalar(node, name)
    tag = node.tag.removeprefix(_CORE)
    if tag == "str":
        return value
    if tag not in ("int", "float", "bool", "null") or not node.tag.startswith(_CORE):
        raise _bad_tag(node, name)
    read = _plain_scalar(node, name)
    if tag == "float" and type(read) is int:
        return float(read)
    if type(read).__name__ != {"null": "NoneType"}.get(tag, tag):
        raise _at("manifest-invalid", name, node.start_mark, f"{value[:40]!r} is not a !!{tag}")
    return read


def _plain_scalar(node: Node, name: str) -> str | int | float | bool | None:
    value: str = node.value
    if value in ("", "~", "null"):
        return None
    if value in ("true", "false"):
        return value == "true"
    if value[0] not in _NUMBERS_BEGIN:
        return value
    if _INT.fullmatch(value):
        if len(value) > _LONGEST_INT:
            raise _at("manifest-invalid", name, node.start_mark, "a number too large", "put it in quotes if it is text")
        return int(value)
    if _NOT_A_NUMBER.fullmatch(value):
        raise _at("manifest-invalid", name, node.start_mark, f"{value} is not allowed: numbers are finite")
    if _FLOAT.fullmatch(value):
        number = float(value)
        if number in (float("inf"), float("-inf")):
            raise _at("manifest-invalid", name, node.start_mark, "a number too large")
        return number
    return value


def _bad_tag(node: Node, name: str) -> EnvbuildError:
    shown = node.tag.replace(_CORE, "!!")[:60]
    return _at("manifest-tag", name, node.start_mark, f"the tag {shown!r} is not allowed", "write plain values")
