"""Base images (`catalog/containers.yaml`), where a variant is built and run, and recorded digests."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from envbuild import resources
from envbuild.catalog.validation import read_model
from envbuild.errors import EnvbuildError, writing
from envbuild.model.common import AbsPath, Name, Sha256, StrictModel, Text
from envbuild.model.lock import Variant
from envbuild.node import paths
from envbuild.regular_file import parse_toml, read_file
from envbuild.resolve.artifacts import Numbers, dotted, flavour_cuda, numbers
from envbuild.resolve.variant_checks import needs_nvcc

Version = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")]


DebianName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")]
DebianPackages = Annotated[tuple[DebianName, ...], Field(min_length=1)]

# An extended resource of Kubernetes.
RESOURCE = r"[a-z0-9.-]{1,253}/[A-Za-z0-9._-]{1,63}"


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
    """An image that a stack builds on: the interpreter that has its packages, its C library and CUDA."""

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
    rdma: Annotated[str, Field(pattern=f"^{RESOURCE}$")] | None = None
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
        for image in self.cuda:
            if image.cuda == cuda:
                return image
        raise EnvbuildError(
            "image-base-unknown",
            f"envbuild knows no image with the CUDA {cuda} toolkit",
            why=f"the catalog has {', '.join(image.cuda for image in self.cuda)}",
            hint="name one with `--base-image IMAGE`",
        )


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


def read_digests(path: Path | None = None) -> dict[str, AskedDigest]:
    """Reference -> digest; empty where nobody asked yet. Raises EnvbuildError `file-unreadable` (exit 2)."""
    path = path or resources.lockfiles() / "images.toml"
    try:
        data = parse_toml(read_file(path).decode("utf-8"))
        return {name: AskedDigest.from_plain(value) for name, value in data.get("images", {}).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise EnvbuildError("file-unreadable", f"{path} cannot be read", why=str(error)[:300]) from None


def write_digests(digests: dict[str, AskedDigest], path: Path) -> None:
    """Write them, by reference, whole or not at all. Raises EnvbuildError `output-unwritable` (exit 2)."""
    import tomlkit

    images = {name: digests[name].to_json_dict() for name in sorted(digests)}
    text = "# Digests of images by their tags, from their registries (`envbuild lock create STACK --image all`).\n"
    with writing(path):
        paths.write_whole(str(path), (text + tomlkit.dumps({"images": images})).encode())


# Where the registry of references without a host answers; `docker.io` itself is a web site.
_DEFAULT_HOST, _DEFAULT_API = "docker.io", "registry-1.docker.io"
_REFERENCE = re.compile(
    r"(?:(?P<host>[A-Za-z0-9.-]+(?::[0-9]+)?)/)?(?P<path>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True, slots=True)
class Reference:
    """An image reference, taken apart: host, path, tag, digest (`sha256:…`, empty where there is none)."""

    host: str
    path: str
    tag: str
    digest: str

    @property
    def api(self) -> str:
        """Host of the API."""
        return _DEFAULT_API if self.host == _DEFAULT_HOST else self.host


def parse_reference(text: str) -> Reference:
    """Take a reference apart as docker does. Raises EnvbuildError `image-reference` (exit 2)."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise EnvbuildError(
            "image-reference",
            f"{text[:100]!r} is not an image reference",
            why="the form is host/path:tag@sha256:digest, with a lower-case path; only the path is required",
            hint="for example `debian:bookworm`",
        )
    host, path = match["host"] or "", match["path"]
    # The first part is a host only when it looks like one.
    if host and not ("." in host or ":" in host or host == "localhost"):
        host, path = "", f"{host}/{path}"
    if not host:
        host, path = _DEFAULT_HOST, path if "/" in path else f"library/{path}"
    elif host == _DEFAULT_HOST and "/" not in path:
        path = f"library/{path}"
    return Reference(host, path, match["tag"] or "latest", match["digest"] or "")


@dataclass(frozen=True, slots=True)
class Place:
    """Images by stage. `python`: the interpreter in the image, None: a standalone build goes in.

    `glibc` is empty where nobody said it; `cuda` is the release of the toolkit in the build image. `lacks`:
    packages that the build image does not have, for building alone, and why; `network`: what the runtime image does
    not have. `same_cuda`: the release which both the toolkit and torch are of, where both are known.
    """

    fetch: str
    build: str
    runtime: str
    python: str | None
    glibc: Numbers
    cuda: str | None = None
    system: SystemPackages | None = None
    lacks: Mapping[str, str] = field(default_factory=dict)
    network: NetworkPackages | None = None
    same_cuda: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """The user's choice instead of the catalog's: images, the path of an interpreter in them, their glibc (`2.36`)."""

    base: str | None = None
    runtime: str | None = None
    fetch: str | None = None
    python: str | None = None
    glibc: str | None = None


def find_place(variant: Variant, containers: Containers, stack: StackImage | None, given: Given | None = None) -> Place:
    """The place of a variant.

    Raises EnvbuildError: `image-base-unfit`, `image-base-unknown` (exit 7), `image-reference` (2).
    """
    for name in filter(None, (given.base, given.runtime, given.fetch) if given else ()):
        parse_reference(name)
    if variant.base.kind == "image":
        image = _on_image(variant, containers)
    elif variant.base.kind == "none":
        image = _on_nothing(variant, containers)
    else:
        raise EnvbuildError(
            "image-base-unfit",
            f"{variant.id} builds on the base `{variant.base.kind}` of a node, which an image does not have",
            hint="choose a profile or `--variant` with `base: none` or an image as its base",
        )
    given, notes = given or Given(), list[str]()
    runtime, system, network = image.runtime, None, None
    if stack is not None:
        system = stack.system
        network = stack.network if image.lacks and not (given.base or given.runtime) else None
        if stack.compiles_at_start and variant.base.kind == "none":
            runtime = image.build
            notes.append(f"The image that runs keeps the compilers: {stack.compiles_at_start}.")
        if stack.why:
            notes.append(f"Profile {stack.profile}: {stack.why}.")
    return Place(
        fetch=given.fetch or image.fetch,
        build=given.base or image.build,
        runtime=given.runtime or given.base or runtime,
        python=given.python or (None if given.base and variant.base.kind == "none" else image.python),
        glibc=numbers(given.glibc) if given.glibc or given.base else image.glibc,
        cuda=image.cuda,
        system=None if given.base else system,
        lacks={} if given.base else image.lacks,
        network=network,
        same_cuda=None if given.base or image.cuda != dotted(flavour_cuda(variant.flavour)) else image.cuda,
        notes=tuple(notes),
    )


def _on_image(variant: Variant, containers: Containers) -> Place:
    image = str(variant.base.image)
    # Whatever its digest.
    known = next((base for base in containers.bases if base.image == image.partition("@")[0]), None)
    if known is None:
        return Place(containers.fetch, image, image, "/usr/bin/python3", ())
    return Place(containers.fetch, image, image, known.python, numbers(known.glibc), known.cuda)


def _on_nothing(variant: Variant, containers: Containers) -> Place:
    compiled = any(source.build is not None and needs_nvcc(source.build) for source in variant.sources)
    cuda = dotted(flavour_cuda(variant.flavour))
    if compiled and cuda:
        image, names = containers.cuda_image(cuda), containers.cuda_images
        build = names.build.format(version=image.version, os=image.os)
        runtime = names.runtime.format(version=image.version, os=image.os)
        return Place(containers.fetch, build, runtime, None, numbers(image.glibc), cuda, lacks=names.lacks)
    plain = containers.plain
    runtime = plain.runtime.format(python=variant.python)
    build = plain.build.format(python=variant.python) if variant.sources else runtime
    python = None if variant.interpreter.kind == "standalone" else plain.python.format(python=variant.python)
    return Place(containers.fetch, build, runtime, python, numbers(plain.glibc))
