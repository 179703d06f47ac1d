"""The `container:` section of a target: where the image comes from, and how it is run on the nodes."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from envbuild.model.common import Public, StrictModel, Text

RuntimeName = Literal["podman", "docker", "apptainer", "enroot", "pyxis"]
_PATH = re.compile(r"(?:/[A-Za-z0-9._+-]+)+")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


def _word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise ValueError("must be a name of an image or a registry: letters, digits and ._/:@-")
    return value


def _pinned(value: str) -> str:
    if not re.fullmatch(r".+@sha256:[0-9a-f]{64}", _word(value)):
        raise ValueError("must end with the digest, as NAME@sha256:<64 hex>; a tag is what its registry gives today")
    name, _, digest = value.partition("@")
    return f"{without_tag(name)}@{digest}"


def without_tag(name: str) -> str:
    """The name of an image for a digest to follow: Apptainer and enroot refuse a tag and a digest at once."""
    above, slash, last = name.rpartition("/")
    return f"{above}{slash}{last.partition(':')[0]}"


def _mount(value: str) -> str:
    parts = value.split(":")
    paths = parts[:-1] if len(parts) == 3 and parts[-1] in ("ro", "rw") else parts
    if len(paths) > 2 or not all(path.startswith("/") and ".." not in path.split("/") for path in paths):
        raise ValueError("must be /from, /from:/to or /from:/to:ro")
    if "," in value:
        raise ValueError("must not hold a comma")
    return value


def not_option(value: str) -> str:
    """A value that no program takes for an option."""
    if not value or value.startswith("-"):
        raise ValueError("must not be empty or start with '-'")
    return value


def program_path(value: str) -> str:
    """A path of a program that nothing takes for more than that, in a shell or a Dockerfile."""
    if not _PATH.fullmatch(value) or ".." in value.split("/"):
        raise ValueError("must be an absolute path of letters, digits and ._+-")
    return value


def _device(value: str) -> str:
    if not value.startswith("/dev/") or ".." in value.split("/") or ":" in value:
        raise ValueError("must be a path below /dev")
    return value


Word = Annotated[Text, AfterValidator(_word)]
ProgramPath = Annotated[Text, AfterValidator(program_path)]
Here = Annotated[Text, Field(pattern=r"^(/|~/)")]
Mount = Annotated[Text, AfterValidator(_mount)]
Device = Annotated[Text, AfterValidator(_device)]


class ContainerSettings(StrictModel):
    """How images reach the nodes of a target and run there.

    `image`: pulled by the nodes, and nothing is built.
    `registry`: what is built is pushed to this repository and pulled by digest; without one a file is sent over SSH.
    `build`: where images may be built. `base`, `runtime_image`, `fetch_image`, `python`, `glibc`, `wheelhouse`,
    `gitconfig` and `builder` are those of `image build`. `ipc: host` or `shm_size` (`16g`), the first where
    neither is said. `gpus: auto`: where the node has some. `devices` are added to those of InfiniBand, `mounts` are
    `/from:/to:ro`, `options` go to the runtime as they are.
    """

    runtime: Literal["auto"] | RuntimeName = "auto"
    image: Annotated[Text, AfterValidator(_pinned)] | None = None
    registry: Word | None = None
    insecure: bool = False
    build: Literal["here", "job"] = "here"
    builder: Literal["buildah", "podman", "docker"] | None = None
    base: Word | None = None
    runtime_image: Word | None = None
    fetch_image: Word | None = None
    python: ProgramPath | None = None
    glibc: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")] | None = None
    wheelhouse: tuple[Here, ...] = ()
    gitconfig: Here | None = None
    ipc: Literal["host", "private"] | None = None
    shm_size: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,5}[mg]$")] | None = None
    gpus: Literal["auto", "all", "none"] = "auto"
    devices: tuple[Device, ...] = ()
    mounts: tuple[Mount, ...] = ()
    options: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _one_kind_of_memory(self) -> Self:
        if self.shm_size is not None and self.ipc == "host":
            raise ValueError("`shm_size` and `ipc: host` exclude each other: the node's own /dev/shm has its own size")
        if self.image is not None and self.registry is not None:
            raise ValueError("`image` is pulled and `registry` is pushed to: say one of them")
        return self


class ImageEvidence(StrictModel):
    """The image that a node runs: `id` is the sha256 (hex) of its configuration, equal wherever it is the same image.

    `digest` is what a registry called it. `launcher`: the program on the node that runs a command inside.
    """

    runtime: Public[str]
    version: Public[str | None] = None
    id: Public[str]
    name: str
    digest: Public[str | None] = None
    launcher: str | None = None
