"""What the code of a tree imports by its syntax, and what provides that, or why it stays open. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from envbuild.catalog.indexes import distributions
from envbuild.init.draft import Draft, Wanted
from envbuild.init.known import Known
from envbuild.init.readers.requirement import requirement
from envbuild.init.statement import Place
from envbuild.init.tree import Tree
from envbuild.node.smoke.programs.closure import Import, imports_of, run_on_import

STANDARD = sys.stdlib_module_names | {"__main__", "_typeshed"}

# What packages bring along so firmly that their users import it without asking for it.
_BRINGS = {
    "torch": ("numpy", "triton", "sympy", "networkx", "filelock", "jinja2", "fsspec"),
    "transformers": ("numpy", "tokenizers", "safetensors", "huggingface-hub", "pyyaml", "requests", "tqdm", "regex",
                     "packaging", "filelock"),
    "setuptools": ("pkg-resources",),
}  # fmt: skip
SOURCE_ALONE = "the index has a source distribution alone"
_NAME = re.compile(r"[A-Za-z0-9_]+")
# Names of folders that are on nobody's index, or there another thing.
_NOBODY = frozenset(
    ("absolute", "relative", "base", "common", "config", "configs", "core", "data", "dataset", "dataloader",
     "helpers", "layers", "lib", "libs", "loss", "losses", "main", "metrics", "misc", "model", "models", "modules",
     "net", "network", "networks", "ops", "options", "scripts", "src", "test", "tests", "tool", "tools", "train",
     "trainer", "util", "utils")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Closed:
    """An import and what is done: `how` is declared, offered, local, table, name, source, vendor or open.

    `source` is a repository, of a local one the folder of the tree that goes on sys.path.
    """

    imported: Import
    how: str
    wanted: Wanted | None = None
    source: str = ""
    why: str = ""

    @property
    def place(self) -> Place:
        """The firmest place that imports it."""
        return Place(self.imported.path, self.imported.line)

    @property
    def where(self) -> str:
        """Where it is imported, why nothing brings it, and which module of the tree may be meant."""
        near = f"did you mean `{self.imported.near}`?" if self.imported.near else ""
        return "; ".join(filter(None, (str(self.place), self.why, near)))


class Roots(NamedTuple):
    """The projects of a tree: folders with a setup.py or pyproject.toml, the root itself always."""

    folders: tuple[str, ...]
    names: dict[str, str]  # module to the project that brings it


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


def scan(tree: Tree, local: Roots, built: Collection[str] = ()) -> list[Import]:
    """The imports of a tree that are no part of it; `built` are the extension modules that its own builds make."""
    passed = STANDARD | local.names.keys() | {name.partition(".")[0] for name in built} | {*built}
    there = set(tree.files)  # files that are asked for and not there are not left out
    return imports_of(
        tree.files,
        lambda path: tree.text(path) if path in there else None,
        lambda name: name in passed or name.partition(".")[0] in STANDARD,
    )


def close(imports: Sequence[Import], draft: Draft, known: Known, files: Collection[str]) -> tuple[Closed, ...]:
    """The outcome for each import; `files` are the paths of the tree."""
    installed = {source.name for source in draft.sources if source.install and not source.optional}
    packages = {package.name for package in draft.packages}
    present = packages | installed
    present |= {brought for name in tuple(present) for brought in _BRINGS.get(name, ())}
    if draft.torch is not None:
        present.add("torch")
    offered: dict[str, Wanted] = {}
    for group in draft.extras.values():
        for package in group:
            if package.name in known.compat.homonyms:
                continue
            before = offered.get(package.name)
            if before is None or not str(before.requirement.specifier):
                offered[package.name] = package
    places: dict[str, list[str]] = {}
    for path in files:
        if path.endswith(".py"):
            places.setdefault(path.removesuffix(".py").removesuffix("/__init__").rpartition("/")[2], []).append(path)
    return tuple(
        _closed(
            imported,
            packages if "." in imported.module else present,
            offered,
            _folder(imported, places.get(imported.module, ()), files),
            known,
        )
        for imported in imports
    )


def _closed(
    imported: Import,
    present: Iterable[str],
    offered: Mapping[str, Wanted],
    folder: str | None,
    known: Known,
) -> Closed:
    names = distributions(imported.module.partition(".")[0])
    if any(name in present for name in names):
        return Closed(imported, "declared")
    if "." in imported.module:  # of the tree's own package
        return Closed(imported, "open")
    if imported.module in known.vendors:
        return Closed(imported, "vendor")
    if imported.module in known.from_source:
        return Closed(imported, "source", source=known.from_source[imported.module])
    for name in names:
        if name in offered:
            return Closed(imported, "offered", offered[name])
    if folder is not None and imported.module not in known.modules:
        return Closed(imported, "local", source=folder)
    wish = requirement(names[0])
    if wish is None or not _NAME.fullmatch(imported.module) or imported.module in _NOBODY:
        return Closed(imported, "open")
    if imported.module == "pkg_resources":  # gone with setuptools 82
        wish = requirement("setuptools<82") or wish
    how = "table" if imported.module in known.modules else "name"
    return Closed(imported, how, Wanted(wish, ()))


def _folder(imported: Import, paths: Collection[str], files: Collection[str]) -> str | None:
    """The folder of a lone module of the tree, if the import means it; `paths`: where modules of this name are.

    A file does not mean itself. A package is meant by what lies beside it, or in it if it is a part of another one.
    """
    if len(paths) != 1:
        return None
    (path,) = paths
    module = path.removesuffix(".py").removesuffix("/__init__")
    folder = module.rpartition("/")[0]
    importer, is_part = imported.path, f"{folder}/__init__.py" in files
    if importer == path or (importer.startswith(f"{module}/") and not is_part):
        return None
    if path.endswith("/__init__.py") and not importer.startswith(f"{folder}/"):
        return None
    return folder


def blocked(tree: Tree, bases: Sequence[str], module: str, lost: Collection[str]) -> str:
    """What an import of the tree's own module would need and not find, by its syntax; empty for none.

    That is one of the `lost` modules, or one of its own that has to be compiled. Only what runs on import counts: no
    imports in functions, in `try` or for type checkers. `bases` are the folders on sys.path, the module's own first.
    """
    ours: dict[str, str] = {}
    for base in bases:
        ours = _modules(tree, f"{base}/" if base else "") | ours
    pending, seen = [module], set[str]()
    while pending:
        name = pending.pop()
        path = ours.get(name, "")
        if name in seen or not path.endswith(".py"):
            continue
        seen.add(name)
        package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
        for wanted, sure in run_on_import(tree.text(path) or "", package):
            top = wanted.partition(".")[0]
            if top in STANDARD:
                continue
            if (top in lost and top not in ours) or (sure and top in ours and wanted not in ours):
                return wanted if top in ours else top
            parts = wanted.split(".")
            pending += [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    return ""


def _modules(tree: Tree, base: str) -> dict[str, str]:
    """The modules of a folder by their full names, each with its file; of a package without one nothing."""
    modules: dict[str, str] = {}
    for path in tree.files:
        if path.startswith(base) and path.endswith((".py", ".so")):
            *folders, file = path[len(base) :].split("/")
            for depth in range(1, len(folders) + 1):
                modules.setdefault(".".join(folders[:depth]), "")
            modules[".".join([*folders, file.partition(".")[0]]).removesuffix(".__init__")] = path
    return modules
