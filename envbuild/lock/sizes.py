"""Fills in what the files and trees of a lock take on a disk, where it does not say so; no digest covers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from envbuild.errors import EnvbuildError
from envbuild.lock.packages import Index, offered_files
from envbuild.lock.readers.pylock import with_sizes
from envbuild.lock.readers.wheel_record import of_source
from envbuild.model.conda import LockedConda
from envbuild.model.lock import Lock, LockedPackage, LockedSource, Variant
from envbuild.model.unpacked import Unpacked

Say = Callable[[str], None]


def with_trees(sources: Sequence[LockedSource], previous: Lock | None, say: Say) -> tuple[LockedSource, ...]:
    """The sources with what their trees take; `say` is told of a tree that could not be had.

    What the previous lock says of the same commit stays: a commit does not change.
    """
    before = [source for variant in (previous.variants if previous else ()) for source in variant.sources]
    known = {(source.git, source.commit): source.unpacked for source in before if source.unpacked is not None}
    for source in sources:
        if (source.git, source.commit) not in known:
            try:
                known[source.git, source.commit] = of_source(source)
            except EnvbuildError as error:
                say(f"the tree of {source.name} was not measured: {error.what}")
    return tuple(each.model_copy(update={"unpacked": known.get((each.git, each.commit))}) for each in sources)


def with_all_sizes(
    lock: Lock,
    find_links: tuple[str, ...],
    indexes: Mapping[str, Index],
    say: Say,
    channels: Mapping[str, Sequence[str]] | None = None,
) -> Lock:
    """The lock with what can be found out now, and nothing else changed; `say` is told of what could not be asked.

    `channels`: base addresses of conda's, by name.
    """
    known: dict[str, Unpacked | None] = {}
    for variant in lock.variants:
        lacking = [package for package in variant.packages if _lacks(package, known)]
        for index, group in groupby(sorted(lacking, key=lambda each: each.index), key=lambda each: each.index):
            try:
                known.update(_asked(variant, list(group), find_links, indexes))
            except EnvbuildError as error:
                say(f"packages from `{index}` were not measured for {variant.id}: {error.what}")
    sources = {(each.git, each.commit): each for variant in lock.variants for each in variant.sources}
    trees = dict(zip(sources, with_trees(tuple(sources.values()), lock, say), strict=True))

    def filled(variant: Variant) -> Variant:
        packages = tuple(_with_known(package, known) for package in variant.packages)
        own = (each.model_copy(update={"unpacked": trees[each.git, each.commit].unpacked}) for each in variant.sources)
        changes = {"packages": packages, "sources": tuple(own), "conda": _with_archives(variant.conda)}
        return variant.model_copy(update=changes)

    def _with_archives(conda: LockedConda | None) -> LockedConda | None:
        if conda is None or not channels:
            return conda
        from envbuild.conda.sizes import with_sizes

        return conda.model_copy(update={"packages": with_sizes(conda.packages, channels, say)})

    return lock.model_copy(update={"variants": tuple(map(filled, lock.variants))})


def _lacks(package: LockedPackage, known: Mapping[str, Unpacked | None]) -> bool:
    files = (file for file in package.files if file.file.endswith(".whl") and file.sha256 != "unrecorded")
    return any(file.unpacked is None and file.sha256 not in known for file in files)


def _asked(
    variant: Variant, packages: Sequence[LockedPackage], find_links: tuple[str, ...], indexes: Mapping[str, Index]
) -> dict[str, Unpacked | None]:
    """What the locked wheels take, by sha256, as far as they are offered."""
    offered = offered_files(variant, packages, find_links, indexes)
    locked = {file.sha256 for package in packages for file in package.files}
    return {
        item.sha256: item.unpacked for item in with_sizes(each for each in offered.values() if each.sha256 in locked)
    }


def _with_known(package: LockedPackage, known: Mapping[str, Unpacked | None]) -> LockedPackage:
    files = (file.model_copy(update={"unpacked": file.unpacked or known.get(file.sha256)}) for file in package.files)
    return package.model_copy(update={"files": tuple(files)})
