"""What is wrong, loose or missing in the statements, one function a rule or two; pure, and each with what follows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from packaging.version import Version

from envbuild.init.draft import AS_ASKED, Choice, Draft, DraftSource, Wanted
from envbuild.init.known import Known, exact_version
from envbuild.init.readers.requirement import name_of, requirement
from envbuild.init.statement import Statement
from envbuild.text import grouped, plural

_SHORT = re.compile(r"[0-9a-f]{7,39}")
_MOVING = frozenset(("main", "master", "develop", "dev", "devel", "latest", "nightly", "stable", "HEAD", "trunk"))
# A version in it, or a hash; others read like branches.
_LIKE_A_TAG = re.compile(r"[0-9][._][0-9]|(?:^|/)(?:v|r|rel|release)-?[0-9]|^[0-9a-f]{7,40}$|^[0-9]+$")
_MIRRORED = re.compile(r"[\w-]+\.[^/]+/(?:[^/]+/)*(?:nvidia|pytorch)/")
_REGISTRIES = re.compile(r"(?:nvcr|ghcr|quay|gcr|docker|public\.ecr|registry\.gitlab|mcr)\.")
_CHANNELS = frozenset(
    ("pytorch", "nvidia", "conda-forge", "defaults", "anaconda", "main", "xformers", "pyg", "dglteam", "bioconda",
     "huggingface", "rapidsai", "fvcore", "iopath", "pytorch3d", "intel", "msys2")
)  # fmt: skip
# Places with wheels of compiled packages for one torch and CUDA.
_BUILDS = re.compile(r"openmmlab\.com|pyg\.org|pytorch-geometric\.com|/releases/|\.whl")
_OF_TORCH = re.compile(r"torch-?([0-9]+\.[0-9]+)")
_WITHDRAWN = re.compile(r"nvidia/cuda:[0-9]+\.[0-9]+-")
_ENDED = re.compile(r"ubuntu(?:14|16|18)\.04|centos[678]")
_INSTALLING = ("package", "conda", "source", "local", "file", "build")
_AMPERE = ("8.0", "8.6", "ampere", "9.0", "hopper")
_UNREAD = re.compile(r"\.(?:sh|txt|ya?ml|toml|in|cfg)$|^\$|^requirements")
_RELEASE = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")


@dataclass(frozen=True, slots=True)
class DraftFinding:
    """A finding of a rule: what it is `about`, the statements it rests on, the `truth`, and what the draft `does`."""

    rule: str
    about: tuple[str, ...]
    statements: tuple[Statement, ...]
    truth: str
    does: str

    def as_json(self) -> dict[str, object]:
        """Plain data for `--json`."""
        quotes = [{"at": str(statement.place), "text": statement.text} for statement in self.statements]
        return {"rule": self.rule, "about": list(self.about), "says": quotes, "truth": self.truth, "does": self.does}


def find(draft: Draft, known: Known) -> tuple[DraftFinding, ...]:
    """The findings of all rules: those about the statements alone, then those that ask the catalog."""
    return tuple(finding for rule in _RULES for finding in rule(draft, known))


def of_statements(
    rule: str, statements: Sequence[Statement], truth: str, does: str, about: Iterable[str] | None = None
) -> Iterator[DraftFinding]:
    """The finding that statements give, none without any; `about`: what they name, their values if it is not given."""
    if statements:
        names = (statement.value for statement in statements) if about is None else about
        yield DraftFinding(rule, tuple(names), tuple(statements), truth, does)


def of_packages(rule: str, packages: Sequence[Wanted], truth: str, does: str) -> Iterator[DraftFinding]:
    """The finding that packages give, by what was said of each last."""
    last = [package.statements[-1] for package in packages]
    yield from of_statements(rule, last, truth, does, (package.name for package in packages))


def of_sources(rule: str, sources: Sequence[DraftSource], truth: str, does: str) -> Iterator[DraftFinding]:
    """The finding that sources give, by what was said of each first."""
    yield from of_statements(rule, _first(sources), truth, does, _names(sources))


def _trait(draft: Draft, name: str) -> tuple[Statement, ...]:
    return tuple(statement for statement in draft.of("trait") if statement.value == name)


def _active(draft: Draft) -> tuple[DraftSource, ...]:
    """The sources that the draft takes, the own one without a clone left out."""
    return tuple(source for source in draft.sources if not source.optional)


def _values(statements: Iterable[Statement]) -> dict[str, None]:
    return dict.fromkeys(statement.value for statement in statements)


def python_open(draft: Draft, _: Known) -> Iterator[DraftFinding]:
    """No Python, or only a lower bound."""
    python = draft.python
    firm = any(not statement.get("inferred") for statement in python.statements) and not python.default
    guessed = [statement for statement in draft.of("python") if statement.get("inferred") == "wheel"]
    if draft.installs and not (firm or (python.statements and not python.default and not guessed)):
        truth = (
            f"the files say only `{python.statements[0].value}`" if python.statements else "no file says which Python"
        )
        if guessed:
            truth = "only the name of a wheel says which Python"
        does = f"takes Python {python.value}: {python.why or 'it is the one that fits'}"
        yield DraftFinding("python-open", ("python",), python.statements, truth, does)


def torch_rules(draft: Draft, known: Known) -> Iterator[DraftFinding]:
    """torch that is absent, floats, is older than the catalog, or comes in the index's own flavour."""
    torch = draft.torch
    if torch is None or (torch.default and not torch.statements):
        yield from _absent_torch(draft, known)
    elif torch.default:
        truth = f"torch{draft.torch_specifier} is whatever the index has on the day of the installation"
        yield from of_statements(
            "torch-floating", torch.statements, truth, f"takes {torch.value or '?'}: {torch.why}", ["torch"]
        )
        yield from _other_flavour(draft, torch, known)
    elif _RELEASE.fullmatch(torch.value):
        yield from _known_torch(draft, torch, known)


def _absent_torch(draft: Draft, known: Known) -> Iterator[DraftFinding]:
    """torch that no file names, unless a list that was not read may do so."""
    torch = draft.torch
    if _listed_elsewhere(draft):
        return
    if torch is not None:
        names = [package.name for package in draft.packages if package.name in known.want_torch]
        who = f"{', '.join(names[:4])} need torch" if names else "the code imports torch"
        yield DraftFinding("torch-absent", tuple(names or ["torch"]), (), f"{who}, and no file names it",
                           f"takes torch {torch.value or '?'}: {torch.why}")  # fmt: skip
    elif names := [source.name for source in _active(draft) if source.needs_torch and draft.image is None]:
        truth = f"{', '.join(names)} need torch, and no file names it"
        yield DraftFinding("torch-absent", tuple(names), (), truth, "asks you for a release")


def _listed_elsewhere(draft: Draft) -> bool:
    """Whether a project or a list is installed whose own requirements were not read."""
    return bool(draft.of("local")) or any(statement.get("by") in ("-r", "conda") for statement in draft.of("file"))


def _known_torch(draft: Draft, torch: Choice, known: Known) -> Iterator[DraftFinding]:
    """A release beyond the tables, or one whose flavour is not said, is not there or is not the default index's."""
    version, release, flavour = torch.value, known.compat.torch.get(torch.value), draft.flavour
    about, texts = [f"torch {version}"], torch.statements
    oldest, *_, newest = sorted(map(Version, known.compat.torch))
    if Version(version) < oldest:
        yield from of_statements("torch-below-catalog", texts,
                                 f"it is older than {oldest}, the first release in envbuild's tables",
                                 "keeps it, and judges nothing about it", about)  # fmt: skip
    elif Version(version) > newest:
        yield from of_statements("torch-above-catalog", texts,
                                 f"it is newer than {newest}, the last release in envbuild's tables",
                                 "keeps it, and judges nothing about it", about)  # fmt: skip
    elif release is None:
        truth = "there is no such release of torch"
        yield from of_statements("version-missing", texts, truth, "asks you for another release", about)
    elif flavour is not None and not flavour.default:
        yield from _other_flavour(draft, torch, known)
    elif flavour is not None and release.pypi_flavour is None:
        does = f"takes {flavour.value} from PyTorch's own index"
        yield from of_statements("index-missing", texts, f"the default index has no torch {version}", does, about)
    elif flavour is not None and any(statement.kind in ("package", "conda") for statement in texts):
        truth = f"no CUDA flavour is named: the default index has {flavour.value}"
        yield from of_statements("flavour-by-default", texts, truth, f"takes {flavour.value}", about)


def _other_flavour(draft: Draft, torch: Choice, known: Known) -> Iterator[DraftFinding]:
    """A flavour that the release does not have, or that a sentence names and no command."""
    version, release, flavour = torch.value, known.compat.torch.get(torch.value), draft.flavour
    if release is None or flavour is None or flavour.default or flavour.why.endswith(AS_ASKED):
        return
    label = flavour.why.rpartition(" ")[2] or flavour.value
    does = f"takes {flavour.value}"
    # A page that names no release says nothing wrong.
    if label not in release.builds and label.startswith("cu") and not torch.default:
        truth = f"torch {version} has only {', '.join(sorted(release.builds))}, and no {label}"
        yield DraftFinding("flavour-missing", (f"torch {version}+{label}",), flavour.statements, truth, does)
    elif flavour.why:
        truth = f"{flavour.why}, and the default index has torch {version} for {flavour.value}"
        yield DraftFinding("flavour-by-default", (f"torch {version}",), flavour.statements, truth, does)


def conda_rules(draft: Draft, _: Known) -> Iterator[DraftFinding]:
    """torch of a channel, two installers in one environment, channels of persons, terms to accept."""
    torch = next((statement for statement in draft.of("conda") if statement.get("name") in ("pytorch", "torch")), None)
    if torch is not None and draft.torch is not None:
        flavour = f"+{draft.flavour.value}" if draft.flavour else ""
        does = f"takes the wheel of torch {draft.torch.value}{flavour}"
        yield DraftFinding("conda-torch", (torch.value,), (torch,), "conda's build differs from the wheel", does)
    by_pip = [statement for statement in draft.of("package") if statement.via in ("pip", "environment.yml", "sudo")]
    by_pip += [way for way in draft.of("source", "local") if way.get("how") == "pip" or way.kind == "local"]
    pip_files = [statement for statement in draft.of("file") if statement.get("by") == "-r"]
    real = [statement for statement in draft.of("conda") if statement.get("name") not in ("pip", "python")]
    if real and [statement for statement in by_pip if not statement.get("legacy")] + pip_files:
        truth = "conda and pip install into one environment"
        does = "takes all of it as wheels, in one resolution"
        yield DraftFinding("conda-pip", ("page",), (real[0], *by_pip[:1]), truth, does)
    for channel in draft.of("channel"):
        name = channel.value.rstrip("/").rpartition("/")[2].lower()
        if name in ("defaults", "anaconda", "main"):
            yield from of_statements(
                "licence-accept", [channel], "this channel has terms to accept", "takes wheels from the index"
            )
        elif name not in _CHANNELS and "label" not in channel.value:
            truth = f"{name} is one person's channel"
            yield from of_statements("conda-personal-channel", [channel], truth, "takes nothing from it")


def unpinned(draft: Draft, _: Known) -> Iterator[DraftFinding]:
    """Packages without an exact version."""
    loose = [
        package
        for package in draft.packages
        if package.statements
        and not exact_version(package.requirement.specifier)
        and not (package.requirement.url or package.statements[-1].get("address"))
    ]
    does = f"takes what the index had on {draft.as_of}" if draft.as_of else "takes what the lock resolves to"
    yield from of_packages("unpinned", loose, f"{plural(len(loose), 'package')} without an exact version", does)


def _places_of(rule: str, sources: Iterable[DraftSource], truth: str) -> Iterator[DraftFinding]:
    """Apart those that are installed and those that are only cloned, which the draft does not pin."""
    pins = "pins the commit of the day; if its repository cannot be reached, write the commit into the draft"
    groups = grouped(sources, lambda source: bool(source.install) and not source.optional)
    for installed, group in groups.items():
        does = pins if installed else "clones and pins nothing: only a comment of the draft names it"
        yield from of_sources(rule, group, truth, does)


def git_rules(draft: Draft, known: Known) -> Iterator[DraftFinding]:
    """Sources by nothing, by a moving name, by a short hash, over ssh, or by an old address."""
    ways = [source for source in draft.sources if source.optional and source.statements[0].get("alternative")]
    sources = [
        source
        for source in (*_active(draft), *ways)
        if any(statement.kind == "source" for statement in source.statements)
    ]
    bare = [source for source in sources if not source.ref]
    yield from _places_of("git-unpinned", bare, "git clones whatever the default branch has that day")
    moving = [
        source for source in sources if source.ref and (source.ref in _MOVING or not _LIKE_A_TAG.search(source.ref))
    ]
    yield from _places_of("git-branch", moving, "these look like branches, and a branch moves")
    short = [source for source in sources if _SHORT.fullmatch(source.ref) and not source.ref.isdigit()]
    yield from of_sources("short-sha", short, "a short hash can mean several commits", "asks for the full hash")
    secure = [source for source in sources if any(statement.get("ssh") for statement in source.statements)]
    yield from of_sources("ssh-clone", secure, "git over ssh needs a key", "clones by https")
    moved = [source for source in sources if source.url in known.moved]
    truth = f"the repository is now {known.moved[moved[0].url]}" if moved else ""
    yield from of_sources("repo-moved", moved, truth, "keeps the old address, which redirects")


def _names(sources: Iterable[DraftSource]) -> tuple[str, ...]:
    return tuple(source.url.rpartition("/")[2] for source in sources)


def _first(sources: Iterable[DraftSource]) -> tuple[Statement, ...]:
    return tuple(source.statements[0] for source in sources)


def build_rules(draft: Draft, known: Known) -> Iterator[DraftFinding]:
    """Compiled code: without a wheel, without a compiler, without torch, or in a way that is gone."""
    exact = [package for package in draft.packages if not _has_wheel(package)]
    compiled = [(package, row) for package in exact if (row := known.compiled_package(package.requirement)) is not None]
    without = [package for package, row in compiled if not row.wheel]
    truth = "the index has only a source distribution, which is compiled during the installation"
    needs = dict.fromkeys(need for package in without for need in known.compat.system.get(package.name, ()))
    against = f"; they are compiled against packages of the system: {', '.join(needs)}" if needs else ""
    yield from of_packages("no-wheel", without, truth, f"asks for `--allow-build`, or takes a source{against}")
    python = "" if draft.python.default else draft.python.value
    early = [package for package in exact if known.has_no_wheel(package.requirement, python)]
    truth = f"these releases are older than Python {python}, and have no wheel for it"
    yield from of_packages("no-wheel", early, truth, "asks for another Python or newer releases")
    yield from _nvcc(draft, known, [package for package, row in compiled if row.cuda == "build" and not row.wheel])
    yield from _needs_torch(draft)
    legacy = [statement for statement in draft.statements if statement.get("legacy")]
    if draft.build_backend is None:
        truth = "setup.py install and develop do not record which files they install"
        yield from of_statements(
            "legacy-build", legacy, truth, "installs the source without these commands", _places(legacy)
        )
    flags = _trait(draft, "pip-global-option")
    folders = [_last(statement.get("source")) for statement in flags]
    does = "passes the flags to the build itself"
    yield from of_statements("pip-global-option", flags, "pip 25.3 removed --global-option", does, folders)
    editable = [statement for statement in draft.of("local", "source") if statement.get("editable")]
    truth = "an editable install runs whatever is in the folder"
    does = "pins its commit, or reports a local folder's changes"
    yield from of_statements("editable-install", editable, truth, does, _places(editable))


def _has_wheel(wanted: Wanted) -> bool:
    """Whether somebody gave a wheel, or a place that has wheels for one torch; conda has its own builds."""
    return wanted.conda or any(
        statement.get("wheel") or _BUILDS.search(statement.get("find_links")) for statement in wanted.statements
    )


def _last(url: str) -> str:
    return url.rpartition("/")[2] or "this repository"


def _places(statements: Iterable[Statement]) -> tuple[str, ...]:
    names = (
        _last(statement.get("source") or (statement.value if statement.kind == "source" else ""))
        for statement in statements
    )
    return tuple(dict.fromkeys(names))


def _nvcc(draft: Draft, known: Known, packages: list[Wanted]) -> Iterator[DraftFinding]:
    brought = draft.image is not None and bool(draft.image.get("devel"))
    brought = brought or any(statement.get("by") == "toolkit" for statement in draft.of("cuda"))
    sources = [source for source in draft.sources if source.cuda == "build"]
    optional_own = [
        statement
        for statement in draft.statements
        if statement.kind == "local"
        and ((statement.get("legacy") and _cuda_name(statement)) or _compiled_folder(statement, known))
    ]
    extensions = [statement for statement in draft.of("extension") if statement.get("cuda")]
    names = [*(package.name for package in packages), *_names(sources), *_values(extensions + optional_own)]
    quoted = [*_first(sources), *(package.statements[-1] for package in packages), *extensions, *optional_own]
    if not brought:
        truth = "CUDA code is compiled, and no file names a toolkit or compiler"
        does = "leaves it out as a comment, unless a build flag tells `plan` of nvcc"
        yield from of_statements("needs-nvcc", quoted, truth, does, dict.fromkeys(names))


def _compiled_folder(statement: Statement, known: Known) -> bool:
    """Whether a folder that is installed has the name of a repository that compiles CUDA: a submodule."""
    row = known.compiled_source(statement.value.rstrip("/")) if not statement.optional else None
    return row is not None and row.cuda == "build"


def _cuda_name(statement: Statement) -> bool:
    return bool(re.search(r"cuda|_ops|/ops|kernel", statement.value)) or "cuda" in statement.text.lower()


def _needs_torch(draft: Draft) -> Iterator[DraftFinding]:
    truth = "the build imports torch, which an isolated build does not have"
    does = "builds after torch, without isolation"
    if draft.build_backend is None:
        yield from of_statements(
            "build-needs-torch", _trait(draft, "build-imports-torch"), truth, does, ["this repository"]
        )
    isolated = [
        source
        for source in _active(draft)
        if source.needs_torch and source.cuda == "build" and source.install
        and not any(statement.get("no_isolation") or statement.get("legacy") for statement in source.statements)
    ]  # fmt: skip
    yield from of_sources("build-needs-torch", isolated, truth, does)


def backend(draft: Draft, _: Known) -> Iterator[DraftFinding]:
    """A build backend that no requirement of the build brings."""
    statement = draft.build_backend
    module = statement.get("backend").partition(".")[0].partition(":")[0] if statement else ""
    if statement is None or not module or module == "backend":
        return
    wanted = {name_of(text).replace("-", "_") for text in statement.get("requires").split("\n")}
    brings = {module, f"{module}_core"} if statement.get("backend") != "poetry.masonry.api" else {"poetry"}
    if not wanted & brings and module != "setuptools":
        yield DraftFinding("missing-build-backend", (module,), (statement,), f"its build requirements lack {module}",
                           "puts the code on sys.path, and builds nothing")  # fmt: skip


def shell_rules(draft: Draft, _: Known) -> Iterator[DraftFinding]:
    """Commands that do something else than is meant, need root, or change what they must not."""
    for trait, truth, does in (
        ("shell-slip", "the command does not do what is meant", "does what is meant"),
        ("sudo", "the command needs root", "leaves it to the administrator"),
        ("curl-to-shell", "a downloaded script runs without a check", "leaves it out"),
        ("security", "it weakens the security of the machine", "leaves it out"),
        ("interactive", "it waits for an answer", "leaves it out"),
        ("silent-skip", "a failure is not reported", "builds it, or stops"),
        ("site-specific", "the value is right on one site only", "leaves it to the target"),
        ("hard-coded-path", "the path exists on one machine only", "leaves it out"),
        ("rank-slip", "every rank gets the same value", "gives each rank its own"),
    ):  # fmt: skip
        statements = _trait(draft, trait)
        if statements:
            about = [statement.get("why") or statement.get("path") or statement.text for statement in statements]
            yield from of_statements(trait, statements, statements[0].get("why") or truth, does, about)
    truth = "the environment depends on a start-up file of a shell"
    yield from of_statements("start-up-file", draft.of("startup"), truth, "does not change it")
    edits = [*draft.of("edit")]
    edits += [statement for statement in draft.of("import") if re.search(r"\bAutoFix\(|\.fix\(", statement.text)]
    by_hand = " by hand" if all(statement.get("by") == "prose" for statement in edits) else ""
    yield from of_statements("edited-by-sed", edits, f"files that were installed or cloned are edited{by_hand}",
                             "asks for a patch")  # fmt: skip


def fetch_rules(draft: Draft, _: Known) -> Iterator[DraftFinding]:
    """What is fetched by a moving address, and what stands in other files."""
    moving = [
        statement
        for statement in draft.of("download")
        if re.search(r"latest|/(?:master|main)/|get-pip\.py|nightly|install\.sh$", statement.value)
    ]
    moving += [statement for statement in draft.of("build", "file", "image") if "latest" in statement.value]
    yield from of_statements(
        "latest-download", moving, "the file at this address changes", "leaves it out", _values(moving)
    )
    files = [file for file in draft.of("file") if _UNREAD.search(file.value) and file.get("read") != "yes"]
    truth = "packages or commands are in a file that was not given"
    yield from of_statements("file-elsewhere", files, truth, "asks you for it", _values(files))
    made = draft.of("activate")
    base = [statement for statement in made if statement.get("base")]
    if base:
        truth = "it builds on an environment that is made elsewhere"
        does = "asks which packages that environment has"
        yield from of_statements("env-elsewhere", base, truth, does)
    elif not draft.of("package", "conda", "source", "local") and not _listed_elsewhere(draft):
        yield from of_statements(
            "env-elsewhere", made, "the environment is made elsewhere", "drafts a target and no profile"
        )


def together(draft: Draft, known: Known) -> Iterator[DraftFinding]:
    """Packages that are named twice, that exclude each other, that own the same module, or mean another one."""
    twice = [package for package in draft.packages if _said_twice(package)]
    if twice:
        yield DraftFinding("duplicate", tuple(package.name for package in twice), twice[0].statements,
                           "one package is named twice", "takes the one with a version")  # fmt: skip
    differing = [package for package in draft.packages if _contradicted(package)]
    if differing:
        taken = ", ".join(f"{package.name}{package.requirement.specifier}" for package in differing)
        yield DraftFinding("contradiction", tuple(package.name for package in differing), differing[0].statements,
                           "two files name two versions of one package", f"takes {taken}")  # fmt: skip
    pythons = [
        statement
        for statement in draft.of("python")
        if re.match(r"={2,3}3\.[0-9]+", statement.value) and not statement.get("inferred")
    ]
    minors = {".".join(statement.value.lstrip("=").split(".")[:2]): statement for statement in reversed(pythons)}
    if len(minors) > 1 and len({statement.place.file for statement in minors.values()}) > 1:
        yield DraftFinding("contradiction", ("python", *minors), tuple(reversed(minors.values())),
                           "two files name two Pythons", f"takes {draft.python.value}")  # fmt: skip
    yield from _pinned_cudnn(draft, known)
    yield from _other_torch(draft, known)
    foreign = [statement for statement in draft.of("package", "conda") if _name(statement) in known.other_systems]
    truth = "the list was frozen on another operating system"
    yield from of_statements("platform-mismatch", foreign, truth, "leaves them out", map(_name, foreign))
    by_name = {package.name: package for package in draft.packages}
    for group in known.compat.twins:
        if len(twins := [name for name in by_name if name in group]) > 1:
            yield DraftFinding("two-owners", tuple(twins), tuple(by_name[name].statements[0] for name in twins),
                               "these packages contain the same files", "takes the first")  # fmt: skip
    for name in by_name.keys() & known.compat.homonyms.keys():
        if not by_name[name].conda:
            truth = f"on the index {name} is {known.compat.homonyms[name][0]}"
            does = f"asks: {known.compat.homonyms[name][1]} may be meant"
            yield DraftFinding("package-homonym", (name,), by_name[name].statements, truth, does)


def _name(statement: Statement) -> str:
    return statement.get("name") or name_of(statement.value)


def _other_torch(draft: Draft, known: Known) -> Iterator[DraftFinding]:
    """Packages and wheels that are built for another torch, or another Python, than the one that is asked for."""
    torch, python = draft.torch, "" if draft.python.default else draft.python.value
    ours = torch.value if torch and not torch.default and not torch.why else ""
    for package in draft.packages if ours else ():
        theirs = known.torch_of(package.requirement)
        for statement in package.statements:
            if match := _OF_TORCH.search(f"{statement.get('local')} {statement.get('find_links')}"):
                theirs = match[1]
        if theirs and theirs.split(".")[:2] != ours.split(".")[:2]:
            said_of = (*package.statements, *(torch.statements if torch else ()))
            yield DraftFinding("conflict", (package.name, "torch"), said_of,
                               f"{package.index_text} is built for torch {theirs}, and torch is {ours}",
                               "keeps both: locking refuses them and says which one to change")  # fmt: skip
    wheels = [wish for wish in draft.of("python") if wish.get("inferred") == "wheel" and python not in wish.value]
    if python and wheels:
        yield DraftFinding("conflict", ("python",), (*draft.python.statements, *wheels),
                           f"a wheel is for another Python than {python}", "keeps the named Python")  # fmt: skip


def _contradicted(wanted: Wanted) -> bool:
    wishes = [requirement(statement.value) for statement in wanted.statements if statement.kind == "package"]
    versions = {exact_version(wish.specifier) for wish in wishes if wish is not None} - {""}
    return len(versions) > 1 and len({statement.place.file for statement in wanted.statements}) > 1


def _said_twice(wanted: Wanted) -> bool:
    """In one list: in two commands the later one wins, as it is meant."""
    lists = ("pyproject", "requirements", "setup.py", "setup.cfg")
    listed = [statement for statement in wanted.statements if statement.via in lists]
    most = max(Counter(statement.place.file for statement in listed).values(), default=0)
    return most > 1 and len({(statement.value, statement.get("extra")) for statement in listed}) > 1


def _pinned_cudnn(draft: Draft, known: Known) -> Iterator[DraftFinding]:
    cudnn = next((package for package in draft.packages if re.fullmatch(r"nvidia-cudnn-cu1[0-9]", package.name)), None)
    if cudnn is None or draft.torch is None or draft.torch.default:
        return
    theirs, ours = known.torch_cudnn.get(draft.torch.value, ""), exact_version(cudnn.requirement.specifier)
    if theirs and ours and theirs != ours:
        yield DraftFinding("conflict", (cudnn.name,), cudnn.statements,
                           f"torch {draft.torch.value} wants {cudnn.name}=={theirs}", "takes torch's own")  # fmt: skip


def image_rules(draft: Draft, _: Known) -> Iterator[DraftFinding]:
    """Lists of architectures, and base images that float."""
    archs = draft.environment.get("TORCH_CUDA_ARCH_LIST")
    if archs is not None and not any(name in archs.value.lower() for name in _AMPERE):
        yield from of_statements(
            "arch-list", [archs], "GPUs from Ampere on are left out", "lets the target's GPUs decide"
        )
    image = draft.image
    if image is None:
        return
    if ":" not in image.value.rpartition("/")[2] or image.value.endswith(":latest"):
        yield from of_statements("base-image", [image], "the image has no fixed tag", "asks for one")
    elif _MIRRORED.match(image.value) and not _REGISTRIES.match(image.value):
        host = image.value.partition("/")[0]
        yield from of_statements(
            "base-image", [image], f"{host} is not a registry of the image's maker", "names the image"
        )
    elif _WITHDRAWN.search(image.value):
        truth = "tags of CUDA without a patch number were withdrawn"
        yield from of_statements("base-image", [image], truth, "needs no image")
    elif _ENDED.search(image.value):
        yield from of_statements(
            "base-image", [image], "its operating system is past the end of its support", "needs no image"
        )


def stale_rules(draft: Draft, known: Known) -> Iterator[DraftFinding]:
    """Services, repositories and files that are gone or were replaced, and ways that the page offers beside one."""
    taken = [statement for statement in draft.statements if not statement.optional and statement.kind != "run"]
    for pattern, truth in known.gone.items():
        gone = {statement.place.line: statement for statement in taken if re.search(pattern, statement.text)}
        yield from of_statements("stale-service", [*gone.values()], truth, "takes nothing from it", [truth])
    ways = [way for way in draft.statements if way.get("alternative") and way.kind in _INSTALLING]
    lines = {way.place.line: way for way in ways}
    yield from of_statements(
        "alternatives", [*lines.values()], "the page offers several ways", "takes the first", _values(ways)
    )


_RULES = (
    backend, python_open, conda_rules, unpinned, shell_rules, fetch_rules, image_rules,
    torch_rules, git_rules, build_rules, together, stale_rules,
)  # fmt: skip
