"""Asks outside of the input: the index about what imports suggest and wheels of the input itself, git about commits.

Of a tag that is its own commit, of a branch the last one of the draft's day, of a package that of its release.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from itertools import product

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.errors import EnvbuildError
from envbuild.init.closure import SOURCE_ALONE, Closed
from envbuild.init.draft import Draft, DraftSource
from envbuild.init.tree import Tree
from envbuild.lock.create import default_supply
from envbuild.lock.packages import Request, resolve
from envbuild.lock.readers.git import GitReader, git_reader, output_of, resolve_ref, resolve_tags
from envbuild.lock.readers.pylock import Offer
from envbuild.lock.readers.wheel_record import members, speaks_of
from envbuild.model.lock import Lock

_GUESSED = ("name", "table")
_PLATFORM = "linux_x86_64"
_MOST_REFUSALS = 30


def confirmed(closed: tuple[Closed, ...], draft: Draft) -> tuple[Closed, ...]:
    """The same imports, but `open` with the reason if the index refutes a guess; unchanged if it cannot be reached."""
    guesses = [closing for closing in closed if closing.how in _GUESSED and closing.wanted is not None]
    if not guesses:
        return closed
    try:
        offers, refused = _offers([guess.wanted.name for guess in guesses if guess.wanted], draft)
    except EnvbuildError as error:
        if error.code not in ("index-unreachable", "uv-timeout"):
            raise
        return tuple(
            replace(closing, why="the index was not asked") if closing in guesses else closing for closing in closed
        )
    return tuple(_judged(closing, offers, refused) if closing in guesses else closing for closing in closed)


def own_build(names: Sequence[str], module: str, folder: str, tree: Tree, draft: Draft) -> tuple[str, date] | None:
    """The requirement and day of a wheel that has the code of the draft's commit, and a compiled `module` of it.

    Its files of Python have to be those of the tree's `folder`. A nightly build is of the night after the commit.
    """
    base = f"{folder}/" if folder else ""
    days = [draft.origin.day + timedelta(days=late) for late in range(2)] if draft.origin.day else []
    for name, day in product(names, days):
        request = Request(draft.python.value, _PLATFORM, (name,), as_of=day.isoformat(), no_deps=True)
        try:
            offers = resolve(request)
        except EnvbuildError:
            continue
        for offer in offers:
            files = (members(offer.wheels[0].url) if offer.wheels else None) or {}
            code = {path: file.CRC for path, file in files.items() if path.endswith(".py")}
            compiled = any(path.startswith(f"{module.replace('.', '/')}.") and path.endswith(".so") for path in files)
            if (
                compiled
                and code
                and all(zlib.crc32((tree.text(base + path) or "").encode()) == code[path] for path in code)
            ):
                return f"{name}=={offer.version}", day
    return None


def newest_with(requirement: str, lock: Lock, module: str, name: str) -> str:
    """The newest version of a requirement, on the day of a lock, whose wheel has a name in a module; empty for none."""
    variant, links = lock.variants[0], default_supply().find_links
    request = Request(
        variant.python, variant.platform, (requirement,), as_of=lock.as_of, find_links=links, no_deps=True
    )
    try:
        wheels = [(offer.version, wheel.url) for offer in resolve(request) for wheel in offer.wheels[:1]]
    except EnvbuildError:
        return ""
    return next((version for version, url in wheels if speaks_of(url, module, name)), "")


def _offers(names: Sequence[str], draft: Draft) -> tuple[Mapping[str, Offer], dict[str, str]]:
    """What the index has of names on the draft's day, and why it has nothing of others."""
    wanted, refused = list(dict.fromkeys(names)), dict[str, str]()
    day = draft.origin.day.isoformat() if draft.origin.day else None
    for _ in range(_MOST_REFUSALS):
        request = Request(draft.python.value, _PLATFORM, tuple(wanted), as_of=day, no_deps=True, allow_build=())
        try:
            return {str(canonicalize_name(offer.name)): offer for offer in resolve(request)}, refused
        except EnvbuildError as error:
            lost = _named(error, wanted)
            if not lost or error.code in ("index-unreachable", "uv-timeout"):
                raise
            why = SOURCE_ALONE if error.details.get("packages") else "the index has none"
            refused |= dict.fromkeys(lost, why)
            wanted = [name for name in wanted if name not in lost]
    return {}, refused


def _named(error: EnvbuildError, wanted: Sequence[str]) -> list[str]:
    listed = [str(canonicalize_name(name)) for name in error.details.get("packages", ())]
    if listed:
        return [name for name in wanted if name in listed]
    words = {
        str(canonicalize_name(word.strip("`,.:;")))
        for word in f"{error.what} {error.why}".split()
        if word.strip("`,.:;")
    }
    return [name for name in wanted if name in words][:1]


def _judged(closing: Closed, offers: Mapping[str, Offer], refused: Mapping[str, str]) -> Closed:
    name = closing.wanted.name if closing.wanted else ""
    if name in refused:
        if refused[name] == SOURCE_ALONE:  # its modules cannot be read without building it
            return replace(closing, why=refused[name])
        return replace(closing, how="open", wanted=None, why=f"{name}: {refused[name]}")
    offer = offers.get(name)
    if offer is None or closing.how == "table":
        return closing
    for wheel in offer.wheels[:1]:
        files = members(wheel.url)
        if files is not None and not _holds(files, closing.imported.module):
            return replace(closing, how="open", wanted=None, why=f"the index's {name} has no module of that name")
    return closing


def _holds(files: Iterable[str], module: str) -> bool:
    tops = {path.partition("/")[0].partition(".")[0] for path in files if ".dist-info" not in path}
    inside = {
        path.split("/")[2].partition(".")[0] for path in files if ".data/purelib/" in path or ".data/platlib/" in path
    }
    return module in tops | inside


def pinned(draft: Draft) -> Draft:
    """The same with a commit for each installed source; without one if its repository does not answer."""
    if not any(_is_open(source) for source in draft.sources):
        return draft
    with git_reader() as reader:
        sources = tuple(_pinned(source, draft, reader) if _is_open(source) else source for source in draft.sources)
    return replace(draft, sources=sources)


def _is_open(source: DraftSource) -> bool:
    asked = bool(source.install) and not source.own and not source.optional
    return asked and not source.pinned and not source.commit


def _pinned(source: DraftSource, draft: Draft, reader: GitReader) -> DraftSource:
    try:
        if source.release is not None:
            return _released(source, draft, reader)
        return replace(source, commit=_commit(source, draft, reader))
    except EnvbuildError:  # a draft says what it does not know
        return source


def _commit(source: DraftSource, draft: Draft, reader: GitReader) -> str:
    tip = resolve_ref(source.url, source.ref or "HEAD") or ""
    is_tag = bool(source.ref) and resolve_ref(source.url, f"refs/heads/{source.ref}") is None
    if not tip or is_tag or draft.origin.day is None:
        return tip
    place = reader.repository(source.url, tip, "history")
    before = f"--before={draft.origin.day}T23:59:59Z"
    return output_of(place, "rev-list", "-1", "--first-parent", before, tip).strip()


def _released(source: DraftSource, draft: Draft, reader: GitReader) -> DraftSource:
    """The same at the newest release that is asked for and that was there on the draft's day, or without a commit."""
    prefix, wanted = source.built.tags if source.built else "", source.release or SpecifierSet()
    commits = resolve_tags(source.url, prefix)
    fitting = [
        version
        for tag in commits
        if (version := _version(tag)) is not None and wanted.contains(version, prereleases=bool(wanted.prereleases))
    ]
    newest_first = (str(version) for version in sorted(fitting, reverse=True))
    for tag in (tag for tag in newest_first if tag in commits):
        day = reader.day(source.url, commits[tag]) if draft.origin.day else None
        if day is None or draft.origin.day is None or day <= draft.origin.day:
            return replace(source, ref=f"{prefix}{tag}", commit=commits[tag])
    return source


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
