"""The decisions that `explain` shows: recorded facts of nodes against the lock, or the outline, of a profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from envbuild.catalog.loader import manifest_digest
from envbuild.explain.view import Decided, OtherProfile
from envbuild.lock.variants import Plan, decided, variant_plans
from envbuild.model.conda import LockedConda
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock, LockedInterpreter, LockedSource, Variant
from envbuild.model.resolution import Resolution
from envbuild.model.stack import Profile, Stack

if TYPE_CHECKING:
    from envbuild.catalog.loader import LoadedStack
    from envbuild.model.resolution import Resolution
    from envbuild.model.target import Target
    from envbuild.resolve.compat import Compat


# What they compare comes from the packages of a lock, which an outline does not have.
_NEED_A_LOCK = ("conda-unrecorded", "disk-space", "disk-inodes", "cuda-without-gpu", "no-fitting-file")


def outline(stack: Stack, name: str) -> Lock:
    """The variants that a lock of this profile would have, without packages; it is only good for deciding."""
    profile = stack.profiles[name]
    from envbuild.lock.create import standalone_interpreters  # it brings what locks are made with

    # A Python that has no pinned standalone build yet gets a stand-in, because only its version matters.
    stand_in = LockedInterpreter(kind="standalone", name="not pinned yet", sha256="0" * 64)
    plans = variant_plans(profile, {**dict.fromkeys(profile.python, stand_in), **standalone_interpreters()})
    variants = tuple(_variant(stack.name, name, profile, plan) for plan in plans)
    return Lock(stack=stack.name, profile=name, manifest_digest=manifest_digest(stack, name), variants=variants)


def without_prices(resolution: Resolution) -> Resolution:
    """The resolution less the decisions that rest on the packages of a lock."""
    kept = tuple(item for item in resolution.decisions if item.rule not in _NEED_A_LOCK)
    candidates = tuple(
        c.model_copy(update={"decisions": tuple(d for d in c.decisions if d.rule not in _NEED_A_LOCK)})
        for c in resolution.candidates
    )
    return resolution.model_copy(update={"decisions": kept, "candidates": candidates})


def _variant(stack: str, name: str, profile: Profile, plan: Plan) -> Variant:
    sources = tuple(
        LockedSource(
            name=source.name, git=source.git, commit=source.commit, tree=source.tree or "0" * 40,
            install=source.install, path=source.path, build=source.build, patches=source.patches,
        )
        for source in profile.pinned_sources
    )  # fmt: skip
    draft = Variant(
        id=plan.id,
        digest="0" * 64,
        interpreter=plan.interpreter,
        conda=LockedConda(unrecorded="no lock is made yet") if plan.engine == "conda" else None,
        sources=sources,
        **decided(profile, plan),
    )
    return draft.model_copy(update={"digest": draft.compute_digest(stack, name)})


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


def without_facts(loaded: LoadedStack, profile: str) -> tuple[str, ...]:
    """What rules that need no node say of the lock of a profile; nothing where it has none yet."""
    from envbuild.catalog.loader import lock_path
    from envbuild.lock.files import read_lock
    from envbuild.resolve.compat_read import load_compat
    from envbuild.resolve.profile import findings

    path = lock_path(loaded, profile)
    return tuple(findings(read_lock(path), load_compat())) if path.is_file() else ()


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

    found = Resolver(outline(loaded.stack, profile), target, compat).fleet(facts)
    return tuple(without_prices(resolution) for resolution in found.values())
