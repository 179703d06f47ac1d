"""What the code of a tree imports, by its syntax: module, how firmly, and where."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from envbuild.init.readers.setup_py import parsed
from envbuild.init.statement import Place
from envbuild.init.tree import Tree

Firmness = Literal["required", "guarded", "aside"]
"""required: its own code needs it; guarded: in `try`, or for type checkers; aside: in tests, examples, documents."""

_ORDER: tuple[Firmness, ...] = ("required", "guarded", "aside")
_LINE = re.compile(
    r"^[ \t]*(?:import|from)[ \t]+([A-Za-z_][\w.]*(?:[ \t]*(?:as[ \t]+\w+)?[ \t]*,[ \t]*[A-Za-z_][\w.]*)*)",
    re.MULTILINE,
)
_ASIDE = re.compile(
    r"(?:^|/)(?:tests?|testing|docs?|doc|examples?|benchmarks?|notebooks?|demos?|\.github|ci|scripts/dev)/|"
    r"(?:^|/)(?:test_[^/]*|[^/]*_test|conftest|setup|noxfile|fabfile)\.py$"
)
_STANDARD = sys.stdlib_module_names | {"__main__", "_typeshed"}


@dataclass(frozen=True, slots=True)
class Import:
    """A top-level module that is no part of Python nor of the tree, and the firmest place that imports it."""

    module: str
    firmness: Firmness
    place: Place
    files: int


@dataclass(frozen=True, slots=True)
class Roots:
    """The projects of a tree: folders with a setup.py or pyproject.toml, the root itself always."""

    folders: tuple[str, ...]
    names: dict[str, str]  # module to the project that brings it

    @property
    def nested(self) -> tuple[str, ...]:
        """The projects below the root."""
        return tuple(each for each in self.folders if each)


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
    """The imports of a tree. A file is parsed only where it may say something firmer than what is known already.

    `built` are the extension modules that the tree's own builds make.
    """
    found: dict[str, Import] = {}
    counts: dict[str, int] = {}
    passed = _STANDARD | {name.partition(".")[0] for name in built}
    beside = _folders(tree)
    python = [path for path in tree.files if path.endswith(".py")]
    for path in sorted(python, key=lambda each: (bool(_ASIDE.search(each)), each)):
        text = tree.text(path)
        if text is None:
            continue
        aside = bool(_ASIDE.search(path))
        named = {name for name in _named(text) if name not in passed and not _is_local(name, path, beside, local)}
        for name in named:
            counts[name] = counts.get(name, 0) + 1
        open_ = {name for name in named if name not in found or (found[name].firmness != "required" and not aside)}
        if not open_:
            continue
        for name, line, guarded in _of_syntax(text):
            firmness: Firmness = "aside" if aside else "guarded" if guarded else "required"
            before = found.get(name)
            if name in open_ and (before is None or _ORDER.index(firmness) < _ORDER.index(before.firmness)):
                found[name] = Import(name, firmness, Place(path, line), 0)
    return tuple(Import(each.module, each.firmness, each.place, counts[name]) for name, each in sorted(found.items()))


def _named(text: str) -> Iterator[str]:
    """Names that may be imported, by lines alone: too many, never too few."""
    for match in _LINE.finditer(text):
        for part in match[1].split(","):
            yield part.strip().partition(".")[0].partition(" ")[0]


def _folders(tree: Tree) -> dict[str, set[str]]:
    """The modules that lie in each folder."""
    out: dict[str, set[str]] = {}
    for path in tree.files:
        if not path.endswith((".py", ".pyi", ".so", ".pyx")):
            continue
        parts = path.split("/")
        out.setdefault("/".join(parts[:-1]), set()).add(parts[-1].partition(".")[0])
        for depth in range(len(parts) - 1):
            out.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
    return out


def _is_local(name: str, path: str, beside: dict[str, set[str]], local: Roots) -> bool:
    """Whether a module is importable from the importer's own folder, one above it, or an installed project."""
    parts = path.split("/")[:-1]
    above = ("/".join(parts[:depth]) for depth in range(len(parts), -1, -1))
    if any(name in beside.get(folder, ()) or name in beside.get(f"{folder}/src".lstrip("/"), ()) for folder in above):
        return True
    return name in local.names


def _of_syntax(text: str) -> Iterator[tuple[str, int, bool]]:
    tree = parsed(text)
    if tree is not None:
        yield from _below(tree, guarded=False)


def _below(node: ast.AST, *, guarded: bool) -> Iterator[tuple[str, int, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((each.name.partition(".")[0], child.lineno, guarded) for each in child.names)
        elif isinstance(child, ast.ImportFrom):
            if not child.level and child.module:
                yield child.module.partition(".")[0], child.lineno, guarded
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.Module):
            soft = isinstance(child, ast.Try) or (isinstance(child, ast.If) and _is_guard(child.test))
            yield from _below(child, guarded=guarded or soft)


def _is_guard(test: ast.expr) -> bool:
    return bool(re.search(r"TYPE_CHECKING|is_\w*available|find_spec|HAS_|has_|HAVE_", ast.unparse(test)))
