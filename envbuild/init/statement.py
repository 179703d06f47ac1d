"""A statement: one thing that a file says about an environment, with file, line and column."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from envbuild.node.redact import redact_text

Kind = Literal[
    "package",  # a requirement of an index; `extra` names the extra or group it stands in
    "conda",  # a match spec of conda
    "channel",  # a channel of conda
    "source",  # a git repository; `ref`, `folder`, `subdirectory`, `name`
    "checkout",  # a ref for a source that was cloned before
    "local",  # a folder of a tree is installed; `source` is its repository, empty for the page's own
    "build",  # something is compiled by a script or make in a folder of a tree
    "python",  # a specifier or version of Python
    "torch",  # prose about torch
    "cuda",  # a version of CUDA
    "gcc",  # a version of the compiler
    "image",  # a base image
    "environment",  # NAME=value
    "system",  # a package of the operating system
    "module",  # module load
    "scheduler",  # an option of Slurm or PBS
    "file",  # another file that holds packages or commands
    "download",  # something fetched by its address
    "edit",  # an installed or cloned file is edited
    "remove",  # a package is uninstalled
    "index",  # where packages come from
    "import",  # a module that is imported as a test
    "extension",  # a compiled module
    "run",  # a command that starts the code
    "activate",  # an environment that is made elsewhere
    "startup",  # a start-up file of a shell
    "trait",  # a habit of a command or build that findings speak of, by its name
    "unknown",  # a command that no rule understands
]
_LONGEST = 300
_READ = 10 * _LONGEST


@dataclass(frozen=True, slots=True)
class Place:
    """A file as it was given, line and column from 1."""

    file: str
    line: int
    column: int = 1

    def __str__(self) -> str:
        """As compilers write it."""
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Statement:
    """What is said, and how: `via` is the command or kind of file, `text` the words of the file, to be quoted.

    `optional`: the file offers it for a purpose, another system or as an alternative; a draft does not take it.
    """

    kind: Kind
    value: str
    place: Place
    text: str
    via: str
    optional: bool = False
    options: Mapping[str, str] = field(default_factory=dict)

    def get(self, option: str) -> str:
        """An option, empty if it is not given."""
        return self.options.get(option, "")

    def as_json(self) -> dict[str, object]:
        """Plain data for `--json`."""
        data: dict[str, object] = {"kind": self.kind, "value": self.value, "at": str(self.place), "via": self.via}
        return data | {"text": self.text, "optional": self.optional, "options": dict(self.options)}


def quoted(text: str) -> str:
    """Words of a file in one line of bounded length, without secrets."""
    if len(text) > _READ:  # what is cut in its middle must not show half of a secret
        text = f"{text[:_READ].rpartition(' ')[0]} …"
    line = redact_text(" ".join(re.sub(r"\\\n", " ", text).split()))
    line = "".join(character for character in line if character.isprintable())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def without_credentials(url: str) -> str:
    """An address without user name and password (ssh keeps its user), query of tokens and control characters."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")
        user = host[0].partition(":")[0] if parts.scheme == "ssh" else ""
        return urlunsplit(parts._replace(netloc=f"{user}@{host[2]}" if user else host[2]))
    except ValueError:
        return redact_text(url)
