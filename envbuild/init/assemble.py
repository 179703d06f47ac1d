"""An input as a whole: its statements, what its imports add, its own code as a source, and what no file says."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TypeVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.catalog.indexes import distributions
from envbuild.init.closure import SOURCE_ALONE, Closed, Roots, blocked, close, roots, scan
from envbuild.init.collect import Collected, together
from envbuild.init.draft import (
    AS_ASKED,
    Choice,
    Draft,
    DraftSource,
    Wanted,
    default_flavour,
    make_draft,
    newest_torch,
    same_repository,
)
from envbuild.init.findings import DraftFinding, find
from envbuild.init.known import Known, exact_version
from envbuild.init.readers.requirement import requirement
from envbuild.init.statement import Statement
from envbuild.init.tree import Tree
from envbuild.model.finding import package_name
from envbuild.model.stack import Build
from envbuild.resolve.variant_checks import needs_nvcc

# Frozen lists name what torch brings; with another build of torch these are of the wrong CUDA.
_BROUGHT = re.compile(r"nvidia-[a-z-]+-cu[0-9]{2}|triton")
_LEAST_FROZEN = 3
_LAST_WITHOUT_P = 10  # minor version of Python
_NOT_OURS = frozenset(
    ("tests", "test", "docs", "doc", "examples", "example", "benchmarks", "scripts", "tools", "setup")
)


@dataclass(frozen=True, slots=True)
class Missing:
    """A value that no file gives: its default and the reason."""

    what: str
    default: str
    why: str


@dataclass(frozen=True, slots=True)
class LocalProject:
    """A folder of the input that is installed: its place in the tree, and how; `code` goes on sys.path, or is built."""

    folder: str
    name: str
    install: str
    code: str
    modules: tuple[str, ...] = ()
    cuda: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that `init` knows of one input."""

    draft: Draft
    findings: tuple[DraftFinding, ...]
    collected: Collected
    closed: tuple[Closed, ...]
    projects: tuple[LocalProject, ...]
    missing: tuple[Missing, ...]
    left_out: dict[str, str]
    compiled: dict[str, str]  # packages and sources that are not installed, and why
    blocked: dict[str, str] = field(default_factory=dict)  # an own module, and what it needs that nothing brings
    system: Mapping[str, str] = field(default_factory=dict)  # packages of the system, and what is compiled against each
    page: tuple[str, str] = ("", "")  # the main file that was read, and its text
    compiles: bool = False  # the nested projects' CUDA code, with the nvcc of this machine

    @property
    def understood(self) -> tuple[int, int]:
        """Statements that a rule understands, and all."""
        every = self.draft.statements
        return sum(statement.kind != "unknown" for statement in every), len(every)

    @property
    def imports(self) -> str:
        """What the code imports beyond itself, as a draft names it; in brackets what it can do without."""
        rows = [(closing.imported.module, closing.imported.firmness == "required") for closing in self.closed]
        return ", ".join(module if required else f"({module})" for module, required in rows) or "nothing"


@dataclass(frozen=True, slots=True)
class Ask:
    """What `init` asks outside the input: the index about guesses and wheels of the input itself, git about commits,
    a machine about its Pythons.

    `flavour` of torch is what the user asks for.
    """

    index: Callable[[tuple[Closed, ...], Draft], tuple[Closed, ...]] = lambda closed, _: closed
    git: Callable[[Draft], Draft] = lambda draft: draft
    own_build: Callable[[Sequence[str], str, str, Tree, Draft], tuple[str, date] | None] = lambda *_: None
    pythons: Callable[[], Collection[str]] = tuple  # minor versions that are there
    flavour: str = ""


def assemble(tree: Tree, known: Known, ask: Ask | None = None, also: Sequence[Tree] = ()) -> Result:
    """Read an input, ask outside about it, and decide; pure apart from reading and asking."""
    ask = ask or Ask()
    collected = together([tree, *also])
    folder = len(tree.files) > 1 or tree.folder is not None
    draft = make_draft(_own_address(collected.statements, tree), tree.origin, known)
    if draft.python.default:
        draft = with_python(draft, ask.pythons())
    closed: tuple[Closed, ...] = ()
    projects: tuple[LocalProject, ...] = ()
    if folder:
        local = roots(tree)
        built = {statement.value for statement in collected.statements if statement.kind == "extension"}
        imports = scan(tree, local, built)
        closed = ask.index(close(imports, draft, known, set(tree.files)), draft)
        draft = _with_imports(draft, closed)
        projects = _with_folders(_projects(tree, local, collected, draft), closed)
        if draft.torch is None and any(imported.module == "torch" for imported in imports):
            torch = newest_torch(known, tree.origin.day, "", ())
            flavour = draft.flavour or default_flavour(draft.of("cuda"), torch, known)
            draft = replace(draft, torch=torch, flavour=flavour)
        draft = _with_setuptools(draft)
    if ask.flavour and draft.flavour:
        draft = replace(draft, flavour=Choice(ask.flavour, why=f"{ask.flavour} {AS_ASKED}"))
    draft = _with_undeclared(draft, known)
    draft, used = _without_brought(draft), {project.name for project in projects}
    draft = ask.git(replace(draft, sources=tuple(_renamed(source, used) for source in draft.sources)))
    compiled = _compiled(draft, known)
    blocked = _blocked(tree, projects, _lost(closed, draft, compiled))
    draft, blocked = _with_own_build(draft, blocked, collected, projects, tree, ask)
    return Result(
        draft,
        (*find(draft, known), *_import_open(closed)),
        collected,
        closed,
        projects,
        _missing(draft),
        {path: why for part in (tree, *also) for path, why in part.left_out.items()},
        compiled,
        blocked,
        _system(draft, closed, compiled, known),
        _page(tree, collected),
    )


def _with_own_build(
    draft: Draft,
    blocked: dict[str, str],
    collected: Collected,
    projects: Sequence[LocalProject],
    tree: Tree,
    ask: Ask,
) -> tuple[Draft, dict[str, str]]:
    """With the published wheels of own modules that need a compiled part, where these have the commit's own code.

    Only under names by which the input installs itself: whoever else took a name may have copied the code.
    """
    asked = {package_name(statement.value): statement for statement in collected.themselves}
    owners = [(project, module) for project in projects for module in project.modules]
    for project, module in owners:
        needs = blocked.get(module, "")
        own = needs.startswith(f"{module}.")
        build = ask.own_build(list(asked), needs, project.code, tree, draft) if own else None
        if build is not None:
            text, day = build
            statements = tuple(statement for name, statement in asked.items() if text.startswith(f"{name}=="))
            why = "this wheel has the commit's code and its compiled part"
            safe = (
                "; start scripts of the tree with `python -P`" if int(draft.python.value[2:]) > _LAST_WITHOUT_P else ""
            )
            wheel = Wanted(Requirement(text), statements, why=why + safe)
            draft = replace(draft, packages=(*draft.packages, wheel), own_build_day=day)
            blocked = {other: need for other, need in blocked.items() if need != needs}
    return draft, blocked


def _import_open(closed: Iterable[Closed]) -> Iterator[DraftFinding]:
    """What the code imports, and nothing brings."""
    for closing in closed:
        if closing.how == "open" and closing.imported.firmness == "required":
            module = closing.imported.module
            statements = (Statement("import", module, closing.place, f"import {module}", "import"),)
            truth = f"no package and no file here is known to bring {module}"
            near = closing.where.removeprefix(str(closing.place)).removeprefix("; ")
            yield DraftFinding(
                "import-open", (module,), statements, truth, f"leaves it out{f': {near}' if near else ''}"
            )


def with_compiled(result: Result, tree: Tree, known: Known, git: Callable[[Draft], Draft]) -> Result:
    """With the CUDA code of packages, sources and nested projects compiled: none of it counts as missing.

    A package that has no wheel is built of its repository, where the catalog has that; `git` gives the release.
    """
    draft = git(_with_repositories(result.draft, result.compiled, known))
    built = {project.folder for project in result.projects if project.cuda} if tree.folder is None else set()
    sources = {source.name for source in draft.sources if source.release is None or source.commit}
    compiled = {name: why for name, why in result.compiled.items() if name not in sources}
    lost = _lost(result.closed, draft, compiled, built)
    does = "compiles with this machine's nvcc what it knows how to, and leaves the rest as comments"
    findings = tuple(
        replace(finding, does=does) if finding.rule == "needs-nvcc" else finding for finding in result.findings
    )
    return replace(
        result,
        draft=draft,
        compiles=tree.folder is None,
        compiled=compiled,
        findings=findings,
        blocked=_blocked(tree, result.projects, lost),
    )


def _with_repositories(draft: Draft, compiled: Collection[str], known: Known) -> Draft:
    """With the repositories of packages that only nvcc can build in place of these."""
    there = {source.name for source in draft.sources}
    rows = [(package, known.compiled_package(package.requirement)) for package in draft.packages]
    sources = {
        package.name: DraftSource(
            row.source.git,
            "",
            package.name,
            package.statements,
            install="wheel",
            cuda="build",
            needs_torch=True,
            release=package.requirement.specifier,
            built=row.source,
        )
        for package, row in rows
        if package.name in compiled and row is not None and row.source is not None and package.name not in there
    }
    packages = tuple(package for package in draft.packages if package.name not in sources)
    return replace(draft, packages=packages, sources=(*draft.sources, *sources.values()))


def with_python(draft: Draft, there: Collection[str]) -> Draft:
    """With the Python that is there, fits and is nearest to the usual one; that one would have to be fetched."""
    usual = int(draft.python.value[2:])
    fitting = sorted((abs(int(version[2:]) - usual), version) for version in draft.pythons if version in there)
    if not fitting or fitting[0][0] == 0:
        return draft
    why = f"it is on this machine; the usual one of that time, {draft.python.value}, is not"
    return replace(draft, python=replace(draft.python, value=fitting[0][1], why=why))


def _system(draft: Draft, closed: Iterable[Closed], compiled: Collection[str], known: Known) -> dict[str, str]:
    """Packages of the system, and the package that is compiled against each: the index has no wheel of it."""
    sources = {closing.wanted.name for closing in closed if closing.wanted is not None and closing.why == SOURCE_ALONE}
    rows = ((package.name, known.compiled_package(package.requirement)) for package in draft.packages)
    sources |= {name for name, row in rows if row is not None and not row.wheel}
    wanted = [package.name for package in draft.packages if package.name in sources and package.name not in compiled]
    return {need: name for name in wanted for need in known.compat.system.get(name, ())}


def _page(tree: Tree, collected: Collected) -> tuple[str, str]:
    """The first page of prose that was read, else the first file."""
    pages = [path for path, noun in collected.used.items() if noun in ("Markdown", "reStructuredText")]
    path = next((page for page in (*pages, *collected.used) if page in tree.files), "")
    return path, (tree.text(path) or "") if path else ""


def _lost(closed: Iterable[Closed], draft: Draft, compiled: Collection[str], built: Collection[str] = ()) -> set[str]:
    """Modules that the drafted environment will not have; `built` are folders whose CUDA code is compiled."""
    named = {package.name for package in draft.packages}
    lost = set()
    for closing in closed:
        module = closing.imported.module
        names = set(distributions(module))
        optional = (
            closing.imported.firmness != "required" and closing.wanted is not None and closing.wanted.name not in named
        )
        if closing.how in ("open", "vendor") or not names.isdisjoint(compiled) or optional:
            lost.add(module)
    statements = (statement for statement in draft.statements if statement.kind == "extension")
    return lost | {
        statement.value.partition(".")[0]
        for statement in statements
        if statement.get("cuda") and statement.place.file.rpartition("/")[0] not in built
    }


def _blocked(tree: Tree, projects: Sequence[LocalProject], lost: set[str]) -> dict[str, str]:
    named = [(project.code, module) for project in projects for module in project.modules]
    bases = tuple(dict.fromkeys(project.code for project in projects))
    needs_of = {module: blocked(tree, (base, *bases), module, lost) for base, module in named}
    return {module: needs for module, needs in needs_of.items() if needs}


def _compiled(draft: Draft, known: Known) -> dict[str, str]:
    """Packages and sources that cannot be installed as they are asked for.

    Only nvcc can build them: the index has no wheel, and nobody gave the address of one; of a source no flag tells
    `plan` so. Or another one that is asked for holds the same files.
    """
    nvcc = {
        package.name: "compiled with nvcc, no wheel on the index"
        for package in draft.packages
        if (row := known.compiled_package(package.requirement)) is not None
        and row.cuda == "build"
        and not row.wheel
        and not any(statement.get("wheel") for statement in package.statements)
    }
    nvcc |= {
        source.name: "compiled with nvcc"
        for source in draft.sources
        if source.cuda == "build" and not source.own and not needs_nvcc(Build(flags=source.flags))
    }
    asked = {str(canonicalize_name(name)) for package in draft.packages for name in package.requirement.extras}
    asked |= {package.name for package in draft.packages}
    pairs = {
        package.name: package.name.removesuffix("-gpu") for package in draft.packages if package.name.endswith("-gpu")
    }
    return nvcc | {gpu: f"{cpu} holds the same files" for gpu, cpu in pairs.items() if cpu in asked}


def _own_address(statements: Sequence[Statement], tree: Tree) -> list[Statement]:
    """A clone of the input itself, which a page begins with, is the input: its commit is known."""
    if tree.alone:
        return list(statements)
    name = tree.origin.name.lower()
    own = {
        statement.value
        for statement in statements
        if statement.kind == "source"
        and (
            statement.value.rpartition("/")[2].lower() == name
            or (tree.origin.url and same_repository(statement.value, tree.origin.url))
        )
    }
    out = []
    for statement in statements:
        if statement.kind == "source" and statement.value in own:
            continue
        if statement.get("source") in own:
            statement = replace(statement, options={k: v for k, v in statement.options.items() if k != "source"})
        out.append(statement)
    return out


def _with_imports(draft: Draft, closed: Iterable[Closed]) -> Draft:
    added: dict[str, Wanted] = {}
    origins: dict[str, Statement] = dict(draft.from_imports)
    sources: list[DraftSource] = []
    groups = (group for name, group in draft.extras.items() if not name.startswith("file:"))
    declared = {package.name for group in groups for package in group}
    for closing in closed:
        module = closing.imported.module
        statement = Statement("import", module, closing.place, f"import {module}", "imports")
        if closing.imported.firmness != "required" and not _tests_want(closing, declared):
            continue
        if closing.wanted is not None:
            added[closing.wanted.name] = replace(
                closing.wanted, statements=(*closing.wanted.statements, statement), optional=False
            )
            origins[closing.wanted.name] = statement
        elif closing.source and closing.how == "source":
            name = closing.source.rpartition("/")[2].lower()
            sources.append(DraftSource(closing.source, "", name, (statement,), install="wheel"))
    packages = (*draft.packages, *(package for name, package in added.items() if draft.package(name) is None))
    return replace(draft, packages=packages, sources=(*draft.sources, *sources), from_imports=origins)


def _tests_want(closing: Closed, declared: Collection[str]) -> bool:
    """Whether an extra of the project brings what its tests, benchmarks or examples import; documents do not count."""
    aside = closing.imported.firmness == "aside" and not re.match(r"docs?/", closing.imported.path)
    return aside and closing.how == "offered" and closing.wanted is not None and closing.wanted.name in declared


def _with_setuptools(draft: Draft) -> Draft:
    """Environments had both until Python 3.12: old packages import the one, and are built with the other."""
    if draft.torch is None:
        return draft
    why = "environments had it until Python 3.12, and old packages need it"
    return _with_unasked(draft, ((text, why) for text in ("setuptools<82", "wheel")))


def _with_undeclared(draft: Draft, known: Known) -> Draft:
    """What packages import at once, and do not declare."""
    pins = {f"{package.name}=={exact_version(package.requirement.specifier)}" for package in draft.packages}
    rows = ((name, owner) for owner, names in known.undeclared.items() if owner in pins for name in names)
    return _with_unasked(draft, ((name, f"{owner} imports it and does not declare it") for name, owner in rows))


def _with_unasked(draft: Draft, reasons: Iterable[tuple[str, str]]) -> Draft:
    wishes = [(wish, why) for text, why in reasons if (wish := requirement(text)) is not None]
    added = [Wanted(wish, (), why=why) for wish, why in wishes if draft.package(wish.name) is None]
    return replace(draft, packages=(*draft.packages, *added))


def _without_brought(draft: Draft) -> Draft:
    brought = [package for package in draft.packages if _BROUGHT.fullmatch(package.name)]
    if draft.torch is None or sum(package.name.startswith("nvidia-") for package in brought) < _LEAST_FROZEN:
        return draft
    return replace(draft, packages=tuple(package for package in draft.packages if package not in brought))


def _projects(tree: Tree, local: Roots, collected: Collected, draft: Draft) -> tuple[LocalProject, ...]:
    """The tree's own code: its root, and the nested projects whose modules the rest imports."""
    files, names = set(tree.files), dict[str, list[str]]()
    for module, folder in local.names.items():
        if f"{folder}/{module}/__init__.py".lstrip("/") in files:
            names.setdefault(folder, []).append(module)
    compiled = {
        statement.place.file.rpartition("/")[0]
        for statement in collected.statements
        if statement.value == "compiles-cuda"
    }
    out = []
    for folder in local.folders:
        has = {path[len(folder) :].lstrip("/") for path in tree.files if path.startswith(folder)}
        installable = bool({"setup.py", "pyproject.toml"} & has)
        if folder and not (names.get(folder) and installable):
            continue
        modules = tuple(module for module in names.get(folder, ()) if module not in _NOT_OURS)
        name = (folder.rpartition("/")[2] if folder else draft.origin.name).lower()
        clean = re.sub(r"[^a-z0-9._-]+", "-", name).strip("-._") or "code"
        install = "editable" if installable and _packaged(tree, folder) and _asks_its_metadata(tree, folder) else "path"
        if any(path.endswith(".py") for path in has):
            code = f"{folder}/{_layout(has)}".strip("/") if install == "path" else folder
            out.append(LocalProject(folder, clean, install, code, modules, folder in compiled))
    return tuple(out)


def _with_folders(projects: tuple[LocalProject, ...], closed: Iterable[Closed]) -> tuple[LocalProject, ...]:
    """The same with the folders whose modules other folders import by name."""
    folders = {project.code for project in projects}
    added: dict[str, LocalProject] = {}
    for closing in closed:
        if closing.how == "local" and closing.source not in folders:
            name = re.sub(r"[^a-z0-9._-]+", "-", closing.source.lower()).strip("-._") or "folder"
            added[closing.source] = LocalProject(closing.source, name[:63], "path", closing.source)
    used: set[str] = set()
    return tuple(_renamed(project, used) for project in (*projects, *added.values()))


Named = TypeVar("Named", LocalProject, DraftSource)


def _renamed(source: Named, used: set[str]) -> Named:
    """The same under a name that no other has; `used` gets it."""
    numbers = (f"{source.name[:58]}-{number}" for number in itertools.count(2))
    name = next(candidate for candidate in itertools.chain([source.name], numbers) if candidate not in used)
    used.add(name)
    return replace(source, name=name)


def _layout(paths: Iterable[str]) -> str:
    """The folder of a project in which its packages lie, where they are not at its top."""
    packages = [path.split("/") for path in paths if path.endswith("/__init__.py")]
    if any(len(parts) == 2 for parts in packages):
        return ""
    return next((name for name in ("src", "python") if any(parts[0] == name for parts in packages)), "")


def _asks_its_metadata(tree: Tree, folder: str) -> bool:
    """Whether code asks for its own version or entry points, which only an installed project has."""
    inside = [path for path in tree.files if path.endswith("__init__.py") and path.startswith(folder)]
    texts = (tree.text(path) or "" for path in inside if path.count("/") <= folder.count("/") + 2)
    return any(re.search(r"importlib[._]metadata|pkg_resources|get_distribution", text) for text in texts)


def _packaged(tree: Tree, folder: str) -> bool:
    """Whether a project says how it is built: a pyproject.toml may hold tools alone."""
    if f"{folder}/setup.py".lstrip("/") in tree.files:
        return True
    text = tree.text(f"{folder}/pyproject.toml".lstrip("/")) or ""
    return bool(re.search(r"^\[(?:project|tool\.poetry|build-system)\]", text, re.MULTILINE))


def _missing(draft: Draft) -> tuple[Missing, ...]:
    out = []
    if draft.python.default:
        out.append(Missing("python", draft.python.value, draft.python.why))
    if draft.torch is not None and (draft.torch.default or not draft.torch.value):
        out.append(Missing("torch", draft.torch.value, draft.torch.why))
    if draft.torch is not None and (draft.flavour is None or draft.flavour.default):
        flavour = draft.flavour
        out.append(Missing("flavour", flavour.value if flavour else "", flavour.why if flavour else "nothing names it"))
    for source in draft.sources:
        if not source.own and not source.optional and not source.pinned and source.install:
            moves = f"`{source.ref or 'the default branch'}` moves"
            out.append(Missing(f"commit of {source.name}", source.commit[:12], moves))
    return tuple(out)
