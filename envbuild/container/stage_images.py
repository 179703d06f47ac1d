"""Where a variant is built and run: the images of its stages, the interpreter, the C library, the toolkit. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envbuild.container.base_images import Containers, NetworkPackages, StackImage, SystemPackages
from envbuild.errors import EnvbuildError
from envbuild.model.lock import Variant
from envbuild.resolve.artifacts import Numbers, dotted, flavour_cuda, numbers
from envbuild.resolve.variant_checks import needs_nvcc


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
    """What a user says instead of the catalog: images, the path of an interpreter in them, their glibc (`2.36`)."""

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
        from envbuild.container.registry import parse_reference  # with what asks registries

        parse_reference(name)
    if variant.base.kind == "image":
        found = _on_image(variant, containers)
    elif variant.base.kind == "none":
        found = _on_nothing(variant, containers)
    else:
        raise EnvbuildError(
            "image-base-unfit",
            f"{variant.id} stands on what a node has (base {variant.base.kind}), and an image has nothing of a node",
            hint="choose a profile or `--variant` that stands on nothing or on an image",
        )
    given, notes = given or Given(), tuple[str, ...]()
    runtime, system, network = found.runtime, None, None
    if stack is not None and stack.compiles_at_start and variant.base.kind == "none":
        runtime = found.build
        notes += (f"The image that runs keeps the compilers: {stack.compiles_at_start}.",)
    if stack is not None:
        system = stack.system
        network = stack.network if found.lacks and not (given.base or given.runtime) else None
    if stack is not None and stack.why:
        notes += (f"Profile {stack.profile}: {stack.why}.",)
    base = given.base or found.build
    return Place(
        fetch=given.fetch or found.fetch,
        build=base,
        runtime=given.runtime or given.base or runtime,
        python=given.python or (None if given.base and variant.base.kind == "none" else found.python),
        glibc=numbers(given.glibc) if given.glibc or given.base else found.glibc,
        cuda=found.cuda,
        system=None if given.base else system,
        lacks={} if given.base else found.lacks,
        network=network,
        same_cuda=None if given.base or found.cuda != dotted(flavour_cuda(variant.flavour)) else found.cuda,
        notes=notes,
    )


def _on_image(variant: Variant, containers: Containers) -> Place:
    image = str(variant.base.image)
    known = containers.known_base(image)
    if known is None:
        return Place(containers.fetch, image, image, "/usr/bin/python3", ())
    return Place(containers.fetch, image, image, known.python, numbers(known.glibc), known.cuda)


def _on_nothing(variant: Variant, containers: Containers) -> Place:
    compiled = any(source.build is not None and needs_nvcc(source.build) for source in variant.sources)
    cuda = dotted(flavour_cuda(variant.flavour))
    if compiled and cuda:
        image = containers.cuda_image(cuda)
        words = {"version": image.version, "os": image.os}
        build = containers.cuda_images.build.format(**words)
        runtime = containers.cuda_images.runtime.format(**words)
        lacks = containers.cuda_images.lacks
        return Place(containers.fetch, build, runtime, None, numbers(image.glibc), cuda, lacks=lacks)
    plain = containers.plain
    runtime = plain.runtime.format(python=variant.python)
    build = plain.build.format(python=variant.python) if variant.sources else runtime
    python = None if variant.interpreter.kind == "standalone" else plain.python.format(python=variant.python)
    return Place(containers.fetch, build, runtime, python, numbers(plain.glibc))
