"""What an environment costs: bytes to fetch, bytes and inodes on the disk, rough seconds.

Sizes in the lock are added up; for other wheels fixed factors are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from envbuild.model.common import Unpacked
from envbuild.model.conda import CondaPackage
from envbuild.model.lock import ArtifactFile, LockedPackage, Variant
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
SOURCE = "source "
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
        """`202 MB to fetch, 785 MB and 16000 files on disk, 790 MB at the peak`; `delivered`: nothing is fetched."""
        peak = self.disk_bytes + max(self.beside_bytes(delivered=delivered), self.smoke_bytes(delivered=delivered))
        disk, most = (disk_words(count, self.unsized, rough=self.rough) for count in (self.disk_bytes, peak))
        text = f"{disk} and {self.inodes} files on disk, {most} at the peak"
        text = text if delivered else f"{fetch_words(self.fetch_bytes, self.unsized)}, {text}"
        return f"{text}; no recorded size: {few(self.unsized)}" if self.unsized else text


def disk_words(count: int, unsized: Sequence[str], *, rough: bool) -> str:
    """`747 MB`; with `about` if `rough`, with `at least` if a package has no known size at all."""
    known = all(name.startswith(SOURCE) for name in unsized)
    return f"{('about ' if rough else '') if known else 'at least '}{size(count)}"


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
            *(f"{SOURCE}{source.name}" for source in variant.sources),
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
