"""The one YAML loader: plain data from files that strangers may have written.

A strict subset of YAML 1.2: `true`/`false` are the only booleans, numbers are decimal, everything else is text; no tags
beyond the core ones, no duplicate keys, bounded size, depth and aliases. Every refusal is an `EnvbuildError` (exit 2)
whose `why` begins with `file:line:column`.

libyaml's events become plain data in one pass; nothing here can construct a Python object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

from envbuild.errors import EnvbuildError
from envbuild.regular_file import MAX_BYTES, read_manifest, refuse, too_large
from envbuild.text import unsafe

MAX_DEPTH = 40
MAX_NODES = 50_000
MAX_ALIASES = 200

DataPath: TypeAlias = tuple[str | int, ...]
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a PyYAML built without libyaml is several times slower
_CORE = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_A_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NUMBERS_BEGIN = frozenset("+-.0123456789")
_REMOVE = "remove it; text has no control characters, invisible characters or line separators"
# Longer integers do not survive a round trip through JSON in other programs.
_LONGEST_INT = 18


@dataclass(frozen=True)
class YamlDocument:
    """Plain data with its places: `name` as shown in errors, `data`, and the `content` that `locate` looks into."""

    name: str
    data: Any
    content: bytes

    def locate(self, path: DataPath) -> tuple[int, int]:
        """Line and column (from 1) of the deepest part of a data path that exists here."""
        places = self._places
        steps = range(len(path), -1, -1)
        return next((places[path[:length]] for length in steps if path[:length] in places), (1, 1))

    def holds(self, path: DataPath) -> bool:
        """Whether the whole path exists in this document."""
        return path in self._places

    @cached_property
    def _places(self) -> dict[DataPath, tuple[int, int]]:
        reader = _Reader(self.content, self.name)
        reader.document()
        return reader.places


def load_yaml(path: Path) -> Any:
    """The plain data of a YAML file (mappings, lists, text, numbers, booleans, None). Raises EnvbuildError."""
    return read_yaml(path).data


def read_yaml(path: Path) -> YamlDocument:
    """Read and parse one file. Only regular files are opened for reading. Raises EnvbuildError."""
    return parse_yaml(read_manifest(path), str(path))


def parse_yaml(content: bytes, name: str) -> YamlDocument:
    """Parse one document; `name` stands for the file in errors. Raises EnvbuildError."""
    return YamlDocument(name, _Reader(content, name).document(), content)


class _Anchor(NamedTuple):
    """A value with a name: its data, how many values it is made of, and how many levels deep it goes."""

    data: Any
    nodes: int
    levels: int


class _Reader:
    """Reads one document; `places` has line and column (from 1) of every data path, that of the key in a mapping."""

    def __init__(self, content: bytes, name: str) -> None:
        if len(content) > MAX_BYTES:
            raise too_large(name)
        self.name = name
        self.text = _decoded(content, name)
        self.places: dict[DataPath, tuple[int, int]] = {}
        # `nodes` as if every alias were written out; `deepest`: the lowest level that was reached.
        self.nodes = self.aliases = self.deepest = 0
        self.anchors: dict[str, _Anchor | None] = {}  # None while the value is read

    def document(self) -> Any:
        """The data of the only document, None of an empty one. Raises EnvbuildError."""
        data, documents, event = None, 0, None
        try:
            events = yaml.parse(self.text, Loader=_LOADER)
            for event in events:
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        raise self.refusal("manifest-invalid", event, "a second document", "write one into each file")
                elif isinstance(event, yaml.NodeEvent):
                    self.note((), event)
                    data = self.value(events, event, ())
        except yaml.MarkedYAMLError as error:
            raise self.syntax_error(error) from None
        # libyaml lets these escape for impossible escapes ("\UFFFFFFFF") and version numbers.
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            raise self.refusal("manifest-invalid", event, f"not valid YAML: {' '.join(str(error).split())}") from None
        return data

    def note(self, path: DataPath, event: Any) -> None:
        """Remember where a data path lies."""
        self.places[path] = event.start_mark.line + 1, event.start_mark.column + 1

    def value(self, events: Iterator[Any], event: Any, path: DataPath) -> Any:
        """The data that begins with `event`, at a data path."""
        self.nodes += 1
        depth = len(path)
        if depth >= MAX_DEPTH:
            raise self.refusal("manifest-invalid", event, f"nested deeper than {MAX_DEPTH} levels")
        if self.nodes > MAX_NODES:
            raise self.refusal("manifest-invalid", event, f"more than {MAX_NODES} values")
        if isinstance(event, yaml.AliasEvent):
            return self.expanded(event, depth)
        before, deepest = self.nodes - 1, self.deepest
        self.deepest = depth + 1
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        data: Any
        if isinstance(event, yaml.MappingStartEvent):
            data = self.mapping(events, event, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            data = self.sequence(events, event, path)
        else:
            data = self.scalar(event)
        if event.anchor is not None:
            self.anchors[event.anchor] = _Anchor(data, self.nodes - before, self.deepest - depth)
        self.deepest = max(self.deepest, deepest)
        return data

    def expanded(self, event: Any, depth: int) -> Any:
        """What an alias stands for; refused where it contains itself, and where they are too many or too much."""
        self.aliases += 1
        anchor = self.anchors.get(event.anchor)
        problem = ""
        if event.anchor not in self.anchors:
            problem = f"no anchor &{event.anchor} before this alias"
        elif anchor is None:
            problem = "an alias contains itself"
        elif self.aliases > MAX_ALIASES:
            problem = f"more than {MAX_ALIASES} aliases"
        else:
            self.nodes += anchor.nodes - 1
            self.deepest = max(self.deepest, depth + anchor.levels)
            if self.nodes > MAX_NODES or self.deepest > MAX_DEPTH:
                problem = f"aliases expand to more than {MAX_NODES} values or {MAX_DEPTH} levels"
        if problem or anchor is None:
            raise self.refusal("manifest-invalid", event, problem)
        return deepcopy(anchor.data)

    def mapping(self, events: Iterator[Any], start: Any, path: DataPath) -> dict[str, Any]:
        """The mapping after `start`, its keys text and each there once."""
        self.untagged(start, "map")
        data: dict[str, Any] = {}
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self.scalar(event) if isinstance(event, yaml.ScalarEvent) else None
            if not isinstance(key, str):
                raise self.refusal("manifest-invalid", event, "a key must be text", "put it in quotes")
            place = (*path, key)
            if key in data:
                problem = f"duplicate key {key!r} (first on line {self.places[place][0]})"
                merge = f"write one `{key}:` with the keys of both"
                both = "keep one of the two" if not isinstance(data[key], dict) else merge
                raise self.refusal("manifest-invalid", event, problem, both)
            self.nodes += 1
            self.note(place, event)
            data[key] = self.value(events, next(events), place)
        return data

    def sequence(self, events: Iterator[Any], start: Any, path: DataPath) -> list[Any]:
        """The list after `start`."""
        self.untagged(start, "seq")
        data: list[Any] = []
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            place = (*path, len(data))
            self.note(place, event)
            data.append(self.value(events, event, place))
        return data

    def untagged(self, event: Any, tag: str) -> None:
        """Refuse a mapping or list with another tag than its own."""
        if event.tag not in (None, "!", _CORE + tag):
            raise self.bad_tag(event)

    def scalar(self, event: Any) -> str | int | float | bool | None:
        """The text, number, boolean or None of one scalar."""
        value: str = event.value
        bad = unsafe(value, prose=True)
        if bad:
            raise self.refusal("manifest-invalid", event, _not_allowed(bad), _REMOVE)
        if event.tag is None and event.implicit[0]:
            return self.plain_scalar(event)
        tag = "str" if event.tag in (None, "!") else event.tag.removeprefix(_CORE)
        if tag == "str":
            return value
        if tag not in ("int", "float", "bool", "null") or not event.tag.startswith(_CORE):
            raise self.bad_tag(event)
        read = self.plain_scalar(event)
        if tag == "float" and type(read) is int:
            return float(read)
        if type(read).__name__ != {"null": "NoneType"}.get(tag, tag):
            raise self.refusal("manifest-invalid", event, f"{value[:40]!r} is not a !!{tag}")
        return read

    def plain_scalar(self, event: Any) -> str | int | float | bool | None:
        """What a scalar without quotes looks like."""
        value: str = event.value
        if value in ("", "~", "null"):
            return None
        if value in ("true", "false"):
            return value == "true"
        if value[0] not in _NUMBERS_BEGIN:
            return value
        if _INT.fullmatch(value):
            if len(value) > _LONGEST_INT:
                raise self.refusal("manifest-invalid", event, "a number too large", "put it in quotes if it is text")
            return int(value)
        if _NOT_A_NUMBER.fullmatch(value):
            raise self.refusal("manifest-invalid", event, f"{value} is not allowed: numbers are finite")
        if _FLOAT.fullmatch(value):
            number = float(value)
            if number in (float("inf"), float("-inf")):
                raise self.refusal("manifest-invalid", event, "a number too large")
            return number
        return value

    def bad_tag(self, event: Any) -> EnvbuildError:
        """The refusal of a tag."""
        shown = event.tag.replace(_CORE, "!!")[:60]
        return self.refusal("manifest-invalid", event, f"the tag {shown!r} is not allowed", "write plain values")

    def refusal(self, code: str, event: Any, problem: str, hint: str = "") -> EnvbuildError:
        """The error for the place of an event, or of a mark."""
        mark = getattr(event, "start_mark", event)
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        return refuse(code, self.name, line, column, problem, hint)

    def syntax_error(self, error: yaml.MarkedYAMLError) -> EnvbuildError:
        """The error for what libyaml refuses."""
        mark = error.problem_mark or error.context_mark
        lines = self.text.splitlines()
        line = lines[mark.line] if mark and mark.line < len(lines) else ""
        tab = line.find("\t", 0, (mark.column if mark else 0) + 1)
        if tab >= 0:
            problem, hint = "a tab in the indentation", "indent with spaces"
            return refuse("manifest-invalid", self.name, mark.line + 1 if mark else 1, tab + 1, problem, hint)
        words = "; ".join(part for part in (error.context, error.problem) if part)
        hint = f"check the indentation, brackets and quotes of line {mark.line + 1} and the line before" if mark else ""
        # `prefix: {home}/envs`: YAML takes the bracket for a mapping, and something follows its end.
        if match := re.search(r":\s+(\{\w+\}[^\s,}\]]+)", line):
            hint = f'put what begins with a bracket in quotes: "{match[1]}"'
        return self.refusal("manifest-invalid", mark, f"not valid YAML: {words}", hint)


def _decoded(content: bytes, name: str) -> str:
    if content.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise refuse("manifest-invalid", name, 1, 1, "begins with a byte order mark", "save it as plain UTF-8")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        problem = f"byte 0x{content[error.start]:02x} is not valid UTF-8"
        raise refuse("manifest-invalid", name, line, column, problem, "save it as UTF-8") from None
    text = text.replace("\r\n", "\n")
    bad = unsafe(text, prose=True)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        column = bad.start() - text.rfind("\n", 0, bad.start())
        raise refuse("manifest-invalid", name, line, column, _not_allowed(bad), _REMOVE)
    return text


def _not_allowed(bad: re.Match[str]) -> str:
    return f"the character U+{ord(bad[0]):04X} is not allowed"
