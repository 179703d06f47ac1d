"""A lock in outline, from a stack file alone: enough to decide about torch, Python, base and hardware."""

from __future__ import annotations

from envbuild.catalog.loader import manifest_digest
from envbuild.lock.create import standalone_interpreters
from envbuild.lock.variants import Plan, decided, variant_plans
from envbuild.model.conda import LockedConda
from envbuild.model.lock import Lock, LockedInterpreter, LockedSource, Variant
from envbuild.model.resolution import Resolution
from envbuild.model.stack import Profile, Stack

# What they compare comes from the packages of a lock, which an outline does not have.
_NEED_A_LOCK = ("conda-unrecorded", "disk-space", "disk-inodes", "cuda-without-gpu", "no-fitting-file")


def outline(stack: Stack, name: str) -> Lock:
    """The variants that a lock of this profile would have, without packages; it is only good for deciding."""
    profile = stack.profiles[name]
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
