"""Smoke program `closure`: does every module that the code of the sources imports resolve? Needs Python 3.8.

The code is read, never run: its syntax says what it imports, and the import system where a top-level module is. The
same reader tells `envbuild init` what the code of a tree imports.
"""

import ast
import importlib.util
import os
import re
import sys
import warnings
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from .common import Channel, begin
from .imports import Places

# required: its own code needs it; guarded: in `try`, or for type checkers; aside: in tests, examples, documents.
ORDER = ("required", "guarded", "aside")
_CODE = (".py", ".pyi", ".so", ".pyx")
_LARGEST = 2000000  # bytes
_LINE = re.compile(
    r"^[ \t]*(?:import|from)[ \t]+([A-Za-z_][\w.]*(?:[ \t]*(?:as[ \t]+\w+)?[ \t]*,[ \t]*[A-Za-z_][\w.]*)*)",
    re.MULTILINE,
)
_ASIDE = re.compile(
    r"(?:^|/)(?:tests?|testing|docs?|doc|examples?|benchmarks?|notebooks?|demos?|\.github|ci|scripts/dev)/|"
    r"(?:^|/)(?:test_[^/]*|[^/]*_test|conftest|setup|noxfile|fabfile)\.py$"
)
_GUARD = re.compile(r"TYPE_CHECKING|is_\w*available|find_spec|HAS_|has_|HAVE_")


class Import(NamedTuple):
    """A top-level module, how firmly it is imported, and the firmest place that does; `files`: how many do."""

    module: str
    firmness: str
    path: str
    line: int
    files: int


def imports_of(
    paths: Iterable[str],
    read: Callable[[str], Optional[str]],
    is_known: Callable[[str], bool] = frozenset().__contains__,
) -> List[Import]:
    """What the code of a tree imports beyond itself and what `is_known`, by name.

    A file is parsed only where it may say something firmer than what is known already.
    """
    firmest: Dict[str, Import] = {}
    counts: Dict[str, int] = {}
    listed = list(paths)
    beside = _folders(listed)
    code = [path for path in listed if path.endswith(".py")]
    for path in sorted(code, key=lambda path: (_is_aside(path), path)):
        text = read(path)
        if text is None:
            continue
        named = {name for name in _named(text) if not is_known(name) and not _is_local(name, path, beside)}
        for name in named:
            counts[name] = counts.get(name, 0) + 1
        open_ = {name for name in named if name not in firmest or _is_firmer(path, firmest[name])}
        for name, line, guarded in _of_syntax(text) if open_ else ():
            firmness = "aside" if _is_aside(path) else "guarded" if guarded else "required"
            before = firmest.get(name)
            if name in open_ and (before is None or ORDER.index(firmness) < ORDER.index(before.firmness)):
                firmest[name] = Import(name, firmness, path, line, 0)
    return [imported._replace(files=counts[name]) for name, imported in sorted(firmest.items())]


def _is_aside(path: str) -> bool:
    return bool(_ASIDE.search(path))


def _is_firmer(path: str, before: Import) -> bool:
    return before.firmness != "required" and not _is_aside(path)


def _named(text: str) -> Iterator[str]:
    """Names that may be imported, by lines alone: too many, never too few."""
    for match in _LINE.finditer(text):
        for part in match.group(1).split(","):
            yield part.strip().partition(".")[0].partition(" ")[0]


def _folders(paths: Iterable[str]) -> Dict[str, Set[str]]:
    """The modules that lie in each folder."""
    out: Dict[str, Set[str]] = {}
    for path in paths:
        if not path.endswith(_CODE):
            continue
        parts = path.split("/")
        out.setdefault("/".join(parts[:-1]), set()).add(parts[-1].partition(".")[0])
        for depth in range(len(parts) - 1):
            out.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
    return out


def _is_local(name: str, path: str, beside: Dict[str, Set[str]]) -> bool:
    """Whether a module is importable from the importer's own folder, or one above it."""
    parts = path.split("/")[:-1]
    above = ("/".join(parts[:depth]) for depth in range(len(parts), -1, -1))
    return any(
        name in beside.get(folder, ()) or name in beside.get((folder + "/src").lstrip("/"), ()) for folder in above
    )


def parsed(text: str) -> Optional[ast.Module]:
    """The syntax of a file; None for what this Python does not take."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _of_syntax(text: str) -> Iterator[Tuple[str, int, bool]]:
    tree = parsed(text)
    if tree is not None:
        yield from _below(tree, False)


def _below(node: ast.AST, guarded: bool) -> Iterator[Tuple[str, int, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name.partition(".")[0], child.lineno, guarded) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            if not child.level and child.module:
                yield child.module.partition(".")[0], child.lineno, guarded
        elif isinstance(child, (ast.stmt, ast.ExceptHandler)):
            test = ast.dump(child.test) if isinstance(child, ast.If) else ""
            soft = isinstance(child, ast.Try) or bool(_GUARD.search(test))
            yield from _below(child, guarded or soft)


def run_on_import(text: str, package: str) -> Iterator[Tuple[str, bool]]:
    """Modules that importing a file of `package` imports, by full name; not sure of `a.b` where `from a import b`."""
    pending: List[ast.AST] = list(getattr(parsed(text), "body", ()))
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.Import):
            yield from ((alias.name, True) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(above + [node.module or ""]).strip(".")
            yield base, True
            yield from ((base + "." + alias.name, False) for alias in node.names)
        elif isinstance(node, (ast.ClassDef, ast.With)) or (
            isinstance(node, ast.If)
            and not _GUARD.search(ast.dump(node.test))
            and "__main__" not in ast.dump(node.test)
        ):
            pending = list(node.body) + pending


def _read(path: str) -> Optional[str]:
    try:
        if os.path.islink(path) or os.path.getsize(path) > _LARGEST:
            return None
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return None


class _Resolver:
    """Where the import system of this environment has top-level modules."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.missing: Dict[str, bool] = {}
        self.standard: Set[str] = set(sys.builtin_module_names) | set(getattr(sys, "stdlib_module_names", ()))

    def is_missing(self, name: str) -> bool:
        """Whether nothing resolves it; finding a module without a parent runs nothing of it."""
        if name not in self.missing:
            try:
                spec = importlib.util.find_spec(name)
            except Exception:  # noqa: BLE001 - a finder may raise anything, and a loaded module may have no spec
                spec = getattr(sys.modules.get(name), "__spec__", None)
            self.missing[name] = spec is None and name != "__main__"
            if spec is not None and spec.origin and self.places.in_stdlib(os.path.realpath(spec.origin)):
                self.standard.add(name)
        return self.missing[name]


def _closure(channel: Channel, trees: Dict[str, str], files: Dict[str, List[str]], places: Places) -> None:
    resolver = _Resolver(places)
    third: Set[str] = set()
    lost: Dict[str, Dict[str, str]] = {firmness: {} for firmness in ORDER}
    for name, top in sorted(trees.items()):
        channel.stage("reading the code of %s" % name)
        for imported in imports_of(files[name], lambda path, top=top: _read(os.path.join(top, path))):  # type: ignore[misc]
            if resolver.is_missing(imported.module):
                lost[imported.firmness].setdefault(imported.module, "%s/%s:%d" % (name, imported.path, imported.line))
            elif imported.module not in resolver.standard:
                third.add(imported.module)
    optional = dict(lost["aside"], **lost["guarded"])
    for module in lost["required"]:
        optional.pop(module, None)
    channel.facts({"resolved": sorted(third), "open": lost["required"], "optional": optional})


def main() -> None:
    """Read the `files` of the `trees` that the request names."""
    args, channel = begin()
    sys.path.pop(0)  # the programs' own folder; it must not serve an import
    trees = args["trees"]
    _closure(channel, trees, args["files"], Places(args["environment"], "none", {}, list(trees.values())))
    channel.done()


if __name__ == "__main__":
    main()
