"""A stack: one system to reproduce, as its YAML file says it."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, Field, model_validator

from envbuild.model.common import (
    Commit,
    EnvName,
    Flavour,
    GitUrl,
    ModuleName,
    Name,
    PythonVersion,
    RelPath,
    StrictModel,
    Text,
    TreeHash,
    WebUrl,
)


def _requirement(value: str) -> str:
    try:
        parsed = Requirement(value)
    except InvalidRequirement as error:
        raise ValueError(f"not a PEP 508 requirement: {error}") from error
    if parsed.url is not None:
        raise ValueError("a requirement with a URL is not allowed; declare a source instead")
    return value


RequirementText = Annotated[Text, AfterValidator(_requirement)]
Severity = Literal["wrong", "stale", "unpinned", "trap", "note"]
InterpreterKind = Literal["present", "standalone"]
BaseKind = Literal["none", "system", "prefix", "module"]


class Document(StrictModel):
    """The setup document a stack comes from."""

    title: Text
    url: WebUrl
    commit: Commit | None = None


class TorchSpec(StrictModel):
    """Which torch and in which flavours, the preferred one first."""

    version: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]
    flavours: Annotated[tuple[Flavour, ...], Field(min_length=1)]


class Base(StrictModel):
    """What an environment stands on.

    `system`: a node's interpreter with its site packages; `prefix`: the same under a named directory; `module`: the
    same after `module load`. `provides` are requirements that the base must satisfy and that are never replaced.
    """

    kind: BaseKind
    provides: tuple[RequirementText, ...] = ()
    prefix: Text | None = None
    module: Text | None = None

    @model_validator(mode="after")
    def _fields_fit_the_kind(self) -> Base:
        if (self.prefix is not None) != (self.kind == "prefix"):
            raise ValueError("`prefix` belongs to kind: prefix, and only there")
        if (self.module is not None) != (self.kind == "module"):
            raise ValueError("`module` belongs to kind: module, and only there")
        if self.kind == "none" and self.provides:
            raise ValueError("kind: none provides nothing")
        return self


class EnvPath(StrictModel):
    """An environment variable that names a path, set only where the path exists."""

    path: Text
    if_: Literal["exists"] = Field(alias="if")


EnvironmentValue = Text | EnvPath


class Build(StrictModel):
    """How a source becomes installable.

    `wheel`: PEP 517 build (the default of `install: wheel`); `inplace`: `setup.py build_ext --inplace` in the tree.
    """

    kind: Literal["wheel", "inplace"] = "wheel"
    flags: tuple[Text, ...] = ()


class Source(StrictModel):
    """A git repository pinned by commit and tree.

    `ref` is the branch or tag the commit came from; `lock check` says when it has moved. `contains` are commits that
    must be ancestors. `generated` are glob patterns (relative to the source) of files that runs create.
    """

    name: Name
    git: GitUrl
    commit: Commit
    tree: TreeHash | None = None
    ref: Text | None = None
    contains: tuple[Commit, ...] = ()
    submodules: bool = False
    install: Literal["wheel", "editable", "path"] = "wheel"
    path: RelPath | None = None
    build: Build | None = None
    patches: tuple[Name, ...] = ()
    generated: tuple[RelPath, ...] = ()

    @model_validator(mode="after")
    def _build_fits_install(self) -> Source:
        if self.build and self.build.kind == "inplace" and self.install == "wheel":
            raise ValueError("an in-place build needs `install: editable` or `install: path`")
        if self.ref is not None and self.ref.startswith("-"):
            raise ValueError("`ref` must not start with '-'")
        return self


class SmokeItem(StrictModel):
    """One smoke benchmark with its deadline (seconds) and floors (metric name to least value)."""

    name: Literal["sound", "machine", "training"]
    deadline: Annotated[float, Field(gt=0, le=86400)] = 600.0
    floors: dict[Name, float] = {}


class Profile(StrictModel):
    """How true to the document: everything that a lock is made from."""

    python: Annotated[tuple[PythonVersion, ...], Field(min_length=1)]
    interpreters: Annotated[tuple[InterpreterKind, ...], Field(min_length=1)] = ("present",)
    bases: Annotated[tuple[Base, ...], Field(min_length=1)] = (Base(kind="none"),)
    torch: TorchSpec | None = None
    as_of: date | None = None
    packages: tuple[RequirementText, ...] = ()
    constraints: tuple[RequirementText, ...] = ()
    sources: tuple[Source, ...] = ()
    imports: tuple[ModuleName, ...] = ()
    environment: dict[EnvName, EnvironmentValue] = {}
    smoke: tuple[SmokeItem, ...] = (SmokeItem(name="sound"),)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Profile:
        names = [source.name for source in self.sources]
        if len(set(names)) != len(names):
            raise ValueError("two sources have the same name")
        if self.torch is None and any(item.name != "sound" for item in self.smoke):
            if not any(base.provides for base in self.bases):
                raise ValueError("the smoke benchmarks `machine` and `training` need torch")
        return self


class Finding(StrictModel):
    """A statement of a document that is wrong, stale or unpinned, and what envbuild does instead."""

    id: Name
    says: str
    truth: str
    evidence: str
    does: str
    severity: Severity
    check: str | None = None
    unverified: bool = False


class Stack(StrictModel):
    """One stack file."""

    name: Name
    summary: Text
    document: Document | None = None
    profiles: Annotated[dict[Name, Profile], Field(min_length=1)]
    findings: tuple[Finding, ...] = ()

    @property
    def default_profile(self) -> str:
        """`exact` where there is one, else the first."""
        return "exact" if "exact" in self.profiles else next(iter(self.profiles))
