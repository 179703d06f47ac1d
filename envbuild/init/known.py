"""What the catalog knows about distributions, modules and torch releases, as drafts ask for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date
from functools import cache
from pathlib import PurePosixPath
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild import resources
from envbuild.catalog.indexes import load_distributions
from envbuild.catalog.yaml_load import load_yaml
from envbuild.resolve.compat import Compat
from envbuild.resolve.compat_read import load_compat

_TORCHVISION_OF_2 = 15


class Repository(NamedTuple):
    """Where a package's code is, and how nvcc compiles it: its release tags are `tags` and the version."""

    git: str
    tags: str
    extensions: Sequence[str]
    forced: str  # the variable that forbids its setup.py to fetch a wheel
    submodules: bool = False
    memory_per_job: float = 0


class Compiled(NamedTuple):
    """How a package or repository is built; `wheel`: whether an index has one."""

    cuda: str = ""
    torch: bool = False
    wheel: bool = True
    below: str = ""
    source: Repository | None = None


class Known(NamedTuple):
    """Torch's release days, the compat data, and the tables of `catalog/distributions.yaml` under their own names."""

    torch_days: Mapping[str, date]
    torch_cudnn: Mapping[str, str]
    compat: Compat
    compiled: Mapping[str, Compiled]
    modules: Mapping[str, str]
    from_source: Mapping[str, str]
    vendors: Collection[str]
    want_torch: Collection[str]
    moved: Mapping[str, str]
    built_for: Mapping[str, Mapping[str, str]]
    conda_only: Collection[str]
    other_systems: Collection[str]
    gone: Mapping[str, str]
    first_wheels: Mapping[str, Mapping[str, str]]
    undeclared: Mapping[str, Sequence[str]]

    def compiled_package(self, requirement: Requirement) -> Compiled | None:
        """How a package of an index is built, where that is known for what is asked for."""
        row = self.compiled.get(str(canonicalize_name(requirement.name)))
        if row is None or not row.below:
            return row
        exact = exact_version(requirement.specifier)
        return row if exact and Version(exact) < Version(row.below) else None

    def compiled_source(self, url: str) -> Compiled | None:
        """How a repository is built, by its last name."""
        return self.compiled.get(str(canonicalize_name(PurePosixPath(url).name)))

    def torch_of(self, requirement: Requirement) -> str:
        """The torch release (`2.6.0`, or `2.6`) that an exact version of a package is built for; empty if unknown."""
        name, exact = str(canonicalize_name(requirement.name)), exact_version(requirement.specifier)
        listed = self.built_for.get(name, {}).get(exact, "")
        if listed or name not in ("torchvision", "torchaudio") or not exact:
            return listed
        version = Version(exact)
        if name == "torchaudio":
            return f"{version.major or 1}.{version.minor}"
        # torchvision 0.N goes with torch 1.(N-1), and from 0.15 on with 2.(N-15).
        first = _TORCHVISION_OF_2
        return f"1.{version.minor - 1}" if version.minor < first else f"2.{version.minor - first}"

    def has_no_wheel(self, requirement: Requirement, python: str) -> bool:
        """Whether the exact version of a package is older than its first wheel for a Python."""
        exact = exact_version(requirement.specifier)
        first = self.first_wheels.get(str(canonicalize_name(requirement.name)), {}).get(python)
        return bool(first and exact and Version(exact) < Version(first))

    def torch_as_of(self, day: date | None, specifier: SpecifierSet | None = None) -> str:
        """The newest torch release of the catalog on a day; empty where none fits."""
        fitting = [
            version
            for version, released in self.torch_days.items()
            if (day is None or released <= day) and (specifier is None or specifier.contains(version))
        ]
        return max(fitting, key=Version, default="")

    def torch_pythons(self, torch: str) -> tuple[str, ...]:
        """The Python minors that a torch release has wheels for, the newest first."""
        release = self.compat.torch.get(torch)
        tags = release.tags.get("x86_64", ()) if release else ()
        return tuple(sorted((f"3.{tag[3:]}" for tag in tags if tag[3:].isdigit()), key=Version, reverse=True))


def exact_version(specifier: SpecifierSet) -> str:
    """The one version that a specifier names; empty where it leaves a choice."""
    for item in specifier:
        if item.operator in ("==", "===") and not item.version.endswith(".*"):
            try:
                return str(Version(item.version))
            except InvalidVersion:
                return ""
    return ""


@cache
def load_known() -> Known:
    """Read the catalog once."""
    data = load_distributions()
    details = load_yaml(resources.catalog() / "compat" / "torch_details.yaml")["releases"]
    days = {version: date.fromisoformat(str(row["date"])) for version, row in details.items() if row.get("date")}
    compiled = {
        name: Compiled(**row | {"source": Repository(**row["source"]) if "source" in row else None})
        for name, row in data["compiled"].items()
    }
    pins = {version: row.get("pypi_pin", {}).get("cudnn") for version, row in details.items()}
    cudnn = {version: str(pin) for version, pin in pins.items() if pin}
    tables = {name: data[name] for name in Known._fields if name in data} | {"compiled": compiled}
    return Known(torch_days=days, torch_cudnn=cudnn, compat=load_compat(), **tables)
