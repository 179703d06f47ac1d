"""What a variant is installed from, step by step: the bash script and the Dockerfile say it in their own words.

Packages by requirement and index; sources as trees, edits, builds and the imports that prove them. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from envbuild.errors import EnvbuildError
from envbuild.lock.variants import hash_unrecorded
from envbuild.model.lock import LockedPackage, LockedSource, Variant
from envbuild.node.paths import EPOCH


@dataclass(frozen=True, slots=True)
class Packages:
    """Wheels of one index (empty: the one that uv is configured with), or one source archive."""

    index: str
    packages: tuple[LockedPackage, ...]
    archive: bool = False


@dataclass(frozen=True, slots=True)
class Tree:
    """A commit with its tree, at `path` below its source (empty: the source itself)."""

    name: str
    git: str
    commit: str
    tree: str
    path: str = ""


def package_steps(variant: Variant, indexes: Collection[str]) -> list[Packages]:
    """Wheels by index, then source archives one by one, each built beside what is already there."""
    wheels: dict[str, list[LockedPackage]] = {}
    archives = []
    for package in variant.packages:
        if any(file.file.endswith(".whl") for file in package.files):
            wheels.setdefault(package.index if package.index in indexes else "", []).append(package)
        else:
            archives.append(Packages(package.index, (package,), archive=True))
    return [Packages(index, tuple(packages)) for index, packages in sorted(wheels.items())] + archives


def requirement(package: LockedPackage, record: str, between: str = " \\\n    ") -> str:
    """The package as a line of a requirements file, with every hash that it may have.

    With `==`, as a uv before 0.13 takes nothing else beside a hash; so where a find-links folder has 1.0+local, that is
    tried in the place of 1.0, and refused for its hash.

    `record`: the command that records a missing hash. Raises EnvbuildError `hash-unrecorded` (exit 5),
    `version-unusable` (exit 2): what is no version could be an option.
    """
    hashes = sorted({file.sha256 for file in package.files} - {"unrecorded"})
    if not hashes:
        raise hash_unrecorded(package.files[0], record)
    try:
        Version(package.version)
    except InvalidVersion as error:
        raise EnvbuildError(
            "version-unusable",
            f"{package.name}: {package.version!r} is not a version",
            hint="run `envbuild lock create STACK`",
        ) from error
    return between.join([f"{package.name}=={package.version}", *(f"--hash=sha256:{digest}" for digest in hashes)])


def trees(source: LockedSource) -> list[Tree]:
    """The tree of a source, then those of its submodules, outer ones first."""
    inner = sorted(source.submodules, key=lambda submodule: submodule.path.count("/"))
    result = [Tree(source.name, source.git, source.commit, source.tree)]
    return result + [Tree(f"{source.name}/{one.path}", one.git, one.commit, one.tree, one.path) for one in inner]


@dataclass(frozen=True, slots=True)
class Fetch:
    """The trees of a source, outer ones first, each compared with its hash."""

    trees: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """Our patches of a source, by name, in their order."""

    patches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compile:
    """Extensions compiled in the source's own folder: `setup.py build_ext --inplace` with these flags."""

    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Install:
    """A source made importable: a `wheel` of it (setup.py gets the flags), `editable`, or its `path` on Python's."""

    how: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prove:
    """Modules that the build must have compiled are imported."""

    modules: tuple[str, ...]


SourceStep = Fetch | Edit | Compile | Install | Prove


def source_steps(source: LockedSource) -> list[SourceStep]:
    """From an address to modules that can be imported."""
    build = source.build
    flags = tuple(flag if flag.startswith("-") else f"--{flag}" for flag in (build.flags if build else ()))
    steps: list[SourceStep] = [Fetch(tuple(trees(source)))]
    if source.patches:
        steps.append(Edit(source.patches))
    if build is not None and build.kind == "inplace":
        steps.append(Compile(flags))
    steps.append(Install(source.install, flags if source.install == "wheel" else ()))
    extensions = (build.extensions if build else None) or ()
    return [*steps, Prove(extensions)] if extensions else steps


def variables(variant: Variant, build: Mapping[str, Any]) -> dict[str, str]:
    """What all builds of sources see; `build` is that of the install request. PATH is nobody's business here."""
    settings = {"SOURCE_DATE_EPOCH": str(EPOCH), "PYTHONHASHSEED": "0", **build.get("variables", {})}
    if build.get("cuda_home"):
        settings["CUDA_HOME"] = str(build["cuda_home"])
    if build.get("arch_list"):
        settings["TORCH_CUDA_ARCH_LIST"] = ";".join(build["arch_list"])
    if build.get("jobs"):
        settings["MAX_JOBS"] = str(int(build["jobs"]))
    return settings | {name: value for name, value in sorted(variant.environment.items()) if isinstance(value, str)}


def kernels(source: LockedSource) -> list[str]:
    """What envbuild compiles beforehand and only envbuild can; without it the source does at its first start."""
    return [module.name for module in (source.build.modules if source.build else None) or ()]


def refuse_conda(variant: Variant) -> None:
    """Raise EnvbuildError `script-impossible` (exit 7) for what neither uv nor git installs."""
    if variant.conda is not None:
        raise EnvbuildError(
            "script-impossible",
            f"{variant.id} needs conda packages, which neither uv nor git installs",
            hint="`envbuild lock export --format conda-explicit` gives the list that conda and micromamba install",
        )
