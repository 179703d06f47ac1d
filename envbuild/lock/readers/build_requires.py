"""What the sources of a stack need to be built, read in their pinned trees, so that the lock can have it.

Sources are built without isolation: a build backend is a package of the lock like every other. Read are
`build-system.requires` of pyproject.toml (setuptools and wheel where none is said) and, of setup.py, what is written
there as plain words: `setup_requires`, and the modules that it imports at its top level.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuild.catalog.indexes import load_distributions
from envbuild.lock.readers.git import GitReader
from envbuild.lock.variants import applies
from envbuild.model.lock import LockedSource
from envbuild.model.stack import Profile, Source
from envbuild.node.smoke.programs.closure import parsed
from envbuild.regular_file import parse_toml

_LEGACY = ("setuptools", "wheel")
# What takes a version from git's tags, which an exported tree has not, and the variable that says it instead.
_FROM_TAGS = {"setuptools-scm", "hatch-vcs"}
_VERSION = "SETUPTOOLS_SCM_PRETEND_VERSION"
# What a backend asks for in code (`get_requires_for_build_editable`) and does not write down.
_FOR_EDITABLE = {"hatchling.build": "editables"}


@dataclass(frozen=True)
class Needs:
    """What one source needs to be built.

    `imports`: modules that its setup.py imports and whose package is unknown; `versioned`: its version is set, so git's
    tags are not needed.
    """

    source: str
    requirements: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    versioned: bool = False


def read_needs(sources: Sequence[Source], reader: GitReader) -> tuple[Needs, ...]:
    """The needs of the sources that are built. Raises EnvbuildError `source-unreachable`, `commit-missing`."""
    built = (
        source for source in sources if source.install != "path" or (source.build and source.build.kind != "wheel")
    )
    return tuple(_needs(source, reader) for source in built)


def _needs(source: Source, reader: GitReader) -> Needs:
    if source.build and source.build.kind == "kernels" and source.install == "path":
        return Needs(source.name, _LEGACY)  # by a setup.py of our own
    inside = f"{source.path}/" if source.path else ""
    here = reader.tree(source.git, source.commit)
    if here.keys().isdisjoint(inside + name for name in ("pyproject.toml", "setup.py", "setup.cfg")):
        return Needs(source.name)

    def read(name: str) -> str:
        return reader.read(source.git, source.commit, inside + name) or ""

    try:
        project = parse_toml(read("pyproject.toml"))
    except (ValueError, RecursionError):
        project = {}
    system = project.get("build-system", {})
    requires = [str(text) for text in system.get("requires") or ()]
    wanted, imports = _of_setup(read("setup.py"))
    backend = str(system.get("build-backend", "setuptools"))
    if source.install == "editable" and backend in _FOR_EDITABLE:
        requires.append(_FOR_EDITABLE[backend])
    if source.install == "path":
        requires = wanted  # its setup.py is run as it is, without a backend
    elif backend.startswith("setuptools"):
        requires += [*_LEGACY, *wanted]
    own = {name[len(inside) :].split("/")[0].removesuffix(".py") for name in here if name.startswith(inside)}
    brings = load_distributions()["setup_modules"]
    brought = [brings[name] for name in imports if name in brings]
    unknown = [name for name in imports if name not in brings and name not in own | sys.stdlib_module_names]
    versioned = _VERSION in ((source.build and source.build.environment) or {}) or "fallback_version" in str(project)
    return Needs(source.name, tuple(dict.fromkeys([*requires, *brought])), tuple(unknown), versioned)


def _of_setup(text: str) -> tuple[list[str], list[str]]:
    """`setup_requires` as far as it is written out, and the modules that are imported at the top level."""
    tree = parsed(text) or ast.Module([], [])
    wanted = [word for node in ast.walk(tree) if isinstance(node, ast.keyword) for word in _words(node)]
    return wanted, list(dict.fromkeys(_imported(tree)))


def _words(keyword: ast.keyword) -> Iterator[str]:
    if keyword.arg != "setup_requires":
        return
    for node in keyword.value.elts if isinstance(keyword.value, ast.List | ast.Tuple) else [keyword.value]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _imported(tree: ast.Module) -> Iterator[str]:
    """Top-level names; what stands in a `try` or an `if` can be done without."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def additions(needs: Sequence[Needs], profile: Profile) -> tuple[str, ...]:
    """The requirements of packages that the profile neither lists nor bounds."""
    named = {_name(text) for text in (*profile.packages, *profile.constraints)} | {"torch"}
    every = dict.fromkeys(text for need in needs for text in need.requirements)
    return tuple(text for text in every if (name := _name(text)) is not None and name not in named)


def with_needs(sources: Sequence[LockedSource], needs: Sequence[Needs], profile: Profile) -> tuple[LockedSource, ...]:
    """The sources with the names of the packages that the lock has for their builds only."""
    names = {need.source: {name for text in additions([need], profile) if (name := _name(text))} for need in needs}
    return tuple(
        source.model_copy(update={"needs": tuple(sorted(names.get(source.name, ()))) or None}) for source in sources
    )


def _name(text: str) -> str | None:
    """The normal name of what a requirement asks for; None for an address, and for what is none."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    return None if requirement.url else str(canonicalize_name(requirement.name))


def unmet(
    needs: Sequence[Needs], versions: Mapping[str, str], provided: Container[str], python: str, platform: str
) -> Iterator[str]:
    """Sentences about what a build wants and a variant lacks, and what to add for it.

    `versions`: name to version; `provided`: names of packages that a base has in an unknown version.
    """
    for need in needs:
        for text in need.requirements:
            name = _name(text)
            if name is None:
                yield f"source {need.source} is built with {text}, which no lock can hold: add what fits to `packages`"
                continue
            requirement = Requirement(text)
            if name == "torch" or not applies(requirement, python, platform):
                continue
            if name in _FROM_TAGS and not need.versioned:
                yield (
                    f"source {need.source} takes its version from git's tags by {name}, and the tree of a commit "
                    f"has none: say it, `build: {{environment: {{{_VERSION}: 1.2.3}}}}`"
                )
            if name in versions and not requirement.specifier.contains(versions[name], prereleases=True):
                yield f"source {need.source} is built with {text}; `packages` of the stack makes it {versions[name]}"
            elif name not in versions and name not in provided:
                yield f"source {need.source} is built with {text}, which the lock has not: add it to `packages`"
        if need.imports:
            names = ", ".join(need.imports)
            yield f"setup.py of source {need.source} imports {names}: add what brings it to `packages`"
