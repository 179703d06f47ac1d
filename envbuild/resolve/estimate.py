"""What an environment costs: bytes to fetch, bytes and inodes that stay, rough seconds. Stated factors, no promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envbuild.model.lock import LockedPackage, Variant
from envbuild.resolve.artifacts import Platform, fitting_file

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
# A git source is not sized in a lock; this stands for one.
SOURCE = "source "
SOURCE_BYTES = 60_000_000
SOURCE_FILES = 2_000
# Rough rates of one node: bytes fetched, bytes written, a package's own cost.
FETCH_BYTES_PER_SECOND = 40e6
WRITE_BYTES_PER_SECOND = 300e6
SECONDS_PER_PACKAGE = 0.05


@dataclass(frozen=True, slots=True)
class Estimate:
    """`fetch_bytes` of the files whose size is recorded; `unsized` packages (and sources) come on top."""

    fetch_bytes: int
    disk_bytes: int
    inodes: int
    seconds: float
    unsized: tuple[str, ...]

    def in_words(self, *, fetched: bool = True) -> str:
        """`202 MB to fetch, about 747 MB and 12000 files on disk`; `fetched`: say what comes over the network."""
        disk = f"{disk_words(self.disk_bytes, self.unsized)} and {self.inodes} files on disk"
        text = f"{fetch_words(self.fetch_bytes, self.unsized)}, {disk}" if fetched else disk
        return f"{text}; no recorded size: {few(self.unsized)}" if self.unsized else text


def disk_words(count: int, unsized: Sequence[str]) -> str:
    """`about 747 MB`; `at least` where the size of a package is not known. A source has its allowance."""
    known = all(name.startswith(SOURCE) for name in unsized)
    return f"{'about' if known else 'at least'} {size(count)}"


def fetch_words(count: int, unsized: Sequence[str]) -> str:
    """`202 MB to fetch`; `at least` where something comes on top that nobody has sized."""
    if unsized and not count:
        return "an unknown amount to fetch"
    return f"{'at least ' if unsized else ''}{size(count)} to fetch"


def few(names: Sequence[str]) -> str:
    """Three names, and how many more."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def size(count: int) -> str:
    """Bytes for people: `808 MB`, `1.9 GB` (decimal units)."""
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def estimate(variant: Variant, platform: Platform) -> Estimate:
    """The cost of building a variant on a platform, one file a package."""
    fetch, disk, inodes, unsized = 0, 0.0, 0, []
    for package in variant.packages:
        bytes_ = wheel_bytes(package, platform)
        if bytes_ is None:
            unsized.append(package.name)
        fetch += bytes_ or 0
        library = package.name.startswith(LIBRARY_PREFIX)
        disk += (bytes_ or 0) * (LIBRARY_FACTOR if library else UNPACK_FACTOR)
        many = FILES_PER_PACKAGE + min((bytes_ or 0) // WHEEL_BYTES_PER_FILE, MOST_FILES_PER_PACKAGE)
        inodes += LIBRARY_FILES if library else many
    disk += SOURCE_BYTES * len(variant.sources)
    inodes += SOURCE_FILES * len(variant.sources)
    seconds = (
        fetch / FETCH_BYTES_PER_SECOND + disk / WRITE_BYTES_PER_SECOND + SECONDS_PER_PACKAGE * len(variant.packages)
    )
    unsized += [f"{SOURCE}{source.name}" for source in variant.sources]
    return Estimate(fetch, int(disk), inodes, round(seconds, 1), tuple(unsized))


def wheel_bytes(package: LockedPackage, platform: Platform) -> int | None:
    """Size of the file that would be installed, None when nobody recorded it."""
    best = fitting_file(package, platform)
    return best.size if best is not None else next((f.size for f in package.files if f.size is not None), None)
