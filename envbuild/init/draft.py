"""Turns statements into a draft. Pure. A value that no file gives stays open, with a default and the reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import PurePosixPath

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.catalog.environment_yml import DISTRIBUTIONS
from envbuild.init.known import Known, Repository, exact_version
from envbuild.init.readers.requirement import requirement
from envbuild.init.statement import Statement

# The newest Python on a day; a default is two minors older, which then had wheels of everything.
_PYTHONS = (
    (date(2018, 6, 27), 7), (date(2019, 10, 14), 8), (date(2020, 10, 5), 9), (date(2021, 10, 4), 10),
    (date(2022, 10, 24), 11), (date(2023, 10, 2), 12), (date(2024, 10, 7), 13), (date(2025, 10, 7), 14),
)  # fmt: skip
_BEHIND = 2
_CONDA_NAMES = {**DISTRIBUTIONS, "opencv": "opencv-python", "pytables": "tables", "faiss-gpu": "faiss-gpu-cu12"}
_CUDA_OF = re.compile(r"cu([0-9]{2,3})")
_TORCH_INDEX = re.compile(r"pytorch\.org/whl/(?:nightly/|test/)?(cu[0-9]{2,3}|cpu)\b")
_KERNELS = re.compile(r"cuda|kernel|(?:^|[/_])ops\b|extension", re.IGNORECASE)
_INSTALLS = frozenset(("package", "conda", "source", "local", "file"))
AS_ASKED = "as it was asked for"
FULL_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the input comes from, as far as it is known: its repository, commit and day.

    `submodules`: of a commit, path and `URL@COMMIT` of each.
    """

    name: str
    url: str = ""
    commit: str = ""
    day: date | None = None
    submodules: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A value with the statements that it follows from; `default`: no file gives it; `why` is then the reason."""

    value: str
    statements: tuple[Statement, ...] = ()
    default: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A package of an index: the requirement, and the statements that ask for it. `conda`: the match spec it was.

    `why`: the reason for one that nothing asks for.
    """

    requirement: Requirement
    statements: tuple[Statement, ...]
    conda: bool = False
    optional: bool = False
    why: str = ""

    @property
    def name(self) -> str:
        """The normal name."""
        return str(canonicalize_name(self.requirement.name))

    @property
    def index_text(self) -> str:
        """The requirement without a local version, which an index of flavours has."""
        text = str(self.requirement)
        return re.sub(r"(==[0-9][^+,;\s]*)\+[a-z0-9.]+", r"\1", text)


@dataclass(frozen=True, slots=True)
class DraftSource:
    """A git repository that is cloned or installed; `own`: the page's own one."""

    url: str
    ref: str
    name: str
    statements: tuple[Statement, ...]
    install: str = ""  # wheel, editable, path, or nothing: it is only cloned
    subdirectories: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    cuda: str = ""
    needs_torch: bool = False
    own: bool = False
    optional: bool = False
    commit: str = ""  # what git says of the ref
    release: SpecifierSet | None = None  # of a package's repository: which versions are asked for
    built: Repository | None = None  # how nvcc compiles it, where the catalog knows that

    @property
    def pinned(self) -> bool:
        """Whether its ref is a full commit."""
        return bool(FULL_COMMIT.fullmatch(self.ref))


@dataclass(frozen=True, slots=True)
class Draft:
    """What a stack file would say."""

    origin: Origin
    python: Choice
    pythons: tuple[str, ...]
    torch: Choice | None
    torch_specifier: str
    torch_release: str  # the release next to a build that only an image has
    flavour: Choice | None
    packages: tuple[Wanted, ...]
    sources: tuple[DraftSource, ...]
    environment: Mapping[str, Statement]
    extras: Mapping[str, tuple[Wanted, ...]]
    statements: tuple[Statement, ...]
    build_backend: Statement | None = None
    from_imports: Mapping[str, Statement] = field(default_factory=dict)
    own_build_day: date | None = None

    @property
    def as_of(self) -> date | None:
        """The day whose index is taken: that of the commit, or of the wheel that was built of it."""
        return self.own_build_day or self.origin.day

    def of(self, *kinds: str) -> tuple[Statement, ...]:
        """The statements of some kinds that are no aside."""
        return tuple(statement for statement in self.statements if statement.kind in kinds and not statement.optional)

    def package(self, name: str) -> Wanted | None:
        """A package by its normal name."""
        return next((package for package in self.packages if package.name == name), None)

    @property
    def image(self) -> Statement | None:
        """The base image."""
        return next(iter(self.of("image")), None)

    @property
    def installs(self) -> bool:
        """Whether anything is installed at all."""
        return bool(self.packages or self.sources or self.of("conda", "local"))


def make_draft(statements: Iterable[Statement], origin: Origin, known: Known) -> Draft:
    """The draft that the statements of one input make, in their order."""
    every = tuple(statements)
    if not any(statement.kind in _INSTALLS and not statement.optional for statement in every):
        # Where nothing but asides installs something, the asides are what there is.
        ways = [
            replace(statement, optional=bool(statement.get("extra") or statement.get("alternative")))
            for statement in every
        ]
        every = tuple(ways) if any(way.kind in _INSTALLS and not way.optional for way in ways) else every
    taken = [statement for statement in every if not statement.optional]
    packages = _packages(taken, known)
    torch_wanted = next((package for package in packages if package.name == "torch"), None)
    torch, specifier = _torch(taken, torch_wanted, known, origin.day, packages)
    if torch is not None and torch.default and not torch.statements:
        torch = _torch_of_an_extra(every) or torch
    flavour = _flavour(taken, torch_wanted)
    if torch is not None:
        released = replace(torch, value=_release_of(torch.value, known))
        flavour = flavour or _of_prose(taken, torch, known) or default_flavour(taken, released, known)
        flavour = _nearest(flavour, torch.value, known)
    ways = [statement for statement in every if statement.get("alternative")]
    python, pythons = _python(
        taken if any(statement.kind == "python" for statement in taken) else [*taken, *ways],
        torch.value if torch else "",
        known,
        origin.day,
    )
    return Draft(
        origin=origin,
        torch_release=_release_of(torch.value, known) if torch else "",
        python=python,
        pythons=pythons,
        torch=torch,
        torch_specifier=specifier,
        flavour=flavour,
        packages=packages,
        sources=_sources(every, origin, known),
        environment={
            statement.value.partition("=")[0]: statement for statement in taken if statement.kind == "environment"
        },
        extras=_extras(every, known),
        statements=every,
        build_backend=next((statement for statement in taken if statement.value == "build-backend"), None),
    )


def _wish(statement: Statement, known: Known) -> Requirement | None:
    if statement.kind == "package":
        return requirement(statement.value)
    if statement.kind == "conda" and statement.get("name") not in known.conda_only:
        name = _CONDA_NAMES.get(statement.get("name"), statement.get("name"))
        # An exported list has its builds: what no Python built is a library of C.
        build = statement.value.partition("=")[2].lstrip("=").partition("=")[2]
        if build and "py" not in build:
            return None
        if re.match(r"_|lib(?!rosa)|gcc|gxx|nvidia/|cuda-", name):
            return None
        return requirement(f"{name}{statement.get('version')}")
    return None


def _packages(statements: Sequence[Statement], known: Known) -> tuple[Wanted, ...]:
    """One entry a name: the last exact version wins, as it does for installers that run one after another."""
    by_name: dict[str, Wanted] = {}
    for statement in statements:
        wish = _wish(statement, known)
        if wish is None or (wish.marker is not None and not wish.marker.evaluate({"sys_platform": "linux"})):
            continue
        name = str(canonicalize_name(wish.name))
        if name in known.other_systems:
            continue
        before = by_name.get(name)
        spoken = (*before.statements, statement) if before else (statement,)
        if (
            before
            and (not str(wish.specifier) or exact_version(before.requirement.specifier))
            and not exact_version(wish.specifier)
        ):
            wish = before.requirement
        offered = bool(statement.get("offered")) and (before is None or before.optional)
        by_name[name] = Wanted(wish, spoken, statement.kind == "conda", offered)
    return tuple(by_name.values())


def _extras(statements: Iterable[Statement], known: Known) -> dict[str, tuple[Wanted, ...]]:
    groups: dict[str, list[Statement]] = {}
    for statement in statements:
        extra = statement.get("extra")
        if extra and extra != "locked" and statement.kind == "package":
            groups.setdefault(extra, []).append(statement)
    return {name: _packages(listed, known) for name, listed in groups.items()}


def _specifier(text: str) -> SpecifierSet | None:
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        return None


def _torch(
    statements: Sequence[Statement], wanted: Wanted | None, known: Known, day: date | None, packages: tuple[Wanted, ...]
) -> tuple[Choice | None, str]:
    """torch's version, and the range where it is one."""
    image = next(
        (statement for statement in statements if statement.kind == "image" and "pytorch" in statement.value), None
    )
    prose = [statement for statement in statements if statement.kind == "torch"]
    if wanted is not None:
        exact = exact_version(wanted.requirement.specifier)
        if exact:
            return Choice(_full(Version(exact).public), wanted.statements), ""
        tested = next(
            (statement for statement in prose if statement.get("tested") and statement.value.startswith("==")), None
        )
        if tested:
            return Choice(_full(tested.value[2:]), (*wanted.statements, tested)), str(wanted.requirement.specifier)
        limits = str(wanted.requirement.specifier)
        for package in packages:
            if brought := _torch_of(package, known, limits):
                return replace(brought, statements=(*wanted.statements, *brought.statements)), limits
        return newest_torch(known, day, limits, wanted.statements), limits
    exactly = next((statement for statement in prose if statement.value.startswith("==")), None)
    if exactly:
        return Choice(_full(exactly.value[2:]), (exactly,)), ""
    if prose:
        return newest_torch(known, day, prose[0].value, (prose[0],)), prose[0].value
    if image is not None:
        tag = image.value.rpartition(":")[2].partition("-")[0]
        row = known.compat.images.get(tag)
        return Choice(row.torch if row else "", (image,), why="the base image brings it"), ""
    for package in packages:
        if brought := _torch_of(package, known, ""):
            return brought, ""
    if any(package.name in known.want_torch for package in packages):
        return newest_torch(known, day, "", ()), ""
    return None, ""


def _torch_of_an_extra(statements: Iterable[Statement]) -> Choice | None:
    """The exact version in an extra of the project, where nothing else names a torch that is needed."""
    for statement in statements:
        wish = (
            requirement(statement.value)
            if statement.kind == "package" and statement.get("extra").startswith("extra:")
            else None
        )
        if wish is not None and wish.name == "torch" and (exact := exact_version(wish.specifier)):
            return Choice(_full(Version(exact).public), (statement,))
    return None


def _torch_of(wanted: Wanted, known: Known, limits: str) -> Choice | None:
    """The release in a range that a package with an exact version is built for: xformers, vllm, torchvision."""
    version = known.torch_of(wanted.requirement)
    within = f"=={version}" if version.count(".") == 2 else f"=={version}.*"
    choice = newest_torch(known, None, f"{limits},{within}".strip(","), wanted.statements) if version else None
    if choice is None or not choice.value:
        return None
    return replace(choice, default=False, why=f"{wanted.index_text} is built for it")


def _full(version: str) -> str:
    return version if version.count(".") >= 2 else f"{version}.0"


def newest_torch(known: Known, day: date | None, limits: str, statements: tuple[Statement, ...]) -> Choice:
    """The newest torch release on a day in a range, as a default."""
    value = known.torch_as_of(day, _specifier(limits))
    why = f"the newest release on {day}" if day and value else "the newest release that the catalog knows"
    if not value and (day is None or day > min(known.torch_days.values())):
        value = known.torch_as_of(None, _specifier(limits))  # the range begins after that day
    return Choice(value, statements, default=True, why=why)


def _flavour(statements: Sequence[Statement], wanted: Wanted | None) -> Choice | None:
    """The flavour that is said: by a local version, conda's cudatoolkit, an index, or the name of a wheel."""
    for statement in wanted.statements if wanted else ():
        if statement.kind == "package" and (match := re.search(r"\+(cu[0-9]{2,3}|cpu|rocm[0-9.]+)", statement.value)):
            return Choice(match[1], (statement,))
    for statement in statements:
        if statement.kind == "cuda" and statement.get("by") in ("cudatoolkit", "pytorch-cuda", "cuda-version"):
            return Choice("cu" + "".join(statement.value.split(".")[:2]), (statement,))
    image = any(statement.kind == "torch" and statement.get("by") == "image" for statement in statements)
    for statement in statements:
        if image and statement.kind == "cuda" and statement.get("by") == "image":
            return Choice("cu" + "".join(statement.value.split(".")[:2]), (statement,))
        url = statement.value if statement.kind == "index" else ""
        if match := _TORCH_INDEX.search(f"{url} {statement.get('index')} {statement.get('extra_index')}"):
            return Choice(match[1], (statement,))
    for statement in statements:
        if statement.kind == "package" and (match := _CUDA_OF.search(statement.get("local"))) and len(match[1]) == 3:
            return Choice(match[0], (statement,), default=True, why="the wheel beside it is for that")
    return None


def _of_prose(statements: Sequence[Statement], torch: Choice, known: Known) -> Choice | None:
    """The flavour of the CUDA that a page was tested with, where it does not leave the choice to a command."""
    release = known.compat.torch.get(torch.value)
    spoken = [statement for statement in torch.statements if statement.via == "prose"]
    local = next((statement for statement in spoken if statement.get("local")), None)
    if local is not None:
        return Choice(local.get("local"), (local,))
    flavours = _prose_flavours(statements) if spoken and release else ()
    return next((choice for choice in flavours if release and choice.value in release.builds), None)


def _prose_flavours(statements: Iterable[Statement]) -> list[Choice]:
    """The flavours of the exact CUDA versions that sentences and tables name."""
    return [
        Choice("cu" + "".join(statement.value.split(".")[:2]), (statement,))
        for statement in statements
        if statement.kind == "cuda" and statement.via == "prose" and statement.value[:1].isdigit()
    ]


def _release_of(version: str, known: Known) -> str:
    """The release that a wheel can be had of: `2.1.0a0+fe05266f` of an image was on the way to 2.1.0."""
    if version in known.compat.torch:
        return version
    match = re.match(r"[0-9]+\.[0-9]+\.[0-9]+(?=a0)", version)
    return match[0] if match and match[0] in known.compat.torch else ""


def _nearest(flavour: Choice | None, torch: str, known: Known) -> Choice | None:
    """A flavour that the release has not gives way to the newest one of its CUDA major that is not newer."""
    release = known.compat.torch.get(torch)
    wanted = _CUDA_OF.fullmatch(flavour.value) if flavour else None
    if flavour is None or release is None or wanted is None or flavour.value in release.builds:
        return flavour
    numbers = sorted(int(match[1]) for build in release.builds if (match := _CUDA_OF.fullmatch(build)))
    same = [number for number in numbers if number // 10 == int(wanted[1]) // 10 and number <= int(wanted[1])]
    if not same:
        return flavour
    return replace(flavour, value=f"cu{same[-1]}", why=f"torch {torch} has no {flavour.value}")


def default_flavour(statements: Iterable[Statement], torch: Choice, known: Known) -> Choice | None:
    """The default index's flavour of a release, which a command without one takes; beside the CUDA of a sentence."""
    choice, flavours = _pypi_flavour(torch, known), _prose_flavours(statements)
    if choice is None or not flavours:
        return choice
    other = next((one for one in flavours if one.value == choice.value), flavours[0])
    if other.value == choice.value:
        return other
    has = other.value in known.compat.torch[torch.value].builds
    why = f"no command asks for {other.value}" if has else f"torch {torch.value} has no {other.value}"
    return Choice(choice.value, other.statements, why=why)


def _pypi_flavour(torch: Choice, known: Known) -> Choice | None:
    """The default index's flavour of a release, as a default."""
    release = known.compat.torch.get(torch.value)
    if release is not None and release.pypi_flavour is None and release.builds:
        numbers = [int(match[1]) for build in release.builds if (match := _CUDA_OF.fullmatch(build))]
        why = "the default index has no such release; this is the newest CUDA of PyTorch's own"
        return Choice(f"cu{max(numbers)}", default=True, why=why) if numbers else None
    if release is None or release.pypi_flavour is None:
        return None
    return Choice(release.pypi_flavour, default=True, why="what the default index has of this release")


def default_python(day: date | None) -> str:
    """The most likely Python of a page of that day."""
    newest = max((minor for since, minor in _PYTHONS if day is None or since <= day), default=6)
    return f"3.{max(6, newest - _BEHIND)}"


def _python(
    statements: Sequence[Statement], torch: str, known: Known, day: date | None
) -> tuple[Choice, tuple[str, ...]]:
    """The Python, and all minors that fit what is said and torch's wheels."""
    wishes = [statement for statement in statements if statement.kind == "python"]
    fitting = [f"3.{minor}" for minor in range(6, 16)]
    fitting = [version for version in known.torch_pythons(torch) if version in fitting] or fitting
    exact = [wish for wish in wishes if re.fullmatch(r"={2,3}3\.[0-9]+(\.[0-9*]+)*", wish.value)]
    order = sorted(exact, key=lambda wish: (wish.via == "prose", bool(wish.get("inferred"))))
    if order:
        value = ".".join(order[0].value.lstrip("=").split(".")[:2])
        return Choice(value, (order[0],)), (value,)
    for wish in wishes:
        specifier = _specifier(wish.value)
        if specifier is not None:
            fitting = [minor for minor in fitting if specifier.contains(f"{minor}.99")] or fitting
    usual = default_python(day)
    oldest_first = sorted(fitting, key=lambda version: int(version[2:]))
    value = (
        usual
        if usual in fitting
        else next((version for version in oldest_first if int(version[2:]) >= int(usual[2:])), "")
    )
    value = value or oldest_first[-1]
    return Choice(value, tuple(wishes), default=True, why="the usual Python of that time that fits"), tuple(fitting)


def _sources(statements: Sequence[Statement], origin: Origin, known: Known) -> tuple[DraftSource, ...]:
    repositories: dict[str, list[Statement]] = {}
    cuda_of_own = any(statement.value == "compiles-cuda" or statement.get("cuda") for statement in statements)
    for statement in statements:
        address = statement.value if statement.kind == "source" else statement.get("source")
        if statement.kind in ("source", "local", "build", "extension") and (address := address or origin.url):
            repositories.setdefault(address, []).append(statement)
        elif statement.kind == "checkout" and address in repositories:
            repositories[address].append(statement)
    return tuple(_source(url, about, origin, known, cuda_of_own=cuda_of_own) for url, about in repositories.items())


def _source(
    url: str, statements: Sequence[Statement], origin: Origin, known: Known, *, cuda_of_own: bool
) -> DraftSource:
    """A repository of the statements about it: the last ref, name and way to install it count."""
    names = [statement.get("name") for statement in statements if statement.kind == "source" and statement.get("name")]
    refs = [
        statement.get("ref") if statement.kind == "source" else statement.value
        for statement in statements
        if statement.kind == "checkout" or (statement.kind == "source" and statement.get("ref"))
    ]
    installed = [
        "editable" if statement.get("editable") else "wheel"
        for statement in statements
        if statement.kind == "local" or (statement.kind == "source" and statement.get("how") == "pip")
    ]
    folders = dict.fromkeys(
        statement.get("subdirectory") if statement.kind == "source" else statement.value
        for statement in statements
        if statement.kind in ("source", "local", "build")
    )
    flags = [flag for statement in statements if statement.kind == "local" for flag in statement.get("flags").split()]
    name = next(reversed(names), PurePosixPath(url).name).lower()
    own = bool(origin.url) and same_repository(url, origin.url)
    compiled = known.compiled_source(url)
    cuda = compiled.cuda if compiled else ""
    kernels = any(statement.kind == "build" for statement in statements) and _KERNELS.search(" ".join(folders))
    if own and (cuda_of_own or kernels):
        cuda = "build"
    return DraftSource(
        url=url,
        ref=next(reversed(refs), ""),
        name=re.sub(r"[^a-z0-9._-]+", "-", name).strip("-._") or "source",
        statements=tuple(statements),
        install=next(reversed(installed), ""),
        subdirectories=tuple(folder for folder in folders if folder not in ("", ".")),
        flags=tuple(dict.fromkeys(flags)),
        cuda=cuda,
        needs_torch=bool(compiled and compiled.torch),
        own=own,
        optional=all(statement.optional for statement in statements),
    )


def same_repository(one: str, other: str) -> bool:
    """Whether two addresses mean the same repository, whatever their case and endings."""
    return one.lower().removesuffix(".git").rstrip("/") == other.lower().removesuffix(".git").rstrip("/")
