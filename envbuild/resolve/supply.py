"""What can be had from where: which files and indexes a lock asks for, and whether they can be reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock, LockedPackage, Variant
from envbuild.model.target import Target
from envbuild.resolve.artifacts import Platform, fitting_file

NORMAL_INDEX = "pypi"


@dataclass(frozen=True, slots=True)
class Supply:
    """What the controller found: index name -> a connection succeeded; file name -> path in its find-links folders."""

    reachable: Mapping[str, bool] = field(default_factory=dict)
    files_found: Mapping[str, str] = field(default_factory=dict)


def wanted_files(lock: Lock) -> list[str]:
    """Names of the files that a find-links folder may have: those whose index is not the normal one, sorted."""
    packages = (package for variant in lock.variants for package in variant.packages)
    return sorted({file.file for package in packages if package.index != NORMAL_INDEX for file in package.files})


def indexes_needed(lock: Lock, facts: NodeFacts | None = None) -> list[str]:
    """Names of the indexes that the lock's packages come from, sorted.

    With `facts`, an index is left out when the node already has a file of every package that it would give.
    """
    found = facts.files_found if facts is not None else {}
    names = set()
    for variant in lock.variants:
        for package in variant.packages:
            if not any(file.file in found for file in package.files):
                names.add(package.index)
    return sorted(names)


def out_of_reach(
    variant: Variant, facts: NodeFacts, target: Target, supply: Supply, platform: Platform
) -> tuple[LockedPackage, ...]:
    """Packages of a variant whose file was not found and whose index is known not to be reachable."""
    reach = {**supply.reachable, **(facts.reachable if target.delivery == "node" else {})}
    if all(reach.values()):
        return ()
    return tuple(p for p in variant.packages if not _can_be_had(p, facts, target, supply, platform))


def _can_be_had(package: LockedPackage, facts: NodeFacts, target: Target, supply: Supply, platform: Platform) -> bool:
    fetches_itself = target.delivery == "node"
    reach = supply.reachable.get(package.index)
    found = supply.files_found
    if fetches_itself:
        reach = facts.reachable.get(package.index, reach)
        found = facts.files_found
    if reach is not False:
        return True
    best = fitting_file(package, platform)
    return any(file.file in found for file in ((best,) if best is not None else package.files))
