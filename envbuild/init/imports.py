"""What the code of a tree imports, by its syntax: module, how firmly, and where."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, cast

from envbuild.init.statement import Place
from envbuild.init.tree import Tree
from envbuild.node.smoke.programs import closure

Firmness = Literal["required", "guarded", "aside"]
"""required: its own code needs it; guarded: in `try`, or for type checkers; aside: in tests, examples, documents."""

STANDARD = sys.stdlib_module_names | {"__main__", "_typeshed"}


@dataclass(frozen=True, slots=True)
class Import:
    """A module that is no part of Python nor of the tree, and the firmest place that imports it.

    A top-level one, or one that a package of the tree lacks; `near` is the nearest name there.
    """

    module: str
    firmness: Firmness
    place: Place
    files: int
    near: str = ""


@dataclass(frozen=True, slots=True)
class Roots:
    """The projects of a tree: folders with a setup.py or pyproject.toml, the root itself always."""

    folders: tuple[str, ...]
    names: dict[str, str]  # module to the project that brings it

    @property
    def nested(self) -> tuple[str, ...]:
        """The projects below the root."""
        return tuple(folder for folder in self.folders if folder)


def roots(tree: Tree) -> Roots:
    """The projects of a tree, and the modules that each brings once it is installed."""
    manifests = [
        PurePosixPath(path) for path in tree.files if re.search(r"(?:^|/)(?:setup\.py|pyproject\.toml)$", path)
    ]
    folders = sorted({"" if str(path.parent) == "." else str(path.parent) for path in manifests} | {""}, key=len)
    names: dict[str, str] = {}
    for path in tree.files:
        if not path.endswith((".py", ".pyx", ".so")):
            continue
        for folder in folders:
            inside = path[len(folder) + 1 :] if folder and path.startswith(f"{folder}/") else "" if folder else path
            parts = inside.removeprefix("src/").removeprefix("python/").split("/") if inside else []
            if parts and (len(parts) > 1 or parts[0].endswith(".py")):
                names.setdefault(parts[0].partition(".")[0], folder)
    return Roots(tuple(folders), names)


def scan(tree: Tree, local: Roots, built: Collection[str] = ()) -> tuple[Import, ...]:
    """The imports of a tree that are no part of it; `built` are the extension modules that its own builds make."""
    passed = STANDARD | local.names.keys() | {name.partition(".")[0] for name in built} | {*built}

    def is_known(name: str) -> bool:
        return name in passed or name.partition(".")[0] in STANDARD

    there = set(tree.files)  # files that are asked for and not there are not left out
    imports = closure.imports_of(tree.files, lambda path: tree.text(path) if path in there else None, is_known)
    return tuple(
        Import(
            imported.module,
            cast(Firmness, imported.firmness),
            Place(imported.path, imported.line),
            imported.files,
            imported.near,
        )
        for imported in imports
    )
