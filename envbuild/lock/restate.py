"""A lock whose stack or patches have changed in what no package depends on: nothing is resolved."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from envbuild.catalog.loader import manifest_digest
from envbuild.lock.agreement import contents
from envbuild.lock.files import field_digests
from envbuild.lock.sources import pin_patches, with_patched_trees
from envbuild.lock.variants import run_fields
from envbuild.model.lock import Lock, LockedSource
from envbuild.model.stack import Stack

# The fields of a profile that no resolution looks at; a variant says the first four again.
_RUN = ("environment", "imports", "smoke", "training", "deviations", "runs", "system_packages")


def changed_fields(lock: Lock, stack: Stack) -> list[str]:
    """The fields of the lock's profile that are not what they were; one that a side lacks was at its default there."""
    now = field_digests(stack.profiles[lock.profile])
    return sorted(name for name in now.keys() | lock.manifest_fields if now.get(name) != lock.manifest_fields.get(name))


def restated(lock: Lock, stack: Stack, say: Callable[[str], None]) -> Lock | None:
    """The lock with today's patches and the stack's words; None where that takes a resolution, or nothing changed.

    Packages, versions of tools and date stay those of the resolution. `say` gets a sentence for each patched
    tree that could not be read.
    """
    if not lock.manifest_fields or not set(changed_fields(lock, stack)) <= set(_RUN):
        return None
    profile = stack.profiles[lock.profile]
    sources = iter(
        with_patched_trees([_repinned(each) for variant in lock.variants for each in variant.sources], lock, say)
    )
    drafts = [
        variant.model_copy(update={**run_fields(profile), "sources": tuple(islice(sources, len(variant.sources)))})
        for variant in lock.variants
    ]
    variants = tuple(
        each.model_copy(update={"digest": each.compute_digest(lock.stack, lock.profile)}) for each in drafts
    )
    digests = {"manifest_digest": manifest_digest(stack, lock.profile), "manifest_fields": field_digests(profile)}
    new = lock.model_copy(update={"variants": variants, **digests})
    return None if new == lock or contents(new, profile) else new


def _repinned(source: LockedSource) -> LockedSource:
    return source.model_copy(update={"patch_pins": pin_patches(source.patches, source.commit)})
