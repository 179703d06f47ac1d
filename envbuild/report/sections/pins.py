"""Pins: the packages that are locked against what was found on the nodes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.model.evidence import BuiltVariant, Evidence
from envbuild.text import grouped


@dataclass(frozen=True)
class Pin:
    """One package: `wanted` as locked (empty: it is in no lock), `observed` on `nodes` (empty: it is not there).

    Where `same` is false the two differ; None: there was nothing to compare with.
    """

    name: str
    wanted: str
    observed: str
    sha256: str
    nodes: tuple[str, ...]
    same: bool | None


def pins(evidence: Evidence) -> tuple[Pin, ...]:
    """Of every variant, differences first, then by name; nodes that have the same are one row."""
    known = {variant.digest: variant for variant in evidence.variants}
    there = [node for node in evidence.nodes if node.packages]
    groups = grouped(there, lambda node: (node.variant_digest, tuple(node.packages.items())))
    found: dict[tuple[str, str, str, str, bool | None], list[str]] = {}
    for (digest, _), nodes in groups.items():
        for row in _rows(known.get(str(digest)), nodes[0].packages):
            found.setdefault(row, []).extend(node.node for node in nodes)
    every = [Pin(*row[:4], nodes=tuple(names), same=row[4]) for row, names in found.items()]
    return tuple(sorted(every, key=lambda pin: (pin.same is not False, pin.name)))


def _rows(variant: BuiltVariant | None, packages: dict[str, str]) -> Iterator[tuple[str, str, str, str, bool | None]]:
    there = {canonicalize_name(name): version for name, version in packages.items()}
    for row in variant.packages if variant else ():
        version = there.pop(canonicalize_name(row.name), "")
        yield row.name, row.version, version, row.sha256, is_equal(version.partition(" ")[0], row.version)
    for name, version in there.items():
        # Wheels that were built here stand in the lock as sources, by commit and tree.
        yield name, "", version, "", None


@functools.lru_cache(maxsize=4096)
def is_equal(one: str, other: str) -> bool:
    """Whether two texts are one version (PEP 440), or equal where they are none."""
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other
