"""The variant of a lock that a user has named."""

from __future__ import annotations

from envbuild.catalog.nearest import did_you_mean
from envbuild.errors import EnvbuildError
from envbuild.model.lock import Lock, Variant


def named_variant(lock: Lock, name: str) -> Variant:
    """The variant with the id `name`. Raises EnvbuildError `variant-unknown` (exit 2)."""
    variants = {variant.id: variant for variant in lock.variants}
    if name not in variants:
        raise EnvbuildError(
            "variant-unknown",
            f"the lock of {lock.stack} ({lock.profile}) has no variant {name}",
            why=f"it has {', '.join(variants)}",
            hint=did_you_mean(name, variants) or "name one of them",
        )
    return variants[name]
