"""The conda part of a profile (`conda:` in a stack file) and of a locked variant."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from envbuild.model.common import Name, PackageName, Sha256, StrictModel, Text, Unpacked, WebUrl, all_differ

CondaName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_][a-z0-9_.-]{0,126}$")]
CondaVersion = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+!-]{0,126}$")]
MatchSpecText = Annotated[Text, StringConstraints(pattern=r"^[^-/.][^/]*$")]
Subdir = Literal["linux-64", "linux-aarch64", "noarch"]
LockPlatform = Literal["linux_x86_64", "linux_aarch64"]
SUBDIRS: dict[LockPlatform, Subdir] = {"linux_x86_64": "linux-64", "linux_aarch64": "linux-aarch64"}
VirtualName = Literal["__glibc", "__cuda", "__linux", "__archspec", "__unix"]


class CondaChannel(StrictModel):
    """A channel by its name; `url` only if the user's conda configuration does not resolve the name."""

    name: Name
    url: WebUrl | None = None


class CondaSpec(StrictModel):
    """What conda contributes to a profile, beside `python`, which the profile says.

    `packages` are match specs. `provides`: distribution (as pip calls it) to the conda package that stands in for it;
    pip's resolver leaves it out. `virtual`: sets of virtual packages to solve for where no node's facts are given,
    the preferred one first (`{__glibc: "2.28", __cuda: "11.3"}`). `link_scripts`: packages whose post-link script may
    run. `only`: the profile has no environment of the engine venv. `allow_defaults`: Anaconda's `defaults` may be used.
    """

    channels: Annotated[tuple[CondaChannel, ...], Field(min_length=1)] = (CondaChannel(name="conda-forge"),)
    packages: tuple[MatchSpecText, ...] = ()
    provides: dict[PackageName, CondaName] = {}
    virtual: tuple[dict[VirtualName, Text], ...] = ()
    link_scripts: tuple[CondaName, ...] = ()
    only: bool = False
    allow_defaults: bool = False

    @model_validator(mode="after")
    def _channels_are_unique(self) -> Self:
        all_differ((channel.name for channel in self.channels), "two channels have the same name")
        return self


class CondaPackage(StrictModel):
    """One archive of a channel. `size` in bytes; `requires`: the match specs of virtual packages that it depends on."""

    name: CondaName
    version: CondaVersion
    build: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.+]{1,126}$")]
    channel: Name
    subdir: Subdir
    file: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+!-]*\.(conda|tar\.bz2)$")]
    sha256: Sha256
    size: Annotated[int, Field(ge=0)] | None = None
    unpacked: Unpacked | None = None
    requires: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _the_file_is_named_for_the_package(self) -> Self:
        stem = self.file.removesuffix(".conda").removesuffix(".tar.bz2")
        if stem != f"{self.name}-{self.version}-{self.build}":
            raise ValueError(f"{self.file} is not the name of {self.name} {self.version} {self.build}")
        return self


class LockedConda(StrictModel):
    """The conda part of a variant: its packages in order of installation.

    `provides`: distribution to the conda package that holds it. `solved_for`: the virtual packages of the solution (for
    reading; what a node must have stands at each package). `unrecorded` says why there are no packages yet.
    """

    packages: tuple[CondaPackage, ...] = ()
    provides: dict[PackageName, CondaName] = {}
    link_scripts: tuple[CondaName, ...] = ()
    solved_for: dict[VirtualName, Text] = {}
    unrecorded: Text | None = None

    @property
    def distributions(self) -> dict[str, str]:
        """Distribution to version, of those that conda provides and the lock has recorded."""
        versions = {each.name: each.version for each in self.packages}
        return {name: versions[conda] for name, conda in self.provides.items() if conda in versions}

    @model_validator(mode="after")
    def _packages_or_the_reason(self) -> Self:
        if bool(self.packages) == (self.unrecorded is not None):
            raise ValueError("`packages`, or `unrecorded` with the reason why there are none")
        all_differ((package.name for package in self.packages), "two conda packages have the same name")
        return self
