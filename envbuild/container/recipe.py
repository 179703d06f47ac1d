"""What an image is made of, as lines of a Dockerfile in stages: uv, git, curl and the sources' own builds. Pure.

    wheelhouse             empty folders, or the folder of a bundle that is given to a build
    tools      sources     have a network and get everything by hash; nothing of them stays
    compilers  libraries   what an image lacks of its distribution, under `packages` and `runtime`
    packages   build       the environment, with compilers
    runtime                what runs

Nothing of envbuild is in the image: `envbuild image verify` brings its program and takes it away again. What only
envbuild does is left out: its stamp, the wheel store, compiling kernels beforehand, proof that a build had no network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from envbuild.catalog.toolchain import load_toolchain
from envbuild.container import build_stages, fetch_stages
from envbuild.container.base_images import AskedDigest
from envbuild.container.inside import ImageInputs, Inside, look_inside
from envbuild.container.instructions import Stage, comment
from envbuild.container.runtime_stage import runtime
from envbuild.errors import EnvbuildError
from envbuild.export import steps
from envbuild.model.lock import Variant
from envbuild.resolve.variant_checks import record_command
from envbuild.text import plural

_EMPTY = "# Empty unless you pass `--build-context wheelhouse=DIR`: a `bundle create STACK --engine container`."


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """Everything that an image is made from. `files`: name -> text of the context beside the Dockerfile.

    `notes` are for the head of the Dockerfile, `warnings` for the user.
    """

    stack: str
    profile: str
    prefix: str
    inside: Inside
    stages: tuple[Stage, ...]
    files: Mapping[str, str]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def variant(self) -> Variant:
        """The variant as it is built in the image."""
        return self.inside.variant

    @property
    def environment(self) -> str:
        """The folder of the environment in the image."""
        return self.inside.environment

    @property
    def tag(self) -> str:
        """The name that a built image gets."""
        return f"localhost/envbuild/{self.stack}:{self.profile}-{self.variant.digest[:12]}"

    @property
    def contents(self) -> str:
        """What is installed, in a few words."""
        variant = self.variant
        torch = f", torch {variant.torch}+{variant.flavour} among them" if variant.torch else ""
        sources = [f"{source.name}{' (edited)' if source.patches else ''}" for source in variant.sources]
        built = f"; built from source: {', '.join(sources)}" if sources else ""
        return f"Python {variant.python}, {plural(len(variant.packages), 'package')}{torch}{built}"

    def stage(self, name: str) -> Stage:
        """One stage by name."""
        return next(stage for stage in self.stages if stage.name == name)


def make_recipe(given: ImageInputs, digests: Mapping[str, AskedDigest]) -> ImageRecipe:
    """The recipe of one variant.

    Raises EnvbuildError: `hash-unrecorded` (exit 5), `script-impossible`, those of `look_inside` (7),
    `image-stage-clash`, `version-unusable`, `dockerfile-value` (2).
    """
    steps.refuse_conda(given.variant)
    inside = look_inside(given)
    stages = tuple(_stages(given, inside, digests))
    names = [stage.name for stage in stages]
    for stage in stages:
        # A builder looks for a stage of that name first.
        if stage.image.lower() in names:
            raise EnvbuildError(
                "image-stage-clash",
                f"the image {stage.image} has the name of a stage",
                why=f"the stages are {', '.join(names)}",
                hint=f"add its tag: `{stage.image}:latest`",
            )
    return ImageRecipe(
        stack=given.lock.stack,
        profile=given.lock.profile,
        prefix=given.prefix,
        inside=inside,
        stages=stages,
        files=_files(given, inside),
        notes=(*_notes(inside.variant, stages), *given.place.notes),
        warnings=tuple(_warnings(given, inside.variant, stages)),
    )


def _files(given: ImageInputs, inside: Inside) -> dict[str, str]:
    uv = next(tool for tool in load_toolchain().uv if tool.arch == inside.variant.machine)
    files = {fetch_stages.UV: f"uv=={uv.version} --hash=sha256:{uv.sha256}\n"}
    # On a base one line a package, so that a line can be taken out.
    between = " " if inside.on_base else " \\\n    "
    record = record_command(given.lock.stack, given.lock.profile)
    for name, packages in build_stages.requirements(inside).items():
        files[name] = "".join(f"{steps.requirement(package, record, between)}\n" for package in packages)
    return files | fetch_stages.edit_files(inside.variant)


def _notes(variant: Variant, stages: Sequence[Stage]) -> tuple[str, ...]:
    """What the head says; a string a paragraph."""
    images = {stage.name: stage.image for stage in stages}
    sources = "sources" in images
    compiles = "compiles the sources" if sources else "removes files that differ between two builds"
    system = [name for name in ("compilers", "libraries") if name in images]
    verb = "adds" if len(system) == 1 else "add"
    added = f"{' and '.join(f'`{name}`' for name in system)} {verb} system packages, " if system else ""
    lacks = ", without compilers" * (images["runtime"] != images["packages"])
    return (
        f"Build it for {variant.machine} with `docker build .` in this folder (BuildKit, podman or buildah). "
        "The build needs no envbuild. `envbuild image verify IMAGE` compares the image with the lock.",
        f"Stages: `tools` downloads the installers, {'`sources` the sources, ' * sources}{added}"
        f"`packages` downloads and installs the packages, `build` {compiles}, and `runtime` is the image{lacks}. "
        "As a test, `runtime` imports the modules of the stack once.",
    )


def _warnings(given: ImageInputs, variant: Variant, stages: Sequence[Stage]) -> Iterator[str]:
    """What the user has to know."""
    for image in dict.fromkeys(stage.image for stage in stages if not stage.digest and _is_of_registry(stage)):
        yield (
            f"the digest of {image} is not recorded, so its registry decides what the tag is today "
            "(`envbuild lock create STACK --image all` records it)"
        )
    if variant.arch_list == ():
        yield (
            f"the target {given.target.name} names no GPU, so extensions are compiled for what the torch of "
            "the base chooses"
        )


def _stages(given: ImageInputs, inside: Inside, digests: Mapping[str, AskedDigest]) -> Iterator[Stage]:
    variant, place = inside.variant, given.place

    def pinned(image: str) -> tuple[str, str | None]:
        """The image by its tag, and the digest that it names, that the lock has, or that its registry said."""
        plain, _, digest = image.partition("@sha256:")
        locked = variant.image
        if not digest and locked is not None and locked.name == plain and locked.digest != "unrecorded":
            digest = locked.digest
        if not digest and plain in digests:
            digest = digests[plain].digest
        return plain, digest or None

    def stage(name: str, image: str, lines: Iterator[str], above: str | None = None) -> Stage:
        return Stage(name, *pinned(image), tuple(lines), above)

    archives = build_stages.ARCHIVES in build_stages.requirements(inside)
    yield Stage(fetch_stages.WHEELHOUSE, "scratch", None, tuple(fetch_stages.wheelhouse()))
    yield stage("tools", place.fetch, fetch_stages.tools(inside, archives=archives))
    if variant.sources:
        yield stage("sources", place.fetch, fetch_stages.sources(inside, place), above="tools")
    compilers = "compilers" if place.system is not None or place.lacks else None
    libraries = "libraries" if place.system is not None or place.network is not None else None
    if compilers:
        yield stage(compilers, place.build, build_stages.for_building(place))
    if libraries:
        yield stage(libraries, place.runtime, build_stages.for_running(place))
    yield stage("packages", place.build, build_stages.packages(inside), above=compilers)
    yield stage("build", place.build, build_stages.build(inside), above="packages")
    # What compiles when it starts runs where it was built.
    compiles = any(steps.kernels(source) for source in variant.sources)
    last = place.build if compiles else place.runtime
    yield stage("runtime", last, runtime(given, inside, *pinned(last)), above=compilers if compiles else libraries)


def _is_of_registry(stage: Stage) -> bool:
    return stage.image != "scratch" and not stage.image.startswith("localhost/")


def render(recipe: ImageRecipe) -> str:
    """The whole Dockerfile, for any builder."""
    variant, command = recipe.variant, f"envbuild image dockerfile {recipe.stack}"
    head = [
        *comment(f"{recipe.stack}: {recipe.contents}."),
        *comment(
            f"Generated by `{command}`, which overwrites your edits. envbuild is a Python program that pins "
            f"environments. The versions and hashes are those of its lock file for {recipe.stack}: profile "
            f"{recipe.profile}, variant {variant.id}, `digest` {variant.digest}."
        ),
        *(line for note in recipe.notes for line in comment(note)),
        "",
        _EMPTY,
    ]
    lines: list[str] = []
    for stage in recipe.stages:
        lines.append("")
        if stage.above is None and stage.digest is not None:
            lines.append(f"# digest: sha256:{stage.digest}")
        elif stage.above is None and _is_of_registry(stage):
            lines.append("# The digest is not recorded: a later build may get another image under this tag.")
        pinned = f"{stage.image}@sha256:{stage.digest}" if stage.digest else stage.image
        lines += [f"FROM {stage.above or pinned} AS {stage.name}", *stage.lines]
    return "\n".join([*head, *lines[1:]]) + "\n"
