"""Which images a lock's containers are made from, and pinning them by what their registries say."""

from __future__ import annotations

from collections.abc import Mapping

from envbuild.container.base_images import AskedDigest, Containers, StackImage
from envbuild.container.stage_images import find_place
from envbuild.errors import EnvbuildError
from envbuild.model.lock import Lock, LockedImage, Variant


def references_of(lock: Lock, containers: Containers, stack: StackImage | None) -> list[str]:
    """The images by tag that the variants of a lock are built on, sorted; variants that fit no image are left out."""
    found: set[str] = set()
    for variant in lock.variants:
        try:
            place = find_place(variant, containers, stack)
        except EnvbuildError:
            continue
        found |= {place.fetch, place.build, place.runtime}
    return sorted(reference for reference in found if "@sha256:" not in reference)


def pin_images(lock: Lock, digests: Mapping[str, AskedDigest]) -> Lock:
    """The lock with the digests of the images that its variants stand on; a variant's digest covers them."""
    return lock.model_copy(update={"variants": tuple(_pinned(lock, each, digests) for each in lock.variants)})


def _pinned(lock: Lock, variant: Variant, digests: Mapping[str, AskedDigest]) -> Variant:
    known = digests.get(variant.image.name) if variant.image else None
    if variant.image is None or known is None or variant.image.digest == known.digest:
        return variant
    image = LockedImage(name=variant.image.name, digest=known.digest)
    draft = variant.model_copy(update={"image": image})
    return draft.model_copy(update={"digest": draft.compute_digest(lock.stack, lock.profile)})
