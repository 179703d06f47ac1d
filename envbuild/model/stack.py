"""A stack: one system to reproduce, as its YAML file says it."""

import re
from collections.abc import Mapping
from datetime import date
from itertools import permutations
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag, field_validator, model_validator

from envbuild.model.common import (
    EMPTY_AS_NONE,
    BesidePath,
    Commit,
    Flavour,
    GitUrl,
    ModuleName,
    Name,
    PackageName,
    PythonVersion,
    RelPath,
    SettableName,
    Sha256,
    SourceName,
    StrictModel,
    Text,
    TreeHash,
    Unpacked,
    WebUrl,
    all_differ,
    without_secrets,
)
from envbuild.model.finding import Finding, RequirementText, TorchVersion, package_name
from envbuild.model.launch import Reference, Step

CondaName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_][a-z0-9_.-]{0,126}$")]
CondaVersion = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+!-]{0,126}$")]
MatchSpecText = Annotated[Text, StringConstraints(pattern=r"^[^-/.][^/]*$")]
Subdir = Literal["linux-64", "linux-aarch64", "noarch"]
LockPlatform = Literal["linux_x86_64", "linux_aarch64"]
SUBDIRS: dict[LockPlatform, Subdir] = {"linux_x86_64": "linux-64", "linux_aarch64": "linux-aarch64"}
VirtualName = Literal["__glibc", "__cuda", "__linux", "__archspec", "__unix"]


class CondaChannel(StrictModel):
    """A channel of conda.

    `name`: of the channel. `url`: only if the user's conda configuration does not resolve the name.
    """

    name: Name
    url: WebUrl | None = None


class CondaSpec(StrictModel):
    """What conda adds to a profile, besides the profile's `python`.

    `channels`: where packages come from, the preferred one first. `packages`: match specs. `provides`: distribution
    (pip's name) to the conda package that provides it; pip's resolver leaves it out. `virtual`: sets of virtual
    packages to solve for without a node's facts, the preferred one first (`{__glibc: "2.28", __cuda: "11.3"}`).
    `link_scripts`: packages whose post-link script may run. `only`: the profile has no environment of the engine venv.
    `allow_defaults`: Anaconda's `defaults` may be used.
    """

    channels: Annotated[tuple[CondaChannel, ...], Field(min_length=1)] = (CondaChannel(name="conda-forge"),)
    packages: tuple[MatchSpecText, ...] = ()
    provides: dict[PackageName, CondaName] = {}
    virtual: tuple[dict[VirtualName, Text], ...] = ()
    link_scripts: tuple[CondaName, ...] = ()
    only: bool = False
    allow_defaults: bool = False

    @model_validator(mode="after")
    def _channels_are_unique(self) -> Self:
        all_differ((channel.name for channel in self.channels), "two channels have the same name")
        return self


class CondaPackage(StrictModel):
    """One archive of a channel. `size` in bytes; `requires`: the match specs of virtual packages that it depends on."""

    name: CondaName
    version: CondaVersion
    build: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.+]{1,126}$")]
    channel: Name
    subdir: Subdir
    file: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+!-]*\.(conda|tar\.bz2)$")]
    sha256: Sha256
    size: Annotated[int, Field(ge=0)] | None = None
    unpacked: Unpacked | None = None
    requires: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _the_file_is_named_for_the_package(self) -> Self:
        stem = self.file.removesuffix(".conda").removesuffix(".tar.bz2")
        if stem != f"{self.name}-{self.version}-{self.build}":
            raise ValueError(f"{self.file} is not the name of {self.name} {self.version} {self.build}")
        return self


class LockedConda(StrictModel):
    """The conda part of a variant: its packages in order of installation.

    `provides`: distribution to the conda package that holds it. `solved_for`: the virtual packages of the solution (for
    reading; what a node must have stands at each package). `unrecorded` says why there are no packages yet.
    """

    packages: tuple[CondaPackage, ...] = ()
    provides: dict[PackageName, CondaName] = {}
    link_scripts: tuple[CondaName, ...] = ()
    solved_for: dict[VirtualName, Text] = {}
    unrecorded: Text | None = None

    @property
    def distributions(self) -> dict[str, str]:
        """Distribution to version, of those that conda provides and the lock has recorded."""
        versions = {package.name: package.version for package in self.packages}
        return {name: versions[conda] for name, conda in self.provides.items() if conda in versions}

    @model_validator(mode="after")
    def _packages_or_the_reason(self) -> Self:
        if bool(self.packages) == (self.unrecorded is not None):
            raise ValueError("`packages`, or `unrecorded` with the reason why there are none")
        all_differ((package.name for package in self.packages), "two conda packages have the same name")
        return self


InterpreterKind = Literal["present", "standalone"]
BaseKind = Literal["none", "system", "prefix", "module", "image"]


class Document(StrictModel):
    """The setup document of a stack.

    `title`: as reports name it. `url`, `commit`, `path`: its repository, and the file in it at a commit. `sha256`: the
    hash of its text, which identifies any copy of it.
    """

    title: Text
    url: WebUrl
    commit: Commit | None = None
    path: RelPath | None = None
    sha256: Sha256 | None = None


class TorchSpec(StrictModel):
    """Which torch.

    `version`: of the release, as 1.11.0. `flavours`: builds for a CUDA version or `cpu`, the preferred one first.
    """

    version: TorchVersion
    flavours: Annotated[tuple[Flavour, ...], Field(min_length=1)]


class Base(StrictModel):
    """The base of an environment.

    `kind`: `none`, `system`, `prefix`, `module` or `image`. `system` is an interpreter of the node with its site
    packages. `prefix`: the folder of another interpreter with its site packages. `module`: the name for `module load`,
    after which such an interpreter is there. `image`: the reference of a container image with such an interpreter, by
    digest if known. `provides` are requirements that the base must satisfy and that are never replaced. `accepts` are
    packages that the base may have. envbuild keeps such a package of the base if its version is in the range.
    """

    kind: BaseKind
    provides: tuple[RequirementText, ...] = ()
    accepts: Annotated[tuple[RequirementText, ...] | None, EMPTY_AS_NONE] = None
    prefix: Text | None = None
    module: Text | None = None
    image: Text | None = None

    @model_validator(mode="after")
    def _fields_fit_the_kind(self) -> Self:
        for kind in ("prefix", "module", "image"):
            if (getattr(self, kind) is not None) != (self.kind == kind):
                raise ValueError(f"`{kind}` belongs to kind: {kind}, and only there")
        if self.kind == "none" and (self.provides or self.accepts):
            raise ValueError("kind: none provides nothing")
        return self


class EnvPath(StrictModel):
    """An environment variable with a path, set only if the path exists.

    `path`: its value. `if`: always `exists`.
    """

    path: Text
    if_: Literal["exists"] = Field(alias="if")


EnvironmentValue = Text | EnvPath


class KernelModule(StrictModel):
    """One extension module that a source would compile when it is first used, built ahead of time instead.

    `name`: as it is imported. `sources`: its files; a `.cu` file makes it CUDA code. `include_dirs`: folders of
    headers. Paths are relative to the source. `cxx_flags`, `nvcc_flags`: options of the compilers. `torch`: false for a
    plain pybind11 module, which is not linked to torch.
    """

    name: ModuleName
    sources: Annotated[tuple[RelPath, ...], Field(min_length=1)]
    include_dirs: tuple[RelPath, ...] = ()
    cxx_flags: tuple[Text, ...] = ()
    nvcc_flags: tuple[Text, ...] = ()
    torch: Literal[False] | None = None


class Build(StrictModel):
    """How a source is built. Newer fields are None by default, so that the digests of older locks stay.

    `kind`: `wheel`, `inplace` or `kernels`. `wheel`: a wheel through setup.py or PEP 517, taken from the wheel store if
    it has one (the default of `install: wheel`). `inplace`: `setup.py build_ext --inplace` in the source. `kernels`:
    the `modules` that the source would compile at its first start, as a separate wheel. `flags`: options for setup.py.
    `modules`: of `kind: kernels`. `extensions` are the modules that the wheel must contain. `environment` applies to
    this build only. `memory_per_job` is the memory of one compile job in GB. `cxx11_abi` is the C++ ABI
    (`_GLIBCXX_USE_CXX11_ABI`) that the source's own build sets, where it does not leave that to torch. `requires` are
    packages that the build imports without declaring them. The build sees no other packages.
    """

    kind: Literal["wheel", "inplace", "kernels"] = "wheel"
    flags: tuple[Text, ...] = ()
    extensions: Annotated[tuple[ModuleName, ...], Field(min_length=1)] | None = None
    environment: Annotated[
        Annotated[dict[SettableName, Text], AfterValidator(without_secrets)] | None, EMPTY_AS_NONE
    ] = None
    memory_per_job: Annotated[float, Field(gt=0, le=1024)] | None = None
    cxx11_abi: Literal[0, 1] | None = None
    requires: Annotated[tuple[PackageName, ...], Field(min_length=1)] | None = None
    modules: Annotated[tuple[KernelModule, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _fields_fit_the_kind(self) -> Self:
        if (self.modules is not None) != (self.kind == "kernels"):
            raise ValueError("`modules` belongs to kind: kernels, and only there")
        if self.kind == "kernels" and (self.flags or self.extensions):
            raise ValueError("kind: kernels has modules, no flags and no extensions")
        all_differ((module.name for module in self.modules or ()), "two modules have the same name")
        return self


class Source(StrictModel):
    """A git repository pinned by commit and tree.

    `name`: of the source; also that of the distribution if it is installed. `git`: its address. `commit`: the full
    hash. `tree`: the hash of the files at that commit. `ref` is the branch or tag the commit came from; `lock check`
    says when it has moved. `contains` are commits that must be ancestors. `submodules`: whether they are fetched too.
    `install`: as a `wheel`, `editable`, or as a `path` on sys.path. `path`: the folder in it that has the project.
    `build`: how it is built. `patches`: edits of it, by name. `generated` are glob patterns (relative to the source) of
    files that runs create. `outputs` are folders that runs write, each a link to
    `<prefix>/outputs/<stack>/<source>/...`, which no verb deletes.
    """

    name: SourceName
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
    outputs: tuple[RelPath, ...] = ()

    @model_validator(mode="after")
    def _outputs_are_apart(self) -> Self:
        if self.outputs and self.install == "wheel":
            raise ValueError("`outputs` are folders of a tree: `install: editable` or `install: path`")
        if any(not {".", ".git"}.isdisjoint(name.split("/")) for name in self.outputs):
            raise ValueError("`outputs` names folders such as out or runs/logs, without '.' and '.git'")
        if any(f"{one}/".startswith(f"{other}/") for one, other in permutations(self.outputs, 2)):
            raise ValueError("one of `outputs` lies in another, or is named twice")
        return self

    @model_validator(mode="after")
    def _build_fits_install(self) -> Self:
        if self.build and self.build.kind == "inplace" and self.install == "wheel":
            raise ValueError("an in-place build needs `install: editable` or `install: path`")
        if self.build and self.build.kind == "kernels" and self.install == "wheel":
            raise ValueError("kernels stand beside a tree: `install: editable` or `install: path`")
        if self.ref is not None and self.ref.startswith("-"):
            raise ValueError("`ref` must not start with '-'")
        return self


class WorkingTree(StrictModel):
    """A folder of the user as a source: used in its place, and never copied, changed or deleted.

    `name`: of the source. `path`: the folder, relative to the stack file. Neither lock nor root covers its contents;
    reports name commit and changes. `install`: `path` puts it on sys.path, and `editable` runs its build backend there,
    which may write its metadata into the folder.
    """

    name: SourceName
    path: BesidePath
    install: Literal["path", "editable"] = "path"

    @field_validator("install", mode="before")
    @classmethod
    def _is_no_copy(cls, value: Any) -> Any:
        if value == "wheel":
            raise ValueError("a wheel would be a copy, which changes of the folder do not reach: `path` or `editable`")
        return value


def _source_form(value: Any) -> str:
    """A source without a repository is a folder; of one that has neither the repository is missing."""
    if isinstance(value, dict):
        return "working-tree" if "path" in value and not value.keys() & {"git", "commit", "tree"} else "pinned-source"
    return "working-tree" if isinstance(value, WorkingTree) else "pinned-source"


AnySource = Annotated[
    Annotated[Source, Tag("pinned-source")] | Annotated[WorkingTree, Tag("working-tree")], Discriminator(_source_form)
]


class SmokeItem(StrictModel):
    """One item of the smoke test.

    `name`: which item. `deadline`: seconds that it may take. `floors`: least values of its figures, by name. `step`:
    the program of the item `step`.
    """

    name: Literal["sound", "machine", "training", "extensions", "step"]
    deadline: Annotated[float, Field(gt=0, le=86400)] = 600.0
    floors: dict[Name, float] = {}
    step: Step | None = None

    @model_validator(mode="after")
    def _step_has_its_script(self) -> Self:
        if (self.step is not None) != (self.name == "step"):
            raise ValueError("`step` belongs to the item step, and only there")
        return self


_TORCH = re.compile(r"[Tt]orch(?![A-Za-z0-9._-])")


class Training(StrictModel):
    """How the stack trains, for the rules about GPUs and frameworks. Rules ignore a field that is None.

    `precision`: the number format of its weights. `gpus`: GPUs that each node must give, with one process each.
    `zero_stage`: the stage of DeepSpeed's ZeRO. `pipeline`: whether the model runs under DeepSpeed's pipeline engine
    (also with one stage). `peak_tflops`: the dense peak of a GPU that MFU is computed from.
    """

    precision: Literal["fp32", "fp16", "bf16"] | None = None
    gpus: Annotated[int, Field(ge=1, le=64)] | None = None
    zero_stage: Annotated[int, Field(ge=0, le=3)] | None = None
    pipeline: bool | None = None
    peak_tflops: Annotated[float, Field(gt=0)] | None = None


class SystemPackage(StrictModel):
    """A package of the operating system that a build or run needs; checked, never installed.

    `name`: as Debian has it. `why`: what needs it.
    """

    name: Annotated[Text, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")]
    why: Text


Runs = Literal["imports", "first-step", "benchmark"]
"""How far an environment goes: it imports, its own script also takes a few steps, the benchmark also runs."""


class Profile(StrictModel, defer_build=False):  # used whole and as a part: built once for both
    """One way to build the stack; its lock is made from these fields.

    `python`: versions, the preferred one first. `interpreters`: whether a node's own Python is used (`present`) or one
    that envbuild brings (`standalone`). `bases`: what environments are built on. `torch`: its version and builds.
    `conda`: what conda adds. `as_of`: packages are resolved as the index was on that day. `packages`: requirements, as
    pip has them. `constraints`: versions of packages, if something else requires them. `sources`: git repositories and
    folders that are built or put on the path. `system_packages`: packages of the operating system that a node needs.
    `imports`: modules that must be importable. `environment`: variables that activation sets. `smoke`: the items of the
    smoke test. `training`: how the stack trains, for rules. `deviations`: what the profile does differently from the
    document. `runs`: how far its environments run: they import, take first steps, or run the benchmark.
    """

    python: Annotated[tuple[PythonVersion, ...], Field(min_length=1)]
    interpreters: Annotated[tuple[InterpreterKind, ...], Field(min_length=1)] = ("present",)
    bases: Annotated[tuple[Base, ...], Field(min_length=1)] = (Base(kind="none"),)
    torch: TorchSpec | None = None
    conda: CondaSpec | None = None
    as_of: date | None = None
    packages: tuple[RequirementText, ...] = ()
    constraints: tuple[RequirementText, ...] = ()
    sources: tuple[AnySource, ...] = ()
    system_packages: tuple[SystemPackage, ...] = ()
    imports: tuple[ModuleName, ...] = ()
    environment: Annotated[dict[SettableName, EnvironmentValue], AfterValidator(without_secrets)] = {}
    smoke: tuple[SmokeItem, ...] = (SmokeItem(name="sound"),)
    training: Training | None = None
    deviations: tuple[Text, ...] = ()
    runs: Runs = "benchmark"

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        all_differ((source.name.lower() for source in self.sources), "two sources have the same name")
        trees = {source.name for source in self.sources if source.install != "wheel"}
        lost = [item.step.source for item in self.smoke if item.step and item.step.source not in trees]
        if lost:
            raise ValueError(f"the script of the smoke item `step` is in {lost[0]!r}, which is no source with a tree")
        if self.runs == "imports" and any(item.step for item in self.smoke):
            raise ValueError("`runs: imports` and the smoke item `step` contradict each other")
        needs_torch = any(item.name != "sound" for item in self.smoke_items)
        if needs_torch and not self._has_torch and not any(base.provides for base in self.bases):
            raise ValueError("the smoke items `machine`, `training`, `extensions` and `step` need torch")
        return self

    @property
    def pinned_sources(self) -> tuple[Source, ...]:
        """The sources that come from a repository."""
        return tuple(source for source in self.sources if isinstance(source, Source))

    @property
    def working_trees(self) -> tuple[WorkingTree, ...]:
        """The sources that are folders of the user."""
        return tuple(source for source in self.sources if isinstance(source, WorkingTree))

    @property
    def _has_torch(self) -> bool:
        return self.torch is not None or any(_TORCH.match(text) for text in self.packages)

    @property
    def smoke_items(self) -> tuple[SmokeItem, ...]:
        """The smoke list as the file says it; where it says none and torch is there, torch has to compute too."""
        if "smoke" in self.model_fields_set or not self._has_torch:
            return self.smoke
        return (*self.smoke, SmokeItem(name="machine"), SmokeItem(name="training"))

    @property
    def mpi_for_one_node(self) -> bool:
        """Whether its MPI is MPICH of a wheel, which serves one node, instead of the site's."""
        return "mpich" in map(package_name, self.packages)


def mpi_on_nodes(profiles: Mapping[str, Profile], name: str, nodes: int) -> tuple[str, ...]:
    """That the MPI of a profile serves one node only, where there are several, and which profiles use the site's."""
    if nodes < 2 or not profiles[name].mpi_for_one_node:
        return ()
    site = [f"`{other}`" for other, profile in profiles.items() if not profile.mpi_for_one_node]
    used = f"; the site's MPI is used by {', '.join(site)}" if site else ""
    return (f"MPI of the profile {name} is MPICH of a wheel, for one node{used}",)


class Repository(StrictModel):
    """A repository that only findings name; nothing is installed from it.

    `git`: its address. `commit`: the one that findings refer to. `tree`: the hash of the files at that commit. `what`:
    what it is.
    """

    git: GitUrl
    commit: Commit
    tree: TreeHash | None = None
    what: Text


class BuildTime(StrictModel):
    """How long `provision` took.

    `seconds`: smoke test included. `where`: on which machine, and what ran beside it.
    """

    seconds: Annotated[float, Field(gt=0)]
    where: Text


class Stack(StrictModel):
    """One stack file.

    `name`: of the stack. `summary`: one line for `stack list`. `document`: the setup document that it reproduces.
    `profiles`: ways to build it, by name. `built_on`: on which GPUs a profile is known to have been built and to have
    trained. `built_in`: the measured time of such a build. `repositories`: those that only findings name. `reference`:
    published figures, and how the stack's own training is started and measured. `findings`: what the document gets
    wrong.
    """

    name: Name
    summary: Text
    document: Document | None = None
    profiles: Annotated[dict[Name, Profile], Field(min_length=1)]
    built_on: dict[Name, Text] = {}
    built_in: dict[Name, BuildTime] = {}
    repositories: dict[Name, Repository] = {}
    reference: Reference | None = None
    findings: tuple[Finding, ...] = ()

    @model_validator(mode="after")
    def _findings_name_what_is_there(self) -> Self:
        all_differ((finding.id for finding in self.findings), "two findings have the same id")
        for finding in self.findings:
            for check in finding.check:
                at = getattr(check, "at", None)
                if at is not None and self.pinned(at) is None:
                    raise ValueError(f"finding {finding.id}: no source or repository is named {at!r}")
        return self

    def pinned(self, name: str) -> tuple[str, str] | None:
        """Git URL and commit of a source, a repository or the `document`; None when nothing is named so."""
        if name == "document":
            document = self.document
            return (document.url, document.commit) if document and document.commit else None
        if name in self.repositories:
            return self.repositories[name].git, self.repositories[name].commit
        for profile in (self.profiles[self.default_profile], *self.profiles.values()):
            for source in profile.pinned_sources:
                if source.name == name:
                    return source.git, source.commit
        return None

    @property
    def default_profile(self) -> str:
        """`exact` where there is one, else the first."""
        return "exact" if "exact" in self.profiles else next(iter(self.profiles))
