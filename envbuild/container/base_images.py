"""What images are built on (`catalog/containers.yaml`), and the digests of images that a registry was asked for."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import Field

from envbuild import resources
from envbuild.catalog.validation import read_model
from envbuild.errors import EnvbuildError
from envbuild.model.common import AbsPath, Name, Sha256, StrictModel, Text
from envbuild.node import paths
from envbuild.regular_file import read_file

Version = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")]


DebianName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")]
DebianPackages = Annotated[tuple[DebianName, ...], Field(min_length=1)]


class Plain(StrictModel):
    """Images with a Python and without CUDA; `{python}` is the minor version."""

    build: Text
    runtime: Text
    python: Text
    glibc: Version


class CudaImage(StrictModel):
    """One release of CUDA: the `version` and `os` of NVIDIA's tags, and the C library of that system."""

    cuda: Version
    version: Text
    os: Text
    glibc: Version


class CudaImages(StrictModel):
    """References with `{version}` and `{os}`. `lacks`: packages that only building needs, and why."""

    build: Text
    runtime: Text
    lacks: dict[DebianName, Text]


class KnownBase(StrictModel):
    """An image that a stack stands on: the interpreter that has its packages, its C library and CUDA."""

    image: Text
    python: AbsPath
    glibc: Version
    cuda: Version


class SystemPackages(StrictModel):
    """Packages of the base's distribution as its archive was at `snapshot` (UTC)."""

    snapshot: Annotated[str, Field(pattern=r"^20[0-9]{6}T[0-9]{6}Z$")]
    packages: DebianPackages


class NetworkPackages(StrictModel):
    """Packages of the distribution that communication across nodes loads and the image that runs lacks, and why."""

    packages: DebianPackages
    why: Text


Quantity = Annotated[str, Field(pattern=r"^[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?$")]


class Pods(StrictModel):
    """The pods that a stack's document runs in: how many, and what each has; `rdma` is a resource of a device plugin.

    `shm` is the size of /dev/shm, `port` where the ranks meet.
    """

    replicas: Annotated[int, Field(ge=1, le=1000)]
    gpus: Annotated[int, Field(ge=0, le=64)]
    cpus: Annotated[int, Field(ge=1, le=4096)]
    memory: Quantity
    disk: Quantity
    shm: Quantity
    rdma: Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")] | None = None
    port: Annotated[int, Field(ge=1024, le=65535)] = 6000


class StackImage(StrictModel):
    """Which profile, variant and target a stack's image is of; `why` where the profile is not the stack's default.

    `compiles_at_start`: why the image that runs needs the compilers too. `network`: for an image of NVIDIA's toolkit.
    """

    profile: Name
    variant: Name
    target: Name
    why: Text | None = None
    compiles_at_start: Text | None = None
    system: SystemPackages | None = None
    network: NetworkPackages | None = None
    pods: Pods | None = None


class Containers(StrictModel):
    """The whole file."""

    prefix: AbsPath
    fetch: Text
    plain: Plain
    cuda: tuple[CudaImage, ...]
    cuda_images: CudaImages
    bases: tuple[KnownBase, ...]
    unverified: tuple[Text, ...] = ()
    stacks: dict[Name, StackImage]

    def cuda_image(self, cuda: str) -> CudaImage:
        """The toolkit image of a CUDA release. Raises EnvbuildError `image-base-unknown` (exit 7)."""
        for each in self.cuda:
            if each.cuda == cuda:
                return each
        raise EnvbuildError(
            "image-base-unknown",
            f"no image with the toolkit of CUDA {cuda} is known",
            why=f"the catalog has {', '.join(each.cuda for each in self.cuda)}",
            hint="name one with `--base-image IMAGE`",
        )

    def known_base(self, image: str) -> KnownBase | None:
        """What is known of an image that a stack stands on, whatever its digest."""
        name = image.partition("@")[0]
        return next((each for each in self.bases if each.image == name), None)


class AskedDigest(StrictModel):
    """What a registry said of a tag, and on which day.

    `platforms`: `OS/ARCHITECTURE[/VARIANT]` -> digest, where `digest` is that of an index. `witness`: who says it,
    where no registry was asked.
    """

    digest: Sha256
    asked: Text
    platforms: dict[Text, Sha256] = {}
    witness: Text | None = None


@functools.cache
def load_containers() -> Containers:
    """The shipped file."""
    return read_model(Containers, resources.catalog() / "containers.yaml")


def digests_path() -> Path:
    """Where digests of images lie."""
    return resources.lockfiles() / "images.toml"


def read_digests(path: Path | None = None) -> dict[str, AskedDigest]:
    """Reference -> digest; empty where nobody asked yet. Raises EnvbuildError `file-unreadable` (exit 2)."""
    path = path or digests_path()
    try:
        data = tomllib.loads(read_file(path).decode("utf-8"))
        return {name: AskedDigest.from_plain(value) for name, value in data.get("images", {}).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise EnvbuildError("file-unreadable", f"{path} cannot be read", why=str(error)[:300]) from None


def write_digests(found: dict[str, AskedDigest], path: Path | None = None) -> None:
    """Write them, by reference, whole or not at all. Raises EnvbuildError `output-unwritable` (exit 2)."""
    import tomlkit

    images = {name: found[name].to_json_dict() for name in sorted(found)}
    text = "# Digests of images by their tags, from their registries (`envbuild lock create STACK --image all`).\n"
    path = path or digests_path()
    try:
        paths.write_whole(str(path), (text + tomlkit.dumps({"images": images})).encode())
    except OSError as error:
        why = error.strerror or str(error)
        raise EnvbuildError("output-unwritable", f"{path} cannot be written", why=why) from error
