"""The tools that a node needs under its prefix."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

_NAME = re.compile(r"\A[a-z0-9][a-z0-9._+-]*\Z")
_FILE = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._+-]*\Z")


@dataclass(frozen=True)
class Tool:
    """One thing to put in place.

    `file`: `source` lies in the tool's folder as `file`, executable. `folder`: `source` is a tar.gz, which is unpacked
    there. `tree`: the same with a `python/` folder (the `install_only` layout of standalone Python builds). `sha256` is
    that of `source`.
    """

    name: str
    source: Path
    sha256: str
    kind: Literal["file", "folder", "tree"] = "file"
    file: str = ""

    def __post_init__(self) -> None:
        """Names end up in a shell text and in paths: plain ones only."""
        if (
            not _NAME.match(self.name)
            or not _FILE.match(self.file_name)
            or not re.match(r"\A[0-9a-f]{64}\Z", self.sha256)
        ):
            raise ValueError(f"not a plain name or digest: {self.name!r}, {self.file_name!r}, {self.sha256!r}")

    @property
    def file_name(self) -> str:
        """The name of the file in the folder (`file` apart: while it is being unpacked)."""
        return self.file or (self.name if self.kind == "file" else "archive.tar.gz")

    @property
    def folder(self) -> str:
        """`<name>-<12 hex>`, below `<prefix>/tools/`."""
        return f"{self.name}-{self.sha256[:12]}"

    def path(self, prefix: str) -> str:
        """What to use on the node: the file itself, the interpreter of the tree, or the folder."""
        inside = {"file": f"/{self.file_name}", "tree": "/python/bin/python3", "folder": ""}[self.kind]
        return f"{prefix}/tools/{self.folder}{inside}"


class NodeTools(NamedTuple):
    """The tools of one node, the interpreter of the node program and the one of the environment (absolute paths).

    `uv_sha256`: hex, of the file `uv`. `rattler`: the folder of py-rattler, and `rattler_python` a Python that can load
    it; where conda installs.
    """

    tools: tuple[Tool, ...]
    python: str
    pyz: str
    uv: str
    interpreter: str | None
    uv_sha256: str = ""
    rattler: str | None = None
    rattler_python: str | None = None

    def missing(self, present: Iterable[str]) -> tuple[Tool, ...]:
        """Those whose folder is not yet under `<prefix>/tools/`."""
        there = set(present)
        return tuple(tool for tool in self.tools if tool.folder not in there)

    def least(self, prefix: str) -> tuple[Tool, ...]:
        """Those without which the node program does not run there; who installs nothing needs no others."""
        return tuple(tool for tool in self.tools if tool.path(prefix) in (self.python, self.pyz))
