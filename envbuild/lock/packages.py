"""Resolves the packages of one variant with uv and turns uv's answer into locked packages.

On a base, uv also decides what to add to the base's packages, with the base's interpreter.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import tomlkit
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.catalog.indexes import DEFAULT_INDEX, IndexEntry
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.readers.pylock import (
    Offer,
    OfferedFile,
    choose_file,
    parse_pylock,
    platform_of,
    size_of,
    uv_platform,
)
from envbuild.lock.readers.uvtool import build_not_allowed, no_solution, run_uv
from envbuild.lock.readers.wheel_record import of_wheel
from envbuild.model.finding import package_name, requirement
from envbuild.model.lock import ArtifactFile, LockedPackage, Variant
from envbuild.model.stack import Base
from envbuild.node import variables
from envbuild.resolve.rules.packages import lacking, sdists

_PROBE = (
    "import importlib.metadata as m, json, sys;"
    "print(json.dumps({'python': '%d.%d' % sys.version_info[:2], 'packages':"
    "[(d.metadata['Name'], d.version) for d in m.distributions() if d.metadata['Name']]}))"
)
# uv's change list, as `uv pip install --dry-run` prints it: ` + name==version`, ` - name==version`.
_CHANGE = re.compile(r"^ ([-+~]) (\S+?)==(\S+)", re.MULTILINE)
YOUNG = timedelta(days=90)  # after a year too many are old acquaintances under a new name
# uv's warning, with the reason where the index states one.
_RELAXING_S = 120
_YANKED = re.compile(r'^warning: `([^`=]+)==[^`]+` is yanked(?: \(reason: "(.*)"\))?', re.MULTILINE)


@dataclass(frozen=True)
class Request:
    """One resolution. `excludes`: package names never resolved; `pins`: versions to keep if they fit.

    `indexes`: packages from another index than the user's own. `as_of`: nothing newer than this date. `stand_ins` (name
    to version) are installed by something else: they count, and are not in the answer. `no_deps` takes the requirements
    alone. `stable`: no pre-release. `allow_build`: packages that may come as source distributions; their requirements
    are known only after their code has run here. `may_build`: the same, but only if no wheel fits.
    """

    python: str
    platform: str
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    as_of: str | None = None
    find_links: tuple[str, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)
    indexes: Mapping[str, IndexEntry] = field(default_factory=dict)
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    no_deps: bool = False
    stable: bool = False
    allow_build: tuple[str, ...] = ()
    may_build: tuple[str, ...] = ()


def resolve(request: Request) -> list[Offer]:
    """The packages that satisfy a request, with the files that the index offers, by name.

    Raises EnvbuildError `resolution-failed`, `package-not-found`, `build-not-allowed` (exit 7), `index-unreachable`,
    `uv-timeout` (exit 75).
    """
    if not request.requirements:
        return []
    try:
        return _with_releases(request, _resolved(request))
    except EnvbuildError as error:
        if error.exit_code != ExitCode.REFUSED:
            raise
        unbuilt = error.code == "build-not-allowed"
        names = _without_wheel(request, error.details["packages"]) if unbuilt else []
        if not unbuilt or not set(names) <= set(request.may_build) - set(request.allow_build):
            if relaxations := _relaxations(request, error):
                raise no_solution(error.why, relaxations) from None
            if not unbuilt:
                raise
            raise build_not_allowed(names, error.why) from None
    return resolve(replace(request, allow_build=(*request.allow_build, *names)))


def _with_releases(request: Request, offers: list[Offer]) -> list[Offer]:
    """The offers without versions before a release that nobody asked for, where releases are there.

    uv falls back on such a version where no release has a wheel. Raises EnvbuildError `build-not-allowed` where the
    releases are source distributions.
    """
    early = [offer.name for offer in offers if Version(offer.version).is_prerelease]
    texts = (*request.requirements, *request.constraints)
    asked = {package_name(text) for text in texts if requirement(text).specifier.prereleases}
    if request.stable or not set(early) - asked - request.pins.keys():
        return offers
    try:
        return _resolved(replace(request, stable=True))
    except EnvbuildError as error:
        if error.code == "build-not-allowed" and set(error.details["packages"]) & set(early):
            raise
        return offers


def _relaxations(request: Request, error: EnvbuildError) -> list[dict[str, str]]:
    """Each requirement or constraint without whose bounds all is there, and the version of it then; with wheels first.

    uv's words may name another cause: it tells what it tried last, a release of long ago without a wheel, or one that
    needs what is gone. Those that it names are tried first, for two minutes at most.
    """
    named = set(error.details.get("packages", ()))
    texts = dict.fromkeys((*request.requirements, *request.constraints))
    bounds = [text for text in texts if requirement(text).specifier and package_name(text) not in named]

    def wider(text: str) -> str:
        parsed = requirement(text)
        return f"{parsed.name}[{','.join(sorted(parsed.extras))}]" if parsed.extras else parsed.name

    def offers(relaxed: Sequence[str]) -> dict[str, str] | None:
        def loose(text: str) -> str:
            return wider(text) if text in relaxed else text

        asked, bounded = tuple(map(loose, request.requirements)), tuple(map(loose, request.constraints))
        try:
            made = _resolved(replace(request, requirements=asked, constraints=bounded, pins={}))
        except EnvbuildError as other:
            # Another question, asked next; it is no way around itself.
            return {} if other.code == "build-not-allowed" != error.code else None
        versions = {offer.name: offer.version for offer in made}
        return versions if named <= versions.keys() else None

    words = {canonicalize_name(word) for word in re.findall(r"[a-z0-9][a-z0-9._-]*", error.why.lower())}
    bounds.sort(key=lambda text: package_name(text) not in words)
    until = time.monotonic() + _RELAXING_S
    loosened = []
    for text in bounds if bounds and offers(bounds) is not None else ():
        if time.monotonic() < until and (versions := offers([text])) is not None:
            loosened.append({"was": text, "becomes": wider(text), "version": versions.get(package_name(text), "")})
    return sorted(loosened, key=lambda row: not row["version"])


def _without_wheel(request: Request, names: Sequence[str]) -> list[str]:
    """Every package concerned, and none that has a wheel in a version that fits; uv tells some, and some in vain."""
    without = list(names)
    while more := [name for name in _refused(request, without) or () if name not in without]:
        without += more
    for name in names:
        fewer = [other for other in without if other != name]
        if fewer and _refused(request, fewer) == []:
            without = fewer
    return without


def _refused(request: Request, without: Sequence[str]) -> list[str] | None:
    """What uv would have to build when it does without these packages; None where it fails for another reason."""
    try:
        _resolved(replace(request, excludes=(*request.excludes, *without)))
    except EnvbuildError as error:
        return error.details.get("packages")
    return []


def _resolved(request: Request) -> list[Offer]:
    with tempfile.TemporaryDirectory(prefix="envbuild-lock-") as folder:
        work = Path(folder)
        request = _with_stand_ins(request, work / "stand-ins")
        # An answer that is already there is what uv prefers: that keeps the versions of the previous lock.
        answer = work / "pylock.lock.toml"
        if request.pins:
            pinned = [{"name": name, "version": version} for name, version in sorted(request.pins.items())]
            head = {"lock-version": "1.0", "created-by": "envbuild"}
            answer.write_text(tomlkit.dumps({**head, "packages": pinned}), encoding="utf-8")
        output = run_uv(
            [
                *("pip", "compile", str(_project(work, request)), "--format", "pylock.toml"),
                *("--output-file", str(answer), "--no-header", "--no-annotate", "--generate-hashes", "--no-progress"),
                *("--python-version", request.python, "--python-platform", uv_platform(request.platform)),
                *("--python", sys.executable),
                *arguments(work, request),
            ],
            environ=environment(work, request),
            cwd=work,
        )
        offers = parse_pylock(answer.read_text(encoding="utf-8"))
        yanked = dict(_YANKED.findall(output))
        return [
            replace(offer, yanked=yanked.get(offer.name)) for offer in offers if offer.name not in request.stand_ins
        ]


def yanked_sentences(offers: Iterable[Offer]) -> Iterator[str]:
    """A sentence for each yanked offer: uv still takes a version that is pinned or locked."""
    for offer in offers:
        if offer.yanked is not None:
            reason = f" ({offer.yanked})" if offer.yanked else ""
            yield (
                f"{offer.name} {offer.version} is yanked{reason}, and the lock has it: `--upgrade` takes another "
                "version, unless the stack asks for this one"
            )


def versions(given: Mapping[str, str], by: str) -> dict[str, str]:
    """The versions of stand-ins, which no index has: `1.26.4+conda`. PEP 440 must know the version."""
    pins = {}
    for name, text in given.items():
        try:
            pins[name] = f"{Version(text).public}+{by}"
        except InvalidVersion:
            continue
    return pins


def _with_stand_ins(request: Request, folder: Path) -> Request:
    """The request with a wheel for each stand-in, which needs nothing."""
    if not request.stand_ins:
        return request
    folder.mkdir()
    for name, version in request.stand_ins.items():
        stem = f"{name.replace('-', '_')}-{version}"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            about = f"{stem}.dist-info"
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
    pinned = tuple(f"{name}=={version}" for name, version in sorted(request.stand_ins.items()))
    links = (*request.find_links, str(folder))
    return replace(request, constraints=(*request.constraints, *pinned), find_links=links)


def arguments(work: Path, request: Request) -> list[str]:
    """uv's options for where packages come from and which are allowed; list files go into the folder `work`."""
    options: list[str] = []
    for flag, lines in (("--constraints", request.constraints), ("--excludes", request.excludes)):
        if lines:
            listed = work / f"{flag.strip('-')}.txt"
            listed.write_text("\n".join(lines) + "\n", encoding="utf-8")
            options += [flag, str(listed)]
            if lines is request.constraints and request.allow_build:
                options += ["--build-constraints", str(listed)]
    if not _remote(request.find_links):
        options += [word for link in request.find_links for word in ("--find-links", link)]
    if request.as_of:
        # A bare date would mean the end of that day in the local time zone.
        options += ["--exclude-newer", f"{request.as_of}T23:59:59Z"]
    if request.no_deps:
        options.append("--no-deps")
    if request.stable:
        options += ["--prerelease", "disallow"]
    options += ["--only-binary", ":all:", *(word for name in request.allow_build for word in ("--no-binary", name))]
    return options


def environment(work: Path, request: Request) -> dict[str, str]:
    """uv's environment, with the home `work` for setup code.

    An address of find-links may hold a password: it goes where no list of processes shows it.
    """
    links = {"UV_FIND_LINKS": ",".join(request.find_links)} if _remote(request.find_links) else {}
    return os.environ | variables.own_home(str(work), os.environ) | links


def _remote(links: Sequence[str]) -> bool:
    return any("://" in link for link in links)


def _project(work: Path, request: Request) -> Path:
    """A project file, because only there an index can be bound to one package (`explicit`)."""
    tool: dict[str, object] = {}
    if request.indexes:
        tool["sources"] = {name: {"index": index.name} for name, index in sorted(request.indexes.items())}
        used = {index.name: index for index in request.indexes.values()}
        tool["index"] = [
            {"name": index.name, "url": index.url, "explicit": True}
            | ({"format": "flat"} if index.kind == "find-links" else {})
            for _, index in sorted(used.items())
        ]
    project = {
        "name": "this-stack",
        "version": "0",
        "requires-python": f"=={request.python}.*",
        "dependencies": list(request.requirements),
    }
    path = work / "pyproject.toml"
    path.write_text(tomlkit.dumps({"project": project, "tool": {"uv": tool}}), encoding="utf-8")
    return path


def lock_offers(
    offers: Sequence[Offer], request: Request, previous: Mapping[str, LockedPackage]
) -> tuple[LockedPackage, ...]:
    """One locked package for each offer; a file that `previous` has and that is still offered is kept."""
    platform = platform_of(request.python, request.platform)

    def locked(offer: Offer) -> LockedPackage:
        old = previous.get(offer.name)
        keep = old.files[0] if old and old.version == offer.version else None
        item = choose_file(offer, platform, keep=keep.file if keep else None)
        same = keep if keep and (keep.file, keep.sha256) == (item.file, item.sha256) else None
        size = same.size if same and same.size is not None else size_of(item)
        file = ArtifactFile(
            file=item.file,
            sha256=item.sha256 or "unrecorded",
            size=size,
            unpacked=(same.unpacked if same else None) or of_wheel(item.url),
            reason=None if item.sha256 else "the index states no sha256",
        )
        index = request.indexes.get(offer.name)
        place = index.name if index else DEFAULT_INDEX
        return LockedPackage(name=offer.name, version=offer.version, index=place, files=(file,))

    # What an index does not state is asked for.
    with ThreadPoolExecutor(max_workers=8) as pool:
        return tuple(sorted(pool.map(locked, offers), key=lambda package: package.name))


def carry_over(new: LockedPackage, old: LockedPackage | None) -> LockedPackage:
    """The old entry if both have the same contents, as far as hashes are known: a recorded hash stays recorded."""
    if old is None or (old.version, old.index) != (new.version, new.index):
        return new
    known = {file.file: file.sha256 for file in old.files}
    same = len(known) == len(new.files) and all(f.sha256 in (known.get(f.file), "unrecorded") for f in new.files)
    return old if same and {f.file for f in new.files} == set(known) else new


def offered_files(
    variant: Variant,
    packages: Iterable[LockedPackage],
    find_links: tuple[str, ...] = (),
    indexes: Mapping[str, IndexEntry] | None = None,
) -> dict[str, OfferedFile]:
    """What is offered under the locked versions now, by file name. `indexes` by name. Raises as `resolve` does."""
    known, wanted = indexes or {}, tuple(packages)
    request = Request(
        python=variant.python,
        platform=variant.platform,
        # `===`, because `==1.0` would take 1.0+local where a find-links folder has it.
        requirements=tuple(f"{package.name}==={package.version}" for package in wanted),
        find_links=find_links,
        indexes={p.name: known[p.index] for p in wanted if p.index != DEFAULT_INDEX and p.index in known},
        no_deps=True,
        allow_build=sdists(wanted),
    )
    offers = resolve(request)
    return {item.file: item for offer in offers for item in (*offer.wheels, *([offer.sdist] if offer.sdist else []))}


def newcomers(offers: Sequence[Offer], request: Request, before: Container[str]) -> Iterator[str]:
    """A sentence about each new offer that the request does not name and whose project is young.

    Anybody can register a name that another package then requires. The upload time of a version says little, because
    old projects release often. The index is therefore asked again, as of `YOUNG` before: a project that it did not have
    is young. An index without upload times cannot be asked.
    """
    asked = {package_name(text) for text in request.requirements}
    today = date.fromisoformat(request.as_of) if request.as_of else datetime.now(UTC).date()
    unknown = {offer.name: offer for offer in offers if offer.name not in asked and offer.name not in before}
    files = {name: (*offer.wheels, *filter(None, [offer.sdist])) for name, offer in unknown.items()}
    times = {name: [file.uploaded.date() for file in group if file.uploaded] for name, group in files.items()}
    uploads = {name: min(dates) for name, dates in times.items() if dates}
    fresh = [name for name, uploaded in uploads.items() if today - uploaded < YOUNG]
    young = _missing(fresh, replace(request, as_of=(today - YOUNG).isoformat(), pins={}, constraints=()))
    if young:
        listed = ", ".join(f"{name} {unknown[name].version} ({uploads[name]})" for name in young)
        yield (
            f"new in this lock, not named by the stack, and of projects younger than {YOUNG.days} days: {listed}; "
            "look at what these are before you install them"
        )


def _missing(names: Sequence[str], earlier: Request) -> list[str]:
    """Those that the index has nothing of at the date of `earlier`; usually one question is enough."""
    if not names:
        return []
    try:
        resolve(replace(earlier, requirements=tuple(names), no_deps=True))
    except EnvbuildError as error:
        if error.exit_code != ExitCode.REFUSED:
            return []
        half = len(names) // 2
        return [*names] if not half else _missing(names[:half], earlier) + _missing(names[half:], earlier)
    return []


@dataclass(frozen=True)
class BasePython:
    """An existing interpreter: its minor version and its packages (normalised name to version)."""

    path: Path
    python: str
    packages: dict[str, str]


def read_base(path: Path) -> BasePython:
    """Ask an interpreter what it provides (user site left out). Raises EnvbuildError `base-python-broken` (exit 2)."""
    try:
        done = subprocess.run([str(path), "-I", "-c", _PROBE], capture_output=True, text=True, timeout=120, check=True)
        data = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise EnvbuildError(
            "base-python-broken",
            f"{path} cannot list its packages",
            why=str(getattr(error, "stderr", "") or error),
            hint="name a working interpreter: --base-python /path/to/python3",
        ) from error
    # As for an import, the first on sys.path counts.
    packages = {str(canonicalize_name(name)): version for name, version in reversed(data["packages"])}
    return BasePython(path, data["python"], dict(sorted(packages.items())))


def check_provides(base: Base, provided: dict[str, str]) -> None:
    """Raise EnvbuildError `base-lacks` (exit 7) if the base lacks a package that the stack relies on."""
    for text, version in lacking(base.provides, provided).items():
        name = requirement(text).name
        raise EnvbuildError(
            "base-lacks",
            f"the base does not provide {text}",
            why=f"it has {name} {version}" if version else f"it has no {name}",
            hint="choose another base, or another interpreter with --base-python",
        )


def on_top(request: Request, base: BasePython) -> tuple[str, ...]:
    """Pins (`name==version`) of the packages that the requirements need and the base does not have.

    Raises EnvbuildError `replaces-base-package` (exit 7), and what uv's resolution raises.
    """
    if not request.requirements:
        return ()
    with tempfile.TemporaryDirectory(prefix="envbuild-base-") as folder:
        work = Path(folder)
        needs = work / "requirements.txt"
        needs.write_text("\n".join(request.requirements) + "\n", encoding="utf-8")
        output = run_uv(
            [
                *("pip", "install", "--dry-run", "--break-system-packages", "--python", str(base.path)),
                *("--requirements", str(needs), *arguments(work, request)),
            ],
            environ=environment(work, request),
            cwd=work,
        )
    changes = _CHANGE.findall(output)
    added = {name: version for sign, name, version in changes if sign == "+"}
    removed = {name: version for sign, name, version in changes if sign == "-"}
    for name, version in removed.items():
        raise EnvbuildError(
            "replaces-base-package",
            f"{name} {version} of the base would be replaced by {added.get(name, 'nothing')}",
            why="a requirement of the stack, or of a package that it needs, does not accept the base's version",
            hint="loosen the requirement, or choose a base that fits; a base's packages are never replaced",
        )
    return tuple(f"{name}=={version}" for name, version in sorted(added.items()))
