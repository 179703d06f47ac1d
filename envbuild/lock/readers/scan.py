"""Code of a source that newer packages do not accept, found by syntax in its pinned tree.

The traits are those of compat/packages.yaml. Code in setup.py stops a build, code that runs at import stops every
import, and code in a function stops its callers.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping

from envbuild.lock.readers.git import GitReader
from envbuild.node.smoke.programs.closure import parsed
from envbuild.resolve.rules.packages import AT_IMPORT
from envbuild.text import few

# Names that numpy removed in 1.24 and, for good, in 2.0.
_ALIASES = ("int", "float", "object", "str", "complex", "long", "unicode")
_NUMPY_2 = ("float_", "complex_", "unicode_", "string_", "Inf", "Infinity", "NaN", "product", "cumproduct", "alltrue",
            "sometrue", "asfarray", "infty", "PINF", "NINF", "cast", "find_common_type")  # fmt: skip
_NUMPY = {"bool": "np-bool", **dict.fromkeys(_ALIASES, "np-int"), **dict.fromkeys(_NUMPY_2, "np-float_")}
_ATTRIBUTES = {
    "torch._six": "torch-six", "pkgutil.ImpImporter": "imp", "pkg_resources.packaging": "pkg-resources-packaging",
}  # fmt: skip
_MODULES = {"torch._six": "torch-six", "imp": "imp", "distutils": "distutils", "pkg_resources": "pkg-resources"}
# Files without any of these words are not parsed.
WORDS = (
    r"torch\._six|torch import _six|import imp\b|from imp |ImpImporter|distutils|pkg_resources|use_2to3|"
    rf"FileDescriptor\(|\.({'|'.join(sorted(_NUMPY))})([^A-Za-z0-9_]|$)"
)

_MOST_PLACES = 8
# Conditions that no import meets.
_NOT_IMPORTED = re.compile("__main__|TYPE_CHECKING")
# What lies at the top of a tree beside the code that is used.
_ASIDE = re.compile(r"(setup|conftest|tests?|docs?|examples?|tools|scripts|benchmarks?)(\.py|/)")


def scan(reader: GitReader, url: str, commit: str) -> dict[str, str]:
    """Trait to its places in a commit, as `uses`. Raises EnvbuildError `source-unreachable`, `commit-missing`."""
    suspects = reader.read_all(url, commit, reader.grep(url, commit, WORDS, "*.py"))
    if not any(AT_IMPORT in places for places in uses(suspects).values()):
        return uses(suspects)
    return uses(suspects, imported_from_top(reader.read_all(url, commit, reader.grep(url, commit, "import", "*.py"))))


def uses(texts: Mapping[str, str], reached: Container[str] | None = None) -> dict[str, str]:
    """Trait to its places in Python files, by path; files that do not parse are for another Python and left out.

    Places are `FILE:LINE` with commas between; a place that runs at import is marked `AT_IMPORT`, unless its module is
    not in `reached`. setup.py and marked places come first.
    """
    by_trait: dict[str, dict[tuple[int, str, int], str]] = {}
    for path in texts:
        tree = parsed(texts[path])
        early = {id(node) for node in _run_by_import(tree)} if tree and (reached is None or path in reached) else set()
        for trait, node in _traits(tree, path) if tree else ():
            marked = id(node) in early and path != "setup.py"
            order = (0 if path == "setup.py" else 1 if marked else 2, path, node.lineno)
            by_trait.setdefault(trait, {})[order] = f"{path}:{node.lineno}{AT_IMPORT if marked else ''}"
    rows = {trait: [places[order] for order in sorted(places)] for trait, places in sorted(by_trait.items())}
    return {trait: few(places, _MOST_PLACES) for trait, places in rows.items()}


def _run_by_import(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported: not the bodies of functions, nor what has its own way out."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
                yield part
                yield from ast.walk(part)
        elif isinstance(node, ast.Try):
            yield from (inner for part in (*node.orelse, *node.finalbody) for inner in (part, *_run_by_import(part)))
        elif isinstance(node, ast.If) and _NOT_IMPORTED.search(ast.unparse(node.test)):
            yield from (inner for part in node.orelse for inner in (part, *_run_by_import(part)))
        elif not isinstance(node, ast.Lambda):
            yield from _run_by_import(node)


def open_imports(reader: GitReader, url: str, commit: str, entries: Iterable[str] = ()) -> dict[str, str]:
    """Modules that a commit imports at its start, neither in its tree nor in Python, with the files in between.

    Written as `train.py → model/moe.py`. `entries`: scripts and module names that are also started, besides those at
    the top. Raises EnvbuildError as `scan`.
    """
    texts = reader.read_all(url, commit, reader.grep(url, commit, "import", "*.py"))
    above = imported_from_top(texts, entries)
    own = {part.partition(".")[0] for path in reader.tree(url, commit) for part in path.split("/")}
    ways: dict[str, str] = {}
    for path in above:
        names = (name.partition(".")[0] for name in _imports(parsed(texts[path]), path))
        way = [path]
        while above[way[0]]:
            way.insert(0, above[way[0]])
        ways = {name: " → ".join(way) for name in names if name and name not in own | sys.stdlib_module_names} | ways
    return dict(sorted(ways.items()))


def imported_from_top(texts: Mapping[str, str], entries: Iterable[str] = ()) -> dict[str, str]:
    """The files that scripts and packages at the top of a tree always import.

    Each with the file that imports it, empty for a start; the nearest come first. `entries`: further starts, paths and
    modules.
    """
    modules: dict[str, str] = {}
    for path in texts:
        parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
        modules[".".join(parts)] = path
    begin = [path for path in texts if path.count("/") == path.endswith("/__init__.py") and not _ASIDE.match(path)]
    begin += [path for name in entries if (path := modules.get(name, name)) in texts]
    reached: dict[str, str] = {}
    todo = deque((path, "") for path in begin)
    while todo:
        path, by = todo.popleft()
        if path not in reached:
            reached[path] = by
            names = _imports(parsed(texts[path]), path)
            todo += [(modules[part], path) for name in names for part in _parents(name) if part in modules]
    return reached


def _parents(name: str) -> Iterator[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`: importing a module runs its packages."""
    parts = name.split(".")
    return (".".join(parts[: end + 1]) for end in range(len(parts)))


def _imports(tree: ast.Module | None, path: str) -> Iterator[str]:
    """What a module imports when it is imported itself, in absolute names from the top of its tree."""
    here = path.removesuffix(".py").split("/")
    for node in _run_by_import(tree) if tree else ():
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = ".".join([*here[: -node.level], node.module or ""] if node.level else [node.module or ""]).strip(
                "."
            )
            yield package
            yield from (f"{package}.{alias.name}".strip(".") for alias in node.names)


def _traits(tree: ast.Module, path: str) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    # What stands in a `try` has its own way out.
    tries = (node for node in ast.walk(tree) if isinstance(node, ast.Try))
    guarded = {id(node) for guard in tries for part in guard.body for node in ast.walk(part)}
    imports = (alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names)
    numpy = {alias.asname or alias.name for alias in imports if alias.name == "numpy"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call) and id(node) not in guarded:
            yield from ((trait, node) for trait in _imported(node))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, name = node.value.id, node.attr
            trait = _NUMPY.get(name) if owner in numpy else _ATTRIBUTES.get(f"{owner}.{name}")
            if trait:
                yield trait, node
        elif isinstance(node, ast.keyword) and node.arg == "use_2to3" and path == "setup.py":
            yield "use-2to3", node.value
        elif isinstance(node, ast.Call) and path.endswith("_pb2.py") and _called(node) == "FileDescriptor":
            yield "old-protobuf", node


def _imported(node: ast.Import | ast.ImportFrom | ast.Call) -> Iterator[str]:
    if isinstance(node, ast.Call):
        dynamic = _called(node) in ("__import__", "import_module")
        names = [argument.value for argument in node.args[:1] if dynamic and isinstance(argument, ast.Constant)]
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            return
        names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    else:
        names = [alias.name for alias in node.names]
    for name in map(str, names):
        if name == "pkg_resources.packaging" or name.startswith("pkg_resources.extern.packaging"):
            yield "pkg-resources-packaging"
        for module, trait in _MODULES.items():
            if name == module or name.startswith(f"{module}."):
                yield trait


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
