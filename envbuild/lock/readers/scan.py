"""What the tree of a source does that newer packages do not take, found by syntax in its pinned tree.

The traits are those of compat/packages.yaml; a place is `FILE:LINE`. setup.py comes first: what it does stops a build.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from envbuild.lock.readers.git import GitReader

# Names that numpy removed in 1.24 and, for good, in 2.0.
_ALIASES = {"int", "float", "object", "str", "complex", "long", "unicode"}
_NUMPY_2 = {"float_", "complex_", "unicode_", "string_", "Inf", "Infinity", "NaN", "product", "cumproduct", "alltrue"}
_NUMPY_2 |= {"sometrue", "asfarray", "infty", "PINF", "NINF", "cast", "find_common_type"}
_MODULES = {"torch._six": "torch-six", "imp": "imp", "distutils": "distutils", "pkg_resources": "pkg-resources"}
# Files without any of these words are not parsed.
WORDS = (
    r"torch\._six|torch import _six|import imp\b|from imp |ImpImporter|distutils|pkg_resources|use_2to3|"
    r"FileDescriptor\(|"
    r"\.(bool|int|float|object|str|complex|long|unicode|float_|complex_|unicode_|string_|Inf|Infinity|NaN|product|"
    r"cumproduct|alltrue|sometrue|asfarray|infty|PINF|NINF|cast|find_common_type)([^A-Za-z0-9_]|$)"
)


def scan(reader: GitReader, url: str, commit: str) -> dict[str, str]:
    """Trait to its first place in a commit. Raises EnvbuildError `source-unreachable`, `commit-missing`."""
    return uses(reader.read_all(url, commit, reader.python_with(url, commit, WORDS)))


def uses(texts: Mapping[str, str]) -> dict[str, str]:
    """Trait to its first place in Python files, by path; those that do not parse are of another Python and left out."""
    found: dict[str, str] = {}
    for path in sorted(texts, key=lambda name: (name != "setup.py", name)):
        try:
            tree = ast.parse(texts[path])
        except (SyntaxError, ValueError, RecursionError):
            continue
        for trait, line in sorted(_traits(tree, path), key=lambda item: item[1]):
            found.setdefault(trait, f"{path}:{line}")
    return dict(sorted(found.items()))


def _traits(tree: ast.Module, path: str) -> Iterator[tuple[str, int]]:
    # What stands in a `try` has its own way out.
    tries = (each for each in ast.walk(tree) if isinstance(each, ast.Try))
    guarded = {id(node) for each in tries for part in each.body for node in ast.walk(part)}
    numpy = _numpy_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in guarded:
            yield from ((trait, node.lineno) for trait in _imported(node))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from ((trait, node.lineno) for trait in _attribute(node.value.id, node.attr, numpy))
        elif isinstance(node, ast.keyword) and node.arg == "use_2to3" and path == "setup.py":
            yield "use-2to3", node.value.lineno
        elif isinstance(node, ast.Call) and path.endswith("_pb2.py") and _called(node) == "FileDescriptor":
            yield "old-protobuf", node.lineno


def _numpy_names(tree: ast.Module) -> set[str]:
    imports = (alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names)
    return {alias.asname or alias.name for alias in imports if alias.name == "numpy"}


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom):
        if node.level:
            return
        names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    else:
        names = [alias.name for alias in node.names]
    for name in names:
        if name == "pkg_resources.packaging" or name.startswith("pkg_resources.extern.packaging"):
            yield "pkg-resources-packaging"
        for module, trait in _MODULES.items():
            if name == module or name.startswith(f"{module}."):
                yield trait


def _attribute(owner: str, name: str, numpy: set[str]) -> Iterator[str]:
    if owner in numpy:
        if name == "bool":
            yield "np-bool"
        elif name in _ALIASES:
            yield "np-int"
        elif name in _NUMPY_2:
            yield "np-float_"
    elif (owner, name) == ("torch", "_six"):
        yield "torch-six"
    elif (owner, name) == ("pkgutil", "ImpImporter"):
        yield "imp"
    elif (owner, name) == ("pkg_resources", "packaging"):
        yield "pkg-resources-packaging"


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
