"""A lock whose stack has changed only in what is run with the environment: nothing is resolved, nobody is asked."""

from __future__ import annotations

from envbuild.catalog.loader import manifest_digest
from envbuild.lock.agreement import contents
from envbuild.lock.files import field_digests
from envbuild.lock.variants import run_fields
from envbuild.model.lock import Lock
from envbuild.model.stack import Stack

# The fields of a profile that no resolution looks at; a variant says the first four again.
_RUN = ("environment", "imports", "smoke", "training", "deviations", "runs", "system_packages")


def changed_fields(lock: Lock, stack: Stack) -> list[str]:
    """The fields of the lock's profile that are not what they were; one that a side lacks was at its default there."""
    now = field_digests(stack.profiles[lock.profile])
    return sorted(name for name in now.keys() | lock.manifest_fields if now.get(name) != lock.manifest_fields.get(name))


def restated(lock: Lock, stack: Stack) -> Lock | None:
    """The lock with the stack's words of today; None where something has to be resolved for that, or nothing changed.

    Contents, versions of tools and date stay those of the resolution.
    """
    changed = changed_fields(lock, stack)
    if not lock.manifest_fields or not changed or not set(changed) <= set(_RUN):
        return None
    profile = stack.profiles[lock.profile]
    drafts = [variant.model_copy(update=run_fields(profile)) for variant in lock.variants]
    variants = tuple(
        each.model_copy(update={"digest": each.compute_digest(lock.stack, lock.profile)}) for each in drafts
    )
    digests = {"manifest_digest": manifest_digest(stack, lock.profile), "manifest_fields": field_digests(profile)}
    new = lock.model_copy(update={"variants": variants, **digests})
    return None if contents(new, profile) else new
