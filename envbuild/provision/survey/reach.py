"""What can be fetched from here: the places that a lock names, and what this machine has or reaches of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from envbuild.bundle.collect import artifact_cache, place
from envbuild.catalog.indexes import DEFAULT_INDEX, load_indexes
from envbuild.model.lock import Lock
from envbuild.node import pip_config
from envbuild.node.probe import prefix
from envbuild.plan.source_builds import bundle_name, bundles
from envbuild.resolve.reachability import Supply, channel_key, channels_needed, indexes_needed, sources_needed

Channels = Mapping[str, Sequence[str]]


def index_addresses(lock: Lock) -> dict[str, str]:
    """The address of every index that the lock names; of the default one, that which no configuration replaces."""
    # pip has the one address that the catalog leaves to the configuration of a machine.
    from pip._internal.models.index import PyPI

    known = load_indexes()
    needed = ((name, known[name].url) for name in indexes_needed(lock) if name in known)
    return {name: url or PyPI.simple_url for name, url in needed if url or name == DEFAULT_INDEX}


def channel_addresses(lock: Lock, channels: Channels) -> dict[str, str]:
    """The first address of every conda channel that the lock names, by `channel_key`."""
    return {channel_key(name): channels[name][0] for name in channels_needed(lock) if channels.get(name)}


def controller_supply(lock: Lock, known: Mapping[str, bool] | None = None, channels: Channels | None = None) -> Supply:
    """What this machine could deliver: reached, kept from an earlier delivery, or in pip's find-links folders.

    `known`: what it reaches, where it was asked as a node already. `channels`: addresses of the conda channels.
    """
    cache = artifact_cache()
    reachable = dict(known) if known is not None else _reached(lock, channels or {})
    files = {file.file: place(file, cache) for v in lock.variants for p in v.packages for file in p.files}
    repositories = [item for variant in lock.variants for item in bundles(variant).items()]
    kept = {each.git for name, each in repositories if (cache / "sources" / bundle_name(name, each)).exists()}
    reachable.update(dict.fromkeys(kept, True))
    found = {name: str(path) for name, path in files.items() if path.exists()}
    return Supply(reachable, {**prefix.files_found(list(files)), **found})


def _reached(lock: Lock, channels: Channels) -> dict[str, bool]:
    """What pip, conda and git reach from here."""
    config = pip_config.read(os.environ)
    indexes = index_addresses(lock)
    if DEFAULT_INDEX in indexes and config.index_url:
        indexes[DEFAULT_INDEX] = config.index_url
    none = dict.fromkeys(indexes, False)
    asked = ({} if config.no_index else indexes) | channel_addresses(lock, channels)
    return none | prefix.reachable(asked, sources_needed(lock))
