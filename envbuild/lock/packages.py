"""Resolves the packages of one variant with uv and turns uv's answer into locked packages."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from envbuild.errors import EnvbuildError
from envbuild.lock.readers.pylock import (
    Offer,
    OfferedFile,
    choose_file,
    parse_pylock,
    platform_of,
    uv_platform,
    with_sizes,
)
from envbuild.lock.readers.uvtool import build_not_allowed, run_uv
from envbuild.model.lock import ArtifactFile, LockedPackage, Variant


def versions(there: Mapping[str, str], by: str) -> dict[str, str]:
    """The versions of stand-ins, which no index has: `1.26.4+conda`. What is no version of Python's has none."""
    found = {}
    for name, text in there.items():
        try:
            found[name] = f"{Version(text).public}+{by}"
        except InvalidVersion:
            continue
    return found


def write(folder: Path, wanted: Mapping[str, str]) -> None:
    """One wheel a name, which needs nothing."""
    folder.mkdir()
    for name, version in wanted.items():
        stem = f"{name.replace('-', '_')}-{version}"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            about = f"{stem}.dist-info"
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")


PYPI = "pypi"
# uv's warning, with the reason where the index states one.
_YANKED = re.compile(r'^warning: `([^`=]+)==[^`]+` is yanked(?: \(reason: "(.*)"\))?', re.MULTILINE)


@dataclass(frozen=True)
class Index:
    """A wheel index that the catalog names. `kind`: `simple` (PEP 503) or `find-links` (one page of links)."""

    name: str
    url: str
    kind: str = "simple"


@dataclass(frozen=True)
class Request:
    """One resolution. `excludes` are package names never resolved; `pins` are versions to keep where they fit.

    `indexes` says which package comes from another index than the user's own. `as_of` is a date: nothing newer.
    `stand_ins` (name to version) are installed by something else: they count, and are not in the answer. `no_deps`
    takes the requirements alone. `allow_build` are the packages that come as source distributions: what they need is
    known only after code of theirs has run here. `may_build` come so where no wheel fits.
    """

    python: str
    platform: str
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    as_of: str | None = None
    find_links: tuple[str, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)
    indexes: Mapping[str, Index] = field(default_factory=dict)
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    no_deps: bool = False
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
        return _resolved(request)
    except EnvbuildError as error:
        if error.code != "build-not-allowed":
            raise
        names = _without_wheel(request, error.details["packages"])
        if not set(names) <= set(request.may_build) - set(request.allow_build):
            raise build_not_allowed(names, error.why) from None
    return resolve(replace(request, allow_build=(*request.allow_build, *names)))


def _without_wheel(request: Request, names: Sequence[str]) -> list[str]:
    """Every package concerned, and none that has a wheel in a version that fits; uv tells some, and some in vain."""
    found = list(names)
    while more := [name for name in _refused(request, found) or () if name not in found]:
        found += more
    for name in names:
        fewer = [each for each in found if each != name]
        if fewer and _refused(request, fewer) == []:
            found = fewer
    return found


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
            answer.write_text(_pins_text(request.pins), encoding="utf-8")
        said = run_uv(
            [
                *("pip", "compile", str(_project(work, request)), "--format", "pylock.toml"),
                *("--output-file", str(answer), "--no-header", "--no-annotate", "--generate-hashes", "--no-progress"),
                *("--python-version", request.python, "--python-platform", uv_platform(request.platform)),
                *("--python", sys.executable),
                *arguments(work, request),
            ],
            environ=environment(request),
            cwd=work,
        )
        offers = parse_pylock(answer.read_text(encoding="utf-8"))
        yanked = dict(_YANKED.findall(said))
        return [replace(each, yanked=yanked.get(each.name)) for each in offers if each.name not in request.stand_ins]


def yanked_sentences(offers: Iterable[Offer]) -> Iterator[str]:
    """A sentence for each offer that is yanked: uv still takes what is asked for by its very version, or was locked."""
    for offer in offers:
        if offer.yanked is not None:
            reason = f" ({offer.yanked})" if offer.yanked else ""
            yield (
                f"{offer.name} {offer.version} is yanked{reason}, and the lock has it: `--upgrade` takes another "
                "version, unless the stack asks for this one"
            )


def _with_stand_ins(request: Request, folder: Path) -> Request:
    if not request.stand_ins:
        return request
    write(folder, request.stand_ins)
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
    if not _remote(request.find_links):
        options += [word for link in request.find_links for word in ("--find-links", link)]
    if request.as_of:
        # A bare date would mean the end of that day in the local time zone.
        options += ["--exclude-newer", f"{request.as_of}T23:59:59Z"]
    if request.no_deps:
        options.append("--no-deps")
    options += ["--only-binary", ":all:", *(word for name in request.allow_build for word in ("--no-binary", name))]
    return options


def environment(request: Request) -> dict[str, str]:
    """uv's environment. An address of find-links may hold a password: it goes where no list of processes shows it."""
    if not _remote(request.find_links):
        return dict(os.environ)
    return os.environ | {"UV_FIND_LINKS": ",".join(request.find_links)}


def _remote(links: Sequence[str]) -> bool:
    return any("://" in link for link in links)


def _project(work: Path, request: Request) -> Path:
    """A project file, because only there an index can be bound to one package (`explicit`)."""
    import tomlkit

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
        "name": "envbuild-lock-request",
        "version": "0",
        "requires-python": f"=={request.python}.*",
        "dependencies": list(request.requirements),
    }
    path = work / "pyproject.toml"
    path.write_text(tomlkit.dumps({"project": project, "tool": {"uv": tool}}), encoding="utf-8")
    return path


def _pins_text(pins: Mapping[str, str]) -> str:
    import tomlkit

    packages = [{"name": name, "version": version} for name, version in sorted(pins.items())]
    return tomlkit.dumps({"lock-version": "1.0", "created-by": "envbuild", "packages": packages})


def sdists(packages: Iterable[LockedPackage]) -> tuple[str, ...]:
    """The packages that are locked as source distributions."""
    return tuple(p.name for p in packages if not any(file.file.endswith(".whl") for file in p.files))


def lock_offers(
    offers: Sequence[Offer],
    request: Request,
    previous: Mapping[str, LockedPackage],
) -> tuple[LockedPackage, ...]:
    """One locked package for each offer; a file that `previous` has and that is still offered is kept."""
    platform = platform_of(request.python, request.platform)
    chosen: list[tuple[Offer, OfferedFile]] = []
    for offer in offers:
        old = previous.get(offer.name)
        keep = old.files[0].file if old and old.version == offer.version else None
        item = choose_file(offer, platform, keep=keep)
        if old and keep == item.file and old.files[0].sha256 == item.sha256:
            item = replace(item, size=old.files[0].size, unpacked=old.files[0].unpacked)
        chosen.append((offer, item))
    sized = with_sizes(item for _, item in chosen)
    locked = []
    for (offer, _), item in zip(chosen, sized, strict=True):
        index = request.indexes.get(offer.name)
        package = LockedPackage(
            name=offer.name, version=offer.version, index=index.name if index else PYPI, files=(_artifact(item),)
        )
        locked.append(package)
    return tuple(sorted(locked, key=lambda package: package.name))


def _artifact(item: OfferedFile) -> ArtifactFile:
    known = ArtifactFile(file=item.file, sha256=item.sha256 or "unrecorded", size=item.size, unpacked=item.unpacked)
    return known if item.sha256 else known.model_copy(update={"reason": "the index states no sha256"})


def carry_over(new: LockedPackage, old: LockedPackage | None) -> LockedPackage:
    """The old entry when both name the same contents, as far as hashes are known: a recorded one stays recorded."""
    if old is None or (old.version, old.index) != (new.version, new.index):
        return new
    known = {file.file: file.sha256 for file in old.files}
    same = len(known) == len(new.files) and all(f.sha256 in (known.get(f.file), "unrecorded") for f in new.files)
    return old if same and {f.file for f in new.files} == set(known) else new


def offered_files(
    variant: Variant,
    packages: Iterable[LockedPackage],
    find_links: tuple[str, ...] = (),
    indexes: Mapping[str, Index] | None = None,
) -> dict[str, OfferedFile]:
    """What is offered under the locked versions now, by file name. `indexes` by name. Raises as `resolve` does."""
    known, wanted = indexes or {}, tuple(packages)
    request = Request(
        python=variant.python,
        platform=variant.platform,
        # `===`, because `==1.0` would take 1.0+local where a find-links folder has it.
        requirements=tuple(f"{package.name}==={package.version}" for package in wanted),
        find_links=find_links,
        indexes={p.name: known[p.index] for p in wanted if p.index != PYPI and p.index in known},
        no_deps=True,
        allow_build=sdists(wanted),
    )
    offers = resolve(request)
    return {item.file: item for offer in offers for item in (*offer.wheels, *([offer.sdist] if offer.sdist else []))}
