"""The one YAML loader: plain data from files that strangers may have written.

A strict subset of YAML 1.2: `true`/`false` are the only booleans, numbers are decimal, everything else is text; no tags
beyond the core ones, no duplicate keys, bounded size, depth and aliases. Every refusal is an `EnvbuildError` (exit 2)
whose `why` begins with `file:line:column`.

What ships is parsed already: `parsed/` has the data of each file under the sha256 of its contents, so that none can be
older than its file. Parsing took a seventh of the time of a plan. `lock/files.py` keeps the shipped locks there too.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from envbuild import resources
from envbuild.catalog.manifest_file import read_manifest


class YamlDocument(NamedTuple):
    """Plain data with its places: `name` as shown in errors, `data`, and the `content` that `locate` looks into."""

    name: str
    data: Any
    content: bytes

    def locate(self, path: tuple[str | int, ...]) -> tuple[int, int]:
        """Line and column (from 1) of the deepest part of a data path that exists here."""
        from envbuild.catalog.yaml_nodes import composed, find

        root = composed(self.content, self.name)
        marks = [root.start_mark, *(mark for mark, _ in find(root, path))] if root else []
        return (marks[-1].line + 1, marks[-1].column + 1) if marks else (1, 1)

    def holds(self, path: tuple[str | int, ...]) -> bool:
        """Whether the whole path exists in this document."""
        from envbuild.catalog.yaml_nodes import composed, find

        return len(list(find(composed(self.content, self.name), path))) == len(path)


def load_yaml(path: Path) -> Any:
    """The plain data of a YAML file (mappings, lists, text, numbers, booleans, None). Raises EnvbuildError."""
    return read_yaml(path).data


def read_yaml(path: Path) -> YamlDocument:
    """Read and parse one file. Only regular files are opened for reading. Raises EnvbuildError."""
    content, name = read_manifest(path), str(path)
    parsed = parsed_data(content)
    return parse_yaml(content, name) if parsed is None else YamlDocument(name, json.loads(parsed), content)


def parse_yaml(content: bytes, name: str) -> YamlDocument:
    """Parse one document; `name` stands for the file in errors. Raises EnvbuildError."""
    from envbuild.catalog.yaml_nodes import plain_data

    return YamlDocument(name, plain_data(content, name), content)


def parsed_file(content: bytes) -> Path:
    """Where the data of a shipped file with these contents lies; of any other there is no such file."""
    return resources.catalog() / "parsed" / f"{hashlib.sha256(content).hexdigest()}.json"


def parsed_data(content: bytes) -> bytes | None:
    """The JSON of a shipped file with these contents; None for any other, and where it is only half written."""
    try:
        data = parsed_file(content).read_bytes()
    except FileNotFoundError:
        return None
    return data if data.endswith(b"\n") else None
