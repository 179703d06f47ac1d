"""Smoke program `closure`: does every module that the code of the sources imports resolve?

The code is read, never run: its syntax says what it imports, and the import system where a top-level module is. The
same reader tells `envbuild init` what the code of a tree imports.
"""

import ast
import difflib
import importlib.machinery
import importlib.util
import os
import re
import sys
import warnings
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from .common import Channel
from .imports import Places

# required: its own code needs it; guarded: in `try`, or for type checkers; aside: in tests, examples, documents.
ORDER = ("required", "guarded", "aside")
_CODE = (".py", ".pyi", ".so", ".pyx")
_LARGEST = 2000000  # bytes
_LINE = re.compile(
    r"^[ \t]*(?:import|from)[ \t]+(\.*[A-Za-z_][\w.]*(?:[ \t]*(?:as[ \t]+\w+)?[ \t]*,[ \t]*[A-Za-z_][\w.]*)*)",
    re.MULTILINE,
)
_ASIDE = re.compile(
    r"(?:^|/)(?:tests?|testing|docs?|doc|examples?|benchmarks?|notebooks?|demos?|\.github|ci|scripts/dev)/|"
    r"(?:^|/)(?:test_[^/]*|[^/]*_test|conftest|setup|noxfile|fabfile)\.py$"
)
# What builds make, or a walk passes over; a package that finds modules in its own way; and who may name what is made.
_MADE = re.compile(r"_?version|_C|.*_pb2(?:_grpc)?|build|_?dist|_build|venv|wandb")
_OWN_WAY = re.compile(r"__path__|__getattr__|sys\.modules|sys\.meta_path|LazyModule")
_MAKERS = (".gitignore", ".gitmodules", "setup.py", "setup.cfg", "pyproject.toml", "CMakeLists.txt")
_GUARD = re.compile(r"TYPE_CHECKING|is_\w*available|find_spec|HAS_|has_|HAVE_")


class Import(NamedTuple):
    """A module, how firmly it is imported, and the firmest place that does; `files`: how many do.

    A top-level one, or one that a package of the tree lacks; `near` is the nearest name that the tree has.
    """

    module: str
    firmness: str
    path: str
    line: int
    files: int
    near: str = ""


def imports_of(
    paths: Iterable[str],
    read: Callable[[str], Optional[str]],
    is_known: Callable[[str], bool] = frozenset().__contains__,
) -> List[Import]:
    """What the code of a tree imports beyond itself and what `is_known`, by name; of its own what it lacks.

    A file is parsed only where it may say something firmer than what is known already.
    """
    firmest: Dict[str, Import] = {}
    counts: Dict[str, int] = {}
    listed = list(paths)
    beside = _folders(listed)
    code = [path for path in listed if path.endswith(".py")]
    own = _Own(listed, beside, read)
    for path in sorted(code, key=lambda path: (_is_aside(path), path)):
        text = read(path)
        if text is None:
            continue
        whole = set(_named(text))
        named = {name.partition(".")[0] for name in whole if not name.startswith(".")}
        named = {name for name in named if not is_known(name) and not own.has(name, path, whole)}
        for name in named:
            counts[name] = counts.get(name, 0) + 1
        aside = _is_aside(path)
        open_ = {n for n in named if n not in firmest or (firmest[n].firmness != "required" and not aside)}
        own_names = () if aside else (name for name in whole if "." in name)
        sought = ((name, own.lacks(name, path)) for name in own_names)
        lacking = {name: lost for name, lost in sought if lost is not None and not is_known(lost[0])}
        syntax = parsed(text) if open_ or lacking else None
        for name, line, guarded in _below(syntax, False) if syntax else ():
            firmness = "aside" if aside else "guarded" if guarded else "required"
            if name in lacking and not guarded:
                module, near = lacking[name]
                counts[module] = counts.get(module, 0) + 1
                firmest.setdefault(module, Import(module, firmness, path, line, 0, near))
            name = name.partition(".")[0]
            before = firmest.get(name)
            if name in open_ and (before is None or ORDER.index(firmness) < ORDER.index(before.firmness)):
                around = (beside.get(path.rpartition("/")[0], set()) | beside.get("", set())) - {name}
                firmest[name] = Import(name, firmness, path, line, 0, _near(name, around))
    return [imported._replace(files=counts[name]) for name, imported in sorted(firmest.items())]


def _is_aside(path: str) -> bool:
    return bool(_ASIDE.search(path))


def _named(text: str) -> Iterator[str]:
    """Names that may be imported, by lines alone: too many, never too few."""
    for match in _LINE.finditer(text):
        for part in match.group(1).split(","):
            yield re.split(r"\s", part.strip())[0]


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


def _near(name: str, there: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name, sorted(there), 1, 0.75)), "")


class _Own:
    """The packages of a tree, and what of their own they lack."""

    def __init__(self, paths: List[str], beside: Dict[str, Set[str]], read: Callable[[str], Optional[str]]) -> None:
        self.paths, self.beside, self.read = set(paths), beside, read
        self.made: Optional[Set[str]] = None
        self.named: Dict[str, List[str]] = {}
        for folder in beside:
            self.named.setdefault(folder.rpartition("/")[2], []).append(folder)

    def has(self, name: str, path: str, names: Iterable[str] = ()) -> bool:
        """Whether the file `path`, which imports `names`, finds a module in its own folder or on top of a project.

        A script finds what lies above it as well, where no package says that it is a part of that instead.
        """
        parts = path.split("/")[:-1]
        own = path == "/".join([*parts, name + ".py"])
        for depth in range(len(parts) - own, -1, -1):
            folder = "/".join(parts[:depth])
            if depth < len(parts) and "__init__" in self.beside.get(folder, ()) and not self._is_top(folder):
                continue
            if name in self.beside.get((folder + "/src").lstrip("/"), ()):
                return True
            if name in self.beside.get(folder, ()):
                children = {wanted.split(".")[1] for wanted in names if wanted.startswith(name + ".")}
                inside = parts[depth : depth + 1] == [name] and not self._is_top(folder)
                if not inside or children <= self.beside["/".join(parts[: depth + 1])]:
                    return True
        return False

    def _is_top(self, folder: str) -> bool:
        """Whether projects have their packages in a folder."""
        made = (folder + "/" + name for name in ("setup.py", "pyproject.toml"))
        return not folder or folder.rpartition("/")[2] in ("src", "python") or any(name in self.paths for name in made)

    def lacks(self, name: str, path: str) -> Optional[Tuple[str, str]]:
        """The full name of what an import of `name` in the file `path` does not find, and of a module near it."""
        above = path.split("/")[:-1]
        level = len(name) - len(name.lstrip("."))
        if level > len(above) or (not level and not self.has(name.partition(".")[0], path, [name])):
            return None
        exact = above[: len(above) - level + 1] if level else []
        parts = name.lstrip(".").split(".")
        parents, parts = (["/".join(exact)], parts) if level else (self.named.get(parts[0], []), parts[1:])
        before = exact or [name.partition(".")[0]]
        while parts and parents and all(self._is_plain(folder) for folder in parents):
            part = parts.pop(0)
            if not any(part in self.beside[folder] or folder + "/" + part in self.paths for folder in parents):
                if _MADE.fullmatch(part) or part in self._makers_words():
                    return None
                there = {other for folder in parents for other in self.beside[folder]}
                near, package = _near(part, there), self._module_of(before) if level else before
                return ".".join(package + [part]), ".".join(package + [near]) if near else ""
            parents = [folder + "/" + part for folder in parents if folder + "/" + part in self.beside]
            before = before + [part]
        return None

    def _is_plain(self, folder: str) -> bool:
        """Whether a folder is a package that finds its modules in the usual way."""
        if "__init__" not in self.beside.get(folder, ()):
            return False
        return not _OWN_WAY.search(self.read(folder + "/__init__.py") or "")

    def _module_of(self, folders: List[str]) -> List[str]:
        first = len(folders) - 1
        while first and "__init__" in self.beside.get("/".join(folders[:first]), ()):
            first -= 1
        return folders[first:]

    def _makers_words(self) -> Set[str]:
        if self.made is None:
            self.made = {word for path in _MAKERS for word in re.findall(r"\w+", self.read(path) or "")}
        return self.made


def parsed(text: str) -> Optional[ast.Module]:
    """The syntax of a file; None for what this Python does not take."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _below(node: ast.AST, guarded: bool) -> Iterator[Tuple[str, int, bool]]:
    """Name, line and whether it is guarded, of each import below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno, guarded) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            if child.module:
                yield "." * child.level + child.module, child.lineno, guarded
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

    def has(self, name: str) -> bool:
        """Whether the package that is installed has this module of it; nothing of it runs."""
        parts = name.split(".")
        if len(parts) == 1 or self.is_missing(parts[0]):
            return False
        spec = importlib.util.find_spec(parts[0]) if parts[0] not in sys.modules else sys.modules[parts[0]].__spec__
        for depth in range(2, len(parts) + 1):
            places = spec.submodule_search_locations if spec is not None else None
            spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:depth]), places) if places else None
        return spec is not None


def main(args: Dict[str, Any], channel: Channel) -> None:
    """Read the `files` of the `trees` that the request names."""
    sys.path.pop(0)  # the programs' own folder; it must not serve an import
    trees = args["trees"]
    resolver = _Resolver(Places(args["environment"], "none", {}, list(trees.values())))
    third: Set[str] = set()
    lost: Dict[str, Dict[str, str]] = {firmness: {} for firmness in ORDER}
    for name, top in sorted(trees.items()):
        channel.stage("reading the code of %s" % name)

        def read(path: str, top: str = top) -> Optional[str]:
            return _read(os.path.join(top, path))

        for imported in imports_of(args["files"][name], read, resolver.has):
            if "." in imported.module or resolver.is_missing(imported.module):
                place = "%s/%s:%d" % (name, imported.path, imported.line)
                near = "; near: %s" % imported.near if imported.near else ""
                lost[imported.firmness].setdefault(imported.module, place + near)
            elif imported.module not in resolver.standard:
                third.add(imported.module)
    optional = dict(lost["aside"], **lost["guarded"])
    for module in lost["required"]:
        optional.pop(module, None)
    channel.facts({"resolved": sorted(third), "open": lost["required"], "optional": optional})
