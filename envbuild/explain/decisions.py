"""The decisions that `explain` shows: recorded facts of nodes against the lock, or the outline, of a profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from envbuild.explain.view import Decided, OtherProfile
from envbuild.model.facts import NodeFacts

if TYPE_CHECKING:
    from envbuild.catalog.loader import LoadedStack
    from envbuild.model.resolution import Resolution
    from envbuild.model.target import Target
    from envbuild.resolve.compat import Compat


def decide(
    loaded: LoadedStack, profile: str, facts: Mapping[str, NodeFacts], target: Target, compat: Compat
) -> Decided:
    """Decide for every node; without a lock from what the stack file says of torch, Python, base and sources."""
    from envbuild.catalog.loader import lock_command, lock_path

    resolutions = _resolve(loaded, profile, facts, target, compat)
    path, note = lock_path(loaded, profile), ""
    if not path.is_file():
        note = (
            f"decided from the stack file alone, because the profile {profile} has no lock yet ({path.name}); "
            f"{lock_command(loaded, profile)} makes it"
        )
    others: tuple[OtherProfile, ...] = ()
    if any(resolution.refused for resolution in resolutions):
        others = other_profiles(loaded, profile, facts, target, compat)
    return Decided(resolutions, note, others)


def other_profiles(
    loaded: LoadedStack,
    profile: str,
    facts: Mapping[str, NodeFacts],
    target: Target,
    compat: Compat,
    interpreter: str | None = None,
) -> tuple[OtherProfile, ...]:
    """Every profile but one on the same nodes: whether it fits them all, and why not; `interpreter` as asked for."""
    names = [name for name in loaded.stack.profiles if name != profile]
    return tuple(_other(name, _resolve(loaded, name, facts, target, compat, interpreter)) for name in names)


def _other(name: str, resolutions: tuple[Resolution, ...]) -> OtherProfile:
    refusals = [d for r in resolutions if r.refused for d in r.decisions if d.verdict == "refuse"]
    reasons = dict.fromkeys(f"{d.what} ({d.rule})" for d in refusals)
    return OtherProfile(name, not any(r.refused for r in resolutions), "; ".join(list(reasons)[:3]))


def _resolve(
    loaded: LoadedStack,
    profile: str,
    facts: Mapping[str, NodeFacts],
    target: Target,
    compat: Compat,
    interpreter: str | None = None,
) -> tuple[Resolution, ...]:
    from envbuild.catalog.loader import lock_path
    from envbuild.resolve.engine import Resolver

    path = lock_path(loaded, profile)
    if path.is_file():
        from envbuild.lock.files import read_lock

        resolver = Resolver(read_lock(path), target, compat, interpreter=interpreter, reference=loaded.ref)
        return tuple(resolver.fleet(facts).values())
    from envbuild.explain.draft import outline, without_prices

    found = Resolver(outline(loaded.stack, profile), target, compat).fleet(facts)
    return tuple(without_prices(resolution) for resolution in found.values())
