"""The programs that envbuild puts on a node by digest: today standalone builds of CPython (`toolchain.yaml`)."""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

from packaging.version import Version
from pydantic import Field, model_validator

from envbuild import resources
from envbuild.catalog.validation import read_model
from envbuild.errors import EnvbuildError
from envbuild.model.common import Sha256, StrictModel, Text, WebUrl, all_differ


class ToolchainPython(StrictModel):
    """One standalone CPython: an archive whose top folder is `python/` with `bin/python3` in it.

    `size` in bytes where it is recorded; `witness` names whose record the digest is.
    """

    name: Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
    version: Annotated[Text, Field(pattern=r"^3\.[0-9]{1,2}\.[0-9]{1,3}$")]
    arch: Literal["x86_64", "aarch64"]
    libc: Literal["gnu", "musl"] = "gnu"
    sha256: Sha256
    url: WebUrl
    size: Annotated[int, Field(ge=1)] | None = None
    witness: Text

    @property
    def minor(self) -> str:
        """The minor version, as `3.12`."""
        return ".".join(self.version.split(".")[:2])


class ToolchainUv(StrictModel):
    """One wheel of uv, for images: they fetch it like any other file of a lock."""

    version: Text
    arch: Literal["x86_64", "aarch64"]
    file: Annotated[Text, Field(pattern=r"^uv-[A-Za-z0-9._+-]+\.whl$")]
    sha256: Sha256
    witness: Text


class Toolchain(StrictModel):
    """All pinned builds."""

    # Named `builds` in code because `pythons` below is the view that locks use.
    builds: tuple[ToolchainPython, ...] = Field(alias="pythons")
    uv: tuple[ToolchainUv, ...] = ()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        all_differ((build.name for build in self.builds), "two builds have the same name")
        return self

    @property
    def pythons(self) -> dict[str, ToolchainPython]:
        """Minor version to its newest build for linux x86_64 with glibc."""
        return {build.minor: build for build in self._newest_last() if (build.arch, build.libc) == ("x86_64", "gnu")}

    def find_python(self, version: str, arch: str = "x86_64", libc: str = "gnu") -> ToolchainPython:
        """The newest build of a minor (`3.12`) or the build of a full version (`3.12.16`).

        `libc` as facts say it (`glibc`, `musl`) or as the builds do (`gnu`). Raises EnvbuildError
        `interpreter-missing`, exit 7.
        """
        wanted_libc = "gnu" if libc == "glibc" else libc
        fitting = [b for b in self._newest_last() if version in (b.version, b.minor)]
        for build in reversed(fitting):
            if (build.arch, build.libc) == (arch, wanted_libc):
                return build
        raise EnvbuildError(
            "interpreter-missing",
            f"no standalone CPython {version} for linux {arch} with {libc}",
            why=f"the toolchain pins {', '.join(sorted({b.minor for b in self.builds}, key=Version)) or 'none'}",
            hint="install that Python on the node, or name a toolchain file that has it (config key `toolchain`)",
        )

    def by_name(self, name: str) -> ToolchainPython:
        """The build that a lock names. Raises EnvbuildError `interpreter-missing`, exit 7."""
        for build in self.builds:
            if build.name == name:
                return build
        raise EnvbuildError(
            "interpreter-missing",
            f"the toolchain does not have {name}",
            why="a lock names it; neither the shipped nor the configured toolchain file has it",
            hint="name a toolchain file that has it (config key `toolchain`), or run `envbuild lock create STACK`",
        )

    def _newest_last(self) -> list[ToolchainPython]:
        return sorted(self.builds, key=lambda build: Version(build.version))


@cache
def load_toolchain(path: Path | None = None) -> Toolchain:
    """The shipped toolchain, or the file at `path` of the same shape. Raises EnvbuildError `manifest-*`, exit 2."""
    return read_model(Toolchain, path or resources.catalog() / "toolchain.yaml")
