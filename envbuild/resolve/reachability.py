"""What can be reached from where, and therefore who fetches: the node itself, or the controller for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock, LockedPackage, Variant
from envbuild.model.resolution import DeliveryChoice
from envbuild.model.target import Target
from envbuild.resolve.artifacts import Platform, fitting_file


class Supply(NamedTuple):
    """What the controller can reach: index, `channel_key` or git address -> whether it answers; file name -> path.

    Paths are in its find-links folders or its cache. Empty: it was not asked.
    """

    reachable: Mapping[str, bool] = {}
    files_found: Mapping[str, str] = {}


class Supplied(NamedTuple):
    """Who fetches for one node, and what nobody can reach: names of packages and sources, and their places."""

    choice: DeliveryChoice
    missing: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


def wanted_files(lock: Lock) -> list[str]:
    """Names of the files that a find-links folder may have, sorted."""
    return sorted({file.file for variant in lock.variants for file in variant.files})


def indexes_needed(lock: Lock) -> list[str]:
    """Names of the indexes that the lock's packages come from, sorted."""
    return sorted({name for variant in lock.variants for name in indexes_of(variant)})


@lru_cache
def indexes_of(variant: Variant) -> tuple[str, ...]:
    """Names of the indexes that a variant's packages come from, sorted."""
    return tuple(sorted({package.index for package in variant.packages}))


def channels_needed(lock: Lock) -> list[str]:
    """Names of the conda channels that the lock's packages come from, sorted."""
    return sorted({archive.channel for variant in lock.variants for archive in variant.archives})


def channel_key(name: str) -> str:
    """The key of a channel in `Supply`; an index may have the same name."""
    return f"conda:{name}"


def sources_needed(lock: Lock) -> list[str]:
    """Addresses of the repositories that the lock's sources come from, sorted."""
    return sorted({address for variant in lock.variants for _, address in repositories(variant)})


def repositories(variant: Variant) -> Iterator[tuple[str, str]]:
    """The sources of a variant and their submodules: the source's name and the repository's address."""
    for source in variant.sources:
        yield source.name, source.git
        for part in source.submodules:
            yield source.name, part.git


def supplied(variant: Variant, facts: NodeFacts, target: Target, supply: Supply, platform: Platform) -> Supplied:
    """Who fetches what a variant needs: as the target says, else the node, else the controller if only that can.

    A place that is not known to be out of reach counts as reachable.
    """
    reach = {**supply.reachable, **facts.reachable}
    own = [] if all(reach.values()) else list(_lacking(variant, reach, facts.files_found, platform))
    once = target.connection.kind == "job" and target.placement == "node-local" and target.delivery == "auto"
    if target.delivery == "node" or (target.delivery == "auto" and not own and not once):
        return _of(_by_node(_within(variant, facts, target)), own)
    ours = list(_lacking(variant, supply.reachable, supply.files_found, platform))
    if target.delivery == "controller":
        return _of(DeliveryChoice(by="controller", why="the target says that nodes fetch nothing themselves"), ours)
    if ours:
        return _of(DeliveryChoice(by="node"), own)
    if once:
        return _of(DeliveryChoice(by="controller", why="every job installs from one bundle in the shared folder"), [])
    asked = (
        "this machine has or reaches it" if supply.reachable else "`provision` checks whether this machine reaches it"
    )
    places = ", ".join(dict.fromkeys(place for _, place in own))
    return _of(DeliveryChoice(by="controller", why=f"the node does not reach {places}; {asked}"), [])


@lru_cache
def _by_node(why: str) -> DeliveryChoice:
    return DeliveryChoice(by="node", why=why)


def _of(choice: DeliveryChoice, lacking: Iterable[tuple[str, str]]) -> Supplied:
    names, places = (tuple(dict.fromkeys(texts)) for texts in zip(*lacking, strict=True)) if lacking else ((), ())
    return Supplied(choice, names, places)


def _lacking(
    variant: Variant, reach: Mapping[str, bool], local: Mapping[str, str], platform: Platform
) -> Iterator[tuple[str, str]]:
    """What is known to be out of reach: the name of each package or source, and the place that it comes from."""
    for package in variant.packages:
        if reach.get(package.index) is False and not _is_found(package, local, platform):
            yield package.name, f"the index {package.index}"
    for archive in variant.archives:
        if reach.get(channel_key(archive.channel)) is False and archive.file not in local:
            yield archive.name, f"the channel {archive.channel}"
    for name, address in repositories(variant):
        if reach.get(address) is False:
            yield name, place(address)


def _is_found(package: LockedPackage, local: Mapping[str, str], platform: Platform) -> bool:
    best = fitting_file(package, platform)
    return any(file.file in local for file in ((best,) if best is not None else package.files))


def _within(variant: Variant, facts: NodeFacts, target: Target) -> str:
    """What is known of the reach of a node that fetches for itself."""
    if target.delivery == "node":
        return ""
    needed = _needed(variant)
    unknown = sorted(name for name, key in needed.items() if key not in facts.reachable)
    if not needed or not unknown:
        return "the node reaches what it needs" if needed else ""
    return f"whether the node reaches {', '.join(unknown)} is not known"


@lru_cache
def _needed(variant: Variant) -> Mapping[str, str]:
    """What a variant is fetched from: in words, and by its key in `reachable`."""
    indexes = {f"the index {name}": name for name in indexes_of(variant)}
    channels = {f"the channel {archive.channel}": channel_key(archive.channel) for archive in variant.archives}
    return {**indexes, **channels, **{place(address): address for _, address in repositories(variant)}}


def place(address: str) -> str:
    """The host of a repository's address."""
    return urlsplit(address).hostname or address
