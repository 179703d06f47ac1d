"""Asks the index whether a package that an import suggests exists and contains the imported module."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from itertools import product

from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError
from envbuild.init.closure import SOURCE_ALONE, Closed
from envbuild.init.draft import Draft
from envbuild.init.tree import Tree
from envbuild.lock.create import default_supply
from envbuild.lock.packages import Request, resolve
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
