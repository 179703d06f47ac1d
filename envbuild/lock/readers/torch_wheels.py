"""Where the torch of one flavour comes from, and what is known of a wheel whose index is out of reach.

PyPI carries one flavour of each release under the plain version; every other flavour is `version+flavour` on an
index that the catalog names. When neither that index nor a find-links folder has the file, the public records in
`catalog/compat/torch_hashes.yaml` (each with its witness) stand in; without one the hash is `unrecorded`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.parser import Parser
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from envbuild import resources
from envbuild.catalog.indexes import DEFAULT_INDEX, IndexEntry
from envbuild.catalog.yaml_load import load_yaml
from envbuild.errors import EnvbuildError
from envbuild.lock.readers.pylock import headers_of, platform_of
from envbuild.model.lock import ArtifactFile, LockedPackage
from envbuild.node import pip_config
from envbuild.resolve.artifacts import Platform, best_wheel, python_tag

# Packages that hold CUDA's libraries, and those that only a CUDA build of torch needs besides; by prefix (wheel
# metadata of torch 1.13 to 2.13).
_LIBRARIES = ("nvidia-", "cuda-")
_CUDA_ONLY = (*_LIBRARIES, "triton", "pytorch-triton")
# Builds on PyTorch's own indexes carry CUDA inside up to 2.1 (2.0.1+cu118 has 2267 MB, 2.1.0+cu118 2620 MB).
_CUDA_INSIDE_BEFORE = Version("2.2")


@dataclass(frozen=True)
class Supply:
    """Where wheels can come from: find-links entries (absolute), and each release's flavour on PyPI.

    `torch_index(version, flavour)` names the other index; it raises EnvbuildError `index-unknown` (exit 2).
    `records`: recorded wheels by file name; `requires`: what each version requires, from the metadata of a wheel that
    was read. `allow_build`: packages that may come as source distributions, whose code then runs here.
    """

    find_links: tuple[str, ...]
    torch_index: Callable[[str, str], IndexEntry]
    pypi_flavours: Mapping[str, str | None]
    records: Mapping[str, ArtifactFile]
    requires: Mapping[str, tuple[str, ...]]
    reachable: Callable[[IndexEntry], bool]
    allow_build: tuple[str, ...] = ()


@dataclass(frozen=True)
class TorchChoice:
    """How torch enters a resolution.

    `requirements` go to uv; `origin` is the name of the index that has this build, and `index` is set when uv shall ask
    it; `package` is set when torch itself is not resolved but taken from a record. `sibling`: the build on PyPI is
    resolved in its place, and what only that one needs of the packages whose name begins with one of `left_out` is not
    locked.
    """

    requirements: tuple[str, ...]
    origin: str = DEFAULT_INDEX
    index: IndexEntry | None = None
    package: LockedPackage | None = None
    sibling: bool = False
    left_out: tuple[str, ...] = ()


@cache
def load_records() -> tuple[dict[str, ArtifactFile], dict[str, tuple[str, ...]]]:
    """The shipped `records` and `requires` of a `Supply`. Raises EnvbuildError when the file is damaged."""
    data = load_yaml(resources.catalog() / "compat" / "torch_hashes.yaml")
    files: dict[str, ArtifactFile] = {}
    requires: dict[str, tuple[str, ...]] = {}
    for version, entry in data["versions"].items():
        requires[version] = tuple(entry.get("requires", ()))
        for tag, record in entry["wheels"].items():
            file = f"torch-{version}-{tag}.whl"
            files[file] = ArtifactFile(
                file=file, sha256=record["sha256"], size=record.get("size"), witness=record["witness"]
            )
    return files, requires


def can_reach(index: IndexEntry) -> bool:
    """Whether an index answers for torch within 5 s."""
    address = index.url if index.kind == "find-links" else f"{index.url.rstrip('/')}/torch/"
    return headers_of(address, 5) is not None


def choose_torch(
    version: str, flavour: str, python: str, platform: str, supply: Supply, previous: LockedPackage | None
) -> TorchChoice:
    """Decide where torch comes from for one variant.

    Raises EnvbuildError `index-unknown` (exit 2) when the catalog names no index for the flavour, and
    `index-unreachable` (exit 75) when nothing is known of what that build needs.
    """
    if supply.pypi_flavours.get(version) == flavour:
        return TorchChoice((_plain(version),))
    full = f"{version}+{flavour}"
    index = supply.torch_index(version, flavour)
    fits = platform_of(python, platform)
    if best_wheel((wheel.name for wheel in _local_wheels(full, supply.find_links)), fits):
        return TorchChoice((f"torch=={full}",), index.name)
    if supply.reachable(index):
        return TorchChoice((f"torch=={full}",), index.name, index)
    return _from_records(full, fits, supply, index, previous)


def _plain(version: str) -> str:
    # `==2.13.0` would take 2.13.0+cpu where a find-links folder has it: a local version counts as newer.
    return f"torch==={version}"


def _local_wheels(full: str, find_links: tuple[str, ...]) -> list[Path]:
    folders = map(Path, pip_config.folders(find_links))
    return sorted(wheel for folder in folders for wheel in folder.glob(f"torch-{full}-*.whl"))


def _from_records(
    full: str, fits: Platform, supply: Supply, index: IndexEntry, previous: LockedPackage | None
) -> TorchChoice:
    package = _recorded_package(full, fits, supply.records, index, previous)
    siblings = _local_wheels(full, supply.find_links)
    requires = _requires_of(siblings[0]) if siblings else supply.requires.get(full, ())
    if requires:
        return TorchChoice(tuple(requires), index.name, package=package)
    version, _, flavour = full.partition("+")
    sibling = _sibling(version, supply.pypi_flavours)
    if sibling and (flavour == "cpu" or Version(version) < _CUDA_INSIDE_BEFORE):
        # What such a build needs besides CUDA is what the build on PyPI needs.
        package = package.model_copy(update={"metadata_from": f"torch {sibling} on {DEFAULT_INDEX}"})
        left_out = _CUDA_ONLY if flavour == "cpu" else _LIBRARIES
        return TorchChoice((_plain(sibling),), index.name, package=package, sibling=True, left_out=left_out)
    instead = supply.pypi_flavours.get(version)
    raise EnvbuildError(
        "index-unreachable",
        f"the requirements of torch {full} are unknown, because `{index.name}` cannot be reached",
        why="CUDA builds from 2.2 on need packages of their own flavour, and only this index lists them",
        hint="lock where the index can be reached, put the wheel into a find-links folder, or "
        + (f"take {instead}, which the default index has" if instead else f"leave {flavour} out"),
        details={"relaxations": [{"was": flavour, "becomes": instead}]} if instead else None,
    )


def _sibling(version: str, pypi_flavours: Mapping[str, str | None]) -> str | None:
    """The release itself where PyPI has it, else the newest older one of the same minor (1.8.1 for 1.8.2)."""
    asked = Version(version)
    releases = [Version(text) for text, flavour in pypi_flavours.items() if flavour]
    near = [other for other in releases if other.release[:2] == asked.release[:2] and other <= asked]
    return str(max(near)) if near else None


def _recorded_package(
    full: str, fits: Platform, records: Mapping[str, ArtifactFile], index: IndexEntry, previous: LockedPackage | None
) -> LockedPackage:
    best = best_wheel((file for file in records if file.startswith(f"torch-{full}-")), fits)
    if not best and previous and (previous.version, previous.index) == (full, index.name):
        return previous
    file = records[best] if best else _unrecorded(full, fits)
    return LockedPackage(name="torch", version=full, index=index.name, files=(file,))


def _unrecorded(full: str, fits: Platform) -> ArtifactFile:
    tag = python_tag(fits.python)
    abi = tag + ("m" if int(fits.python.split(".")[1]) < 8 else "")
    # Platform tag of the PyTorch indexes: plain `linux` up to 2.6, manylinux 2.28 since 2.7.
    modern = Version(full.partition("+")[0]) >= Version("2.7")
    return ArtifactFile(
        file=f"torch-{full}-{tag}-{abi}-{'manylinux_2_28' if modern else 'linux'}_{fits.machine}.whl",
        sha256="unrecorded",
        reason="its index was out of reach and no public record of this file is known; the name follows the rule",
    )


def _requires_of(wheel: Path) -> tuple[str, ...]:
    """Requires-Dist of a wheel, extras left out. Raises EnvbuildError `wheel-unreadable` (exit 5)."""
    try:
        name, version, _, _ = parse_wheel_filename(wheel.name)
        with zipfile.ZipFile(wheel) as archive:
            text = archive.read(f"{name}-{version}.dist-info/METADATA").decode("utf-8")
    except (InvalidWheelFilename, zipfile.BadZipFile, KeyError, OSError, UnicodeDecodeError) as error:
        raise EnvbuildError(
            "wheel-unreadable",
            f"the metadata of {wheel.name} cannot be read",
            why=f"{type(error).__name__}: {error}",
            hint="replace the damaged file",
        ) from error
    listed = [Requirement(value) for value in Parser().parsestr(text).get_all("Requires-Dist", [])]
    return tuple(str(item) for item in listed if item.marker is None or "extra" not in str(item.marker))


def check_against_records(packages: tuple[LockedPackage, ...], records: Mapping[str, ArtifactFile]) -> None:
    """Raise EnvbuildError `hash-contradicts-record` (exit 5) if a file differs from its public record."""
    for package in packages:
        for item in package.files:
            record = records.get(item.file)
            if record and item.sha256 not in ("unrecorded", record.sha256):
                raise EnvbuildError(
                    "hash-contradicts-record",
                    f"{item.file} differs from its public record",
                    why=f"sha256 {item.sha256} here, {record.sha256} recorded by {record.witness}",
                    hint="fetch it from another mirror, and do not use this file before you know the cause",
                )
