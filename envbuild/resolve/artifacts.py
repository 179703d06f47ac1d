"""Which of a package's files fits a machine: wheel tags against its Python, architecture and C library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import BuildTag, InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envbuild.model.evidence import BuiltVariant, NodeEvidence, PackageFile
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import ArtifactFile, LockedPackage, Variant
from envbuild.node.read_text import integer

Numbers = tuple[int, ...]

_LEADING = re.compile(r"[0-9]+(?:\.[0-9]+)*")


@lru_cache(maxsize=4096)
def numbers(text: str | None) -> Numbers:
    """The leading dotted number: `470.82.01 (GA)` is (470, 82, 1); empty when there is none."""
    match = _LEADING.match(text.strip()) if text else None
    return tuple(int(part[:12]) for part in match.group().split(".")) if match else ()


def minor(text: str | None) -> Numbers:
    """The first two numbers, `3.11.4` is (3, 11); empty when there are fewer than two."""
    parts = numbers(text)
    return parts[:2] if len(parts) >= 2 else ()


def dotted(parts: Numbers) -> str:
    """`(11, 3)` as `11.3`."""
    return ".".join(str(part) for part in parts)


def flavour_cuda(flavour: str | None) -> Numbers:
    """The CUDA version of a wheel flavour: cu113 is (11, 3), cu130 is (13, 0); empty for cpu and None."""
    if not flavour or not flavour.startswith("cu") or integer(flavour[2:]) is None or len(flavour) < 4:
        return ()
    return int(flavour[2:-1]), int(flavour[-1])


def split_local(version: str) -> tuple[str, str | None]:
    """`1.10.0+cu113` is (`1.10.0`, `cu113`); the second is None without a local part."""
    public, _, local = version.partition("+")
    return public, local or None


@lru_cache(maxsize=4096)
def same_version(one: str, other: str) -> bool:
    """Whether two texts are one version (PEP 440), or else the same text."""
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def python_tag(python: str) -> str:
    """The wheel tag of a Python: 3.9 is cp39."""
    return "cp" + python.replace(".", "")


_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
# What an unknown C library is taken for, so that it refuses nothing; no tag is of a newer one.
_NEWEST_GLIBC = 99


class Platform(NamedTuple):
    """What decides whether a file fits: `python` as `3.11`, `machine` as `x86_64`, glibc (empty: unknown)."""

    python: str
    machine: str
    glibc: Numbers = ()


def platform_of(variant: Variant, facts: NodeFacts) -> Platform:
    """What decides which files of the variant fit the node; an unknown architecture counts as the variant's."""
    glibc = minor(facts.libc.version) if facts.libc.kind == "glibc" else ()
    return Platform(variant.python, variant.machine, glibc)


def fitting_file(package: LockedPackage, platform: Platform) -> ArtifactFile | None:
    """The file an installer would take: the best wheel that fits, else a source archive, else None."""
    best = best_wheel((file.file for file in package.files), platform)
    return next((f for f in package.files if (f.file == best if best else not f.file.endswith(".whl"))), None)


def best_wheel(files: Iterable[str], platform: Platform) -> str | None:
    """The wheel that an installer would take: the most specific that fits, and of these the highest build tag."""
    ranks = {file: place for file in sorted(files) if (place := rank(file, platform)) is not None}
    return max(ranks, key=lambda file: ranks[file], default=None)


@lru_cache(maxsize=16384)
def rank(file: str, platform: Platform) -> tuple[int, BuildTag] | None:
    """How good a wheel is for a platform (the greatest is best); None when it does not fit or is not a wheel."""
    try:
        _, _, build, own = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return None
    places = _places(platform)
    place = min((places[tag] for tag in own if tag in places), default=None)
    return None if place is None else (-place, build)


@lru_cache(maxsize=256)
def _places(platform: Platform) -> Mapping[Tag, int]:
    """The acceptable tags of CPython on a platform, each with its place; the best has 0."""
    python = numbers(platform.python)[:2]
    known = platform.glibc[:1] == (2,) and len(platform.glibc) > 1
    newest = min(platform.glibc[1], _NEWEST_GLIBC) if known else _NEWEST_GLIBC
    platforms: list[str] = []
    for least in range(newest, 4, -1):
        platforms.append(f"manylinux_2_{least}_{platform.machine}")
        if least in _LEGACY:
            platforms.append(f"{_LEGACY[least]}_{platform.machine}")
    platforms.append(f"linux_{platform.machine}")
    interpreter = "cp" + "".join(map(str, python))
    # Until 3.7 the ABI tag of a usual build ended in `m`.
    abis = [interpreter + ("m" if python < (3, 8) else "")]
    tags = [
        *cpython_tags(python, abis=abis, platforms=platforms),
        *compatible_tags(python, interpreter=interpreter, platforms=platforms),
    ]
    return MappingProxyType({tag: place for place, tag in enumerate(tags)})


def built(variants: Mapping[str, Variant], nodes: Iterable[NodeEvidence]) -> tuple[BuiltVariant, ...]:
    """Which files of each variant fit the nodes that have it; a node without facts adds none."""
    out = []
    having = list(nodes)
    for digest, variant in variants.items():
        facts = [node.facts for node in having if node.variant_digest == digest and node.facts is not None]
        rows = dict.fromkeys(row for node in facts for row in _files(variant, node))
        out.append(BuiltVariant(id=variant.id, digest=digest, packages=tuple(rows)))
    return tuple(out)


def _files(variant: Variant, facts: NodeFacts) -> Iterator[PackageFile]:
    platform = platform_of(variant, facts)
    for archive in variant.archives:
        row = {key: getattr(archive, key) for key in ("name", "version", "build", "subdir", "file", "sha256")}
        yield PackageFile(kind="conda", index=archive.channel, **row)
    for package in variant.packages:
        file = fitting_file(package, platform)
        if file is not None:
            yield PackageFile(
                name=package.name, version=package.version, file=file.file, sha256=file.sha256, index=package.index
            )
