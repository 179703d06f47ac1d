"""Which images a lock's containers are made from: pinned by what their registries say, and asked whether they moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from envbuild.container import registry
from envbuild.container.base_images import (
    AskedDigest,
    Containers,
    StackImage,
    find_place,
    load_containers,
    read_digests,
    write_digests,
)
from envbuild.errors import EnvbuildError
from envbuild.lock.agreement import LockFinding
from envbuild.model.lock import Lock, LockedImage, Variant

FILE = "images.toml"
Ask = Callable[[str], tuple[str, dict[str, str]]]


def references_of(lock: Lock, containers: Containers, stack: StackImage | None) -> list[str]:
    """The images by tag that the variants of a lock are built on, sorted; variants that fit no image are left out."""
    references: set[str] = set()
    for variant in lock.variants:
        try:
            place = find_place(variant, containers, stack)
        except EnvbuildError:
            continue
        references |= {place.fetch, place.build, place.runtime}
    return sorted(reference for reference in references if "@sha256:" not in reference)


def pin_images(lock: Lock, digests: Mapping[str, AskedDigest]) -> Lock:
    """The lock with the digests of the images that its variants stand on; a variant's digest covers them."""
    return lock.model_copy(update={"variants": tuple(_pinned(lock, variant, digests) for variant in lock.variants)})


def _pinned(lock: Lock, variant: Variant, digests: Mapping[str, AskedDigest]) -> Variant:
    known = digests.get(variant.image.name) if variant.image else None
    if variant.image is None or known is None or variant.image.digest == known.digest:
        return variant
    image = LockedImage(name=variant.image.name, digest=known.digest)
    draft = variant.model_copy(update={"image": image})
    return draft.model_copy(update={"digest": draft.compute_digest(lock.stack, lock.profile)})


def images_of(lock: Lock, *, shipped: bool) -> list[str]:
    """As `references_of`, by the shipped catalog."""
    containers = load_containers()
    return references_of(lock, containers, containers.stacks.get(lock.stack) if shipped else None)


def ask_and_record(
    lock: Lock, path: Path, references: list[str], *, upgrade: bool = False, ask: Ask | None = None
) -> tuple[Lock, registry.Asked]:
    """Record what the registries say beside the lock at `path`; the lock with it, and what was said.

    Raises the first error where no registry answered.
    """
    known = read_digests(path.with_name(FILE))
    asked = registry.ask_all(references, known, upgrade=upgrade, ask=ask or registry.ask_image)
    if asked.errors and len(asked.errors) == len(references):
        raise asked.errors[0]
    if asked.digests != known:
        write_digests(asked.digests, path.with_name(FILE))
    return pin_images(lock, asked.digests), asked


def moved(lock: Lock, path: Path, *, shipped: bool, ask: Ask | None = None) -> list[LockFinding]:
    """Which tags name something else than recorded: of a lock's images, and of those that were pinned beside it.

    A registry that cannot be asked is named.
    """
    beside = read_digests(path.with_name(FILE))
    known = {**read_digests(), **beside}
    locked = {variant.image.name: variant.image.digest for variant in lock.variants if variant.image is not None}
    recorded = {name: known[name].digest for name in known} | {
        name: digest for name, digest in locked.items() if digest != "unrecorded"
    }
    findings = []
    for reference in sorted({*images_of(lock, shipped=shipped), *(() if shipped else beside)}):
        if reference not in recorded:
            continue
        try:
            now, _ = (ask or registry.ask_image)(reference)
        except EnvbuildError as error:
            message = f"{error.what} ({error.why})" if error.why else error.what
            findings.append(LockFinding("image-tag-unchecked", "unchecked", reference, message))
            continue
        if now != recorded[reference]:
            says = f"the tag has moved from sha256:{recorded[reference]} to sha256:{now}; the recorded one stays in use"
            findings.append(LockFinding("image-tag-moved", "note", reference, says))
    return findings
