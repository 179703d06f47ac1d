"""What an environment costs: bytes to fetch, bytes and inodes on the disk, rough seconds; and who can fetch it.

Sizes in the lock are added up; for other wheels fixed factors are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from envbuild.model.common import Unpacked
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import ArtifactFile, Lock, LockedPackage, Variant
from envbuild.model.plan import DeliveryChoice
from envbuild.model.stack import CondaPackage
from envbuild.model.target import Target
from envbuild.resolve.artifacts import Platform, fitting_file
from envbuild.text import few, size

# What is there besides packages: the virtual environment itself, what uv notes of a package and its programs in `bin`,
# and the hashes of files in files.json (measured; benchmarks/README.md).
VENV = Unpacked(bytes=250_000, inodes=45)
PACKAGE = Unpacked(bytes=12_288, inodes=3)
STAMP_BYTES_PER_INODE = 160
# While it is installed: uv's own folders, later the hashes once more; and of each package the page of the index.
WORK_BYTES_PER_INODE = 380
INDEX_BYTES_PER_PACKAGE = 280_000
# While it is tested: the smoke programs and the byte code of what they import (30 MB for 19,853 files of torch).
SMOKE_BYTES = 2_700_000
SMOKE_BYTES_PER_INODE = 1_500
# A standalone Python unpacked, where its archive is not at hand.
PYTHON_BYTES = 110_000_000
# Wheels are zip files. The CPU build of torch 2.13 takes 3.65 times its size and has 12248 files (measured).
UNPACK_FACTOR = 3.7
# NVIDIA's library wheels hold a few large libraries (measured: cufft 1.45 times and 12 files, nvjitlink 2.5 and 7).
LIBRARY_PREFIX = "nvidia-"
LIBRARY_FACTOR = 2.0
LIBRARY_FILES = 50
# A package brings this many files and one more for every so many bytes of its wheel, up to what torch has.
FILES_PER_PACKAGE = 100
WHEEL_BYTES_PER_FILE = 16_000
MOST_FILES_PER_PACKAGE = 12_500
# For a git source whose tree was not measured.
_SOURCE = "source "
# For a tool that this machine has yet to download: its size there is not recorded, what it takes on a node is.
TOOL = "tool "
TREE = Unpacked(bytes=60_000_000, inodes=2_000)
# Rough rates of one node: bytes fetched, bytes written, a package's own cost.
FETCH_BYTES_PER_SECOND = 40e6
WRITE_BYTES_PER_SECOND = 300e6
SECONDS_PER_PACKAGE = 0.05


class Estimate(NamedTuple):
    """`fetch_bytes`: files with a recorded size; the `unsized` packages and sources are not included.

    `disk_bytes` and `inodes` stay. `work_bytes`: further space during the installation, and `index_bytes` if the node
    asks the index itself. `certain_bytes`: recorded sizes; `rough`: some other sizes are estimates.
    """

    fetch_bytes: int
    disk_bytes: int
    work_bytes: int
    index_bytes: int
    certain_bytes: int
    inodes: int
    seconds: float
    unsized: tuple[str, ...]
    rough: bool

    def beside_bytes(self, *, delivered: bool) -> int:
        """Further disk space during the installation, which is removed with the run."""
        return self.work_bytes + (self.fetch_bytes if delivered else self.index_bytes)

    def smoke_bytes(self, *, delivered: bool) -> int:
        """Further disk space during the smoke test, which is removed with the run."""
        return SMOKE_BYTES + SMOKE_BYTES_PER_INODE * self.inodes + (self.fetch_bytes if delivered else 0)

    def in_words(self, *, delivered: bool = False) -> str:
        """`202 MB to fetch, 785 MB and 16000 files on disk, 790 MB while building`; `delivered`: nothing is fetched."""
        peak = self.disk_bytes + max(self.beside_bytes(delivered=delivered), self.smoke_bytes(delivered=delivered))
        disk, most = (disk_words(count, self.unsized, rough=self.rough) for count in (self.disk_bytes, peak))
        text = f"{disk} and {self.inodes} files on disk, {most} while building"
        text = text if delivered else f"{fetch_words(self.fetch_bytes, self.unsized)}, {text}"
        return f"{text}; no recorded size: {few(self.unsized)}" if self.unsized else text


def uncounted(unsized: Iterable[str]) -> list[str]:
    """The packages among parts without a recorded size: those of torch's indexes, the largest of all."""
    return [name for name in unsized if not name.startswith((_SOURCE, TOOL))]


def disk_words(count: int, unsized: Sequence[str], *, rough: bool) -> str:
    """`747 MB`; with `about` if `rough`, with `at least` if a package has no known size at all."""
    return f"{'at least ' if uncounted(unsized) else 'about ' if rough else ''}{size(count)}"


def fetch_words(count: int, unsized: Sequence[str]) -> str:
    """`202 MB to fetch`; with `at least` if a part has no recorded size."""
    if unsized and not count:
        return "an unknown amount to fetch"
    return f"{'at least ' if unsized else ''}{size(count)} to fetch"


def estimate(variant: Variant, platform: Platform) -> Estimate:
    """The cost of building a variant on a platform, one file a package; a conda archive packs about as a wheel does."""
    wheels: list[tuple[str, ArtifactFile | CondaPackage]] = [(p.name, _file(p, platform)) for p in variant.packages]
    files = wheels + [(archive.name, archive) for archive in variant.archives]
    fetch = sum(file.size or 0 for _, file in files)
    packages = [file.unpacked or _by_factors(name, file.size or 0) for name, file in files]
    trees = [source.unpacked or TREE for source in variant.sources]
    inodes = VENV.inodes + PACKAGE.inodes * len(files) + sum(part.inodes for part in (*packages, *trees))
    disk = VENV.bytes + PACKAGE.bytes * len(files) + sum(part.bytes for part in (*packages, *trees))
    disk += STAMP_BYTES_PER_INODE * inodes
    return Estimate(
        fetch_bytes=fetch,
        disk_bytes=disk,
        # A tree comes as a repository, and what is compiled from it is known when that is done.
        work_bytes=WORK_BYTES_PER_INODE * inodes + sum(tree.bytes for tree in trees),
        index_bytes=INDEX_BYTES_PER_PACKAGE * len(wheels),
        certain_bytes=sum(file.unpacked.bytes if file.unpacked else file.size or 0 for _, file in files),
        inodes=inodes,
        seconds=round(
            fetch / FETCH_BYTES_PER_SECOND + disk / WRITE_BYTES_PER_SECOND + SECONDS_PER_PACKAGE * len(files), 1
        ),
        unsized=(
            *(name for name, file in files if file.size is None),
            *(f"{_SOURCE}{source.name}" for source in variant.sources),
        ),
        rough=bool(variant.sources) or any(file.unpacked is None for _, file in files),
    )


def _file(package: LockedPackage, platform: Platform) -> ArtifactFile:
    """The file that would be installed; where none fits, one that says its size."""
    best = fitting_file(package, platform)
    return best or next((file for file in package.files if file.size is not None), package.files[0])


def _by_factors(name: str, packed: int) -> Unpacked:
    if name.startswith(LIBRARY_PREFIX):
        return Unpacked(bytes=int(packed * LIBRARY_FACTOR), inodes=LIBRARY_FILES)
    files = FILES_PER_PACKAGE + min(packed // WHEEL_BYTES_PER_FILE, MOST_FILES_PER_PACKAGE)
    return Unpacked(bytes=int(packed * UNPACK_FACTOR), inodes=files)


class Supply(NamedTuple):
    """What the controller can reach: index, `channel_key` or git address -> whether it answers; file name -> path.

    Paths are in its find-links folders or its cache. Empty: it was not asked.
    """

    reachable: Mapping[str, bool] = {}
    files_found: Mapping[str, str] = {}


class Supplied(NamedTuple):
    """Who fetches for one node, and what nobody can reach: names of packages and sources, and their places."""

    choice: DeliveryChoice
    missing: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


def indexes_needed(lock: Lock) -> list[str]:
    """Names of the indexes that the lock's packages come from, sorted."""
    return sorted({name for variant in lock.variants for name in indexes_of(variant)})


@lru_cache
def indexes_of(variant: Variant) -> tuple[str, ...]:
    """Names of the indexes that a variant's packages come from, sorted."""
    return tuple(sorted({package.index for package in variant.packages}))


def channels_needed(lock: Lock) -> list[str]:
    """Names of the conda channels that the lock's packages come from, sorted."""
    return sorted({archive.channel for variant in lock.variants for archive in variant.archives})


def channel_key(name: str) -> str:
    """The key of a channel in `Supply`; an index may have the same name."""
    return f"conda:{name}"


def sources_needed(lock: Lock) -> list[str]:
    """Addresses of the repositories that the lock's sources come from, sorted."""
    return sorted({address for variant in lock.variants for _, address in repositories(variant)})


def repositories(variant: Variant) -> Iterator[tuple[str, str]]:
    """The sources of a variant and their submodules: the source's name and the repository's address."""
    for source in variant.sources:
        yield source.name, source.git
        for part in source.submodules:
            yield source.name, part.git


def supplied(variant: Variant, facts: NodeFacts, target: Target, supply: Supply, platform: Platform) -> Supplied:
    """Who fetches what a variant needs: as the target says, else the node, else the controller if only that can.

    A place that is not known to be out of reach counts as reachable.
    """
    reach = {**supply.reachable, **facts.reachable}
    own = [] if all(reach.values()) else list(_lacking(variant, reach, facts.files_found, platform))
    once = target.connection.kind == "job" and target.placement == "node-local" and target.delivery == "auto"
    if target.delivery == "node" or (target.delivery == "auto" and not own and not once):
        return _of(_by_node(_within(variant, facts, target)), own)
    ours = list(_lacking(variant, supply.reachable, supply.files_found, platform))
    if target.delivery == "controller":
        return _of(DeliveryChoice(by="controller", why="the target says that nodes fetch nothing themselves"), ours)
    if ours:
        return _of(DeliveryChoice(by="node"), own)
    if once:
        return _of(DeliveryChoice(by="controller", why="every job installs from one bundle in the shared folder"), [])
    asked = (
        "this machine has or reaches it" if supply.reachable else "`provision` checks whether this machine reaches it"
    )
    places = ", ".join(dict.fromkeys(place for _, place in own))
    return _of(DeliveryChoice(by="controller", why=f"the node does not reach {places}; {asked}"), [])


@lru_cache
def _by_node(why: str) -> DeliveryChoice:
    return DeliveryChoice(by="node", why=why)


def _of(choice: DeliveryChoice, lacking: Iterable[tuple[str, str]]) -> Supplied:
    names, places = (tuple(dict.fromkeys(texts)) for texts in zip(*lacking, strict=True)) if lacking else ((), ())
    return Supplied(choice, names, places)


def _lacking(
    variant: Variant, reach: Mapping[str, bool], local: Mapping[str, str], platform: Platform
) -> Iterator[tuple[str, str]]:
    """What is known to be out of reach: the name of each package or source, and the place that it comes from."""
    for package in variant.packages:
        if reach.get(package.index) is False and not _is_found(package, local, platform):
            yield package.name, f"the index {package.index}"
    for archive in variant.archives:
        if reach.get(channel_key(archive.channel)) is False and archive.file not in local:
            yield archive.name, f"the channel {archive.channel}"
    for name, address in repositories(variant):
        if reach.get(address) is False:
            yield name, place(address)


def _is_found(package: LockedPackage, local: Mapping[str, str], platform: Platform) -> bool:
    best = fitting_file(package, platform)
    return any(file.file in local for file in ((best,) if best is not None else package.files))


def _within(variant: Variant, facts: NodeFacts, target: Target) -> str:
    """What is known of the reach of a node that fetches for itself."""
    if target.delivery == "node":
        return ""
    if not (unknown := unknown_places(variant, facts)):
        return "the node reaches what it needs" if _needed(variant) else ""
    return f"whether the node reaches {', '.join(unknown)} is not known; what it does not reach, this machine downloads"


def unknown_places(variant: Variant, facts: NodeFacts) -> list[str]:
    """The places that a variant is fetched from and of which nobody knows whether the node reaches them."""
    return sorted(name for name, key in _needed(variant).items() if key not in facts.reachable)


@lru_cache
def _needed(variant: Variant) -> Mapping[str, str]:
    """What a variant is fetched from: in words, and by its key in `reachable`."""
    indexes = {f"the index {name}": name for name in indexes_of(variant)}
    channels = {f"the channel {archive.channel}": channel_key(archive.channel) for archive in variant.archives}
    return {**indexes, **channels, **{place(address): address for _, address in repositories(variant)}}


def place(address: str) -> str:
    """The host of a repository's address."""
    return urlsplit(address).hostname or address
