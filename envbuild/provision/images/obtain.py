"""The image that a run is about: what it is made from, built at most once here, and how it gets to nodes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from envbuild.container.base_images import Given
from envbuild.container.build import Options, build_image
from envbuild.container.builders import Builder, find_builder
from envbuild.container.recipe import ImageRecipe
from envbuild.container.verify_image import LABEL, variant_of
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.lock import Variant
from envbuild.model.target import ContainerSettings
from envbuild.node.image.load import archive_id
from envbuild.provision.run.context import Prepared
from envbuild.provision.run.run_dir import keep
from envbuild.regular_file import sha256_of

PREFIX = "/opt/envbuild"


@dataclass(frozen=True)
class Wanted:
    """The image that every node should run.

    `key`: sha256 of what decides its content; two runs with one key want the same image. `id` is known beforehand
    only where an image is pulled. `prefix` and `environment` are paths inside.
    """

    key: str
    name: str
    prefix: str
    environment: str
    variant: Variant
    recipe: ImageRecipe | None = None
    id: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Obtained:
    """An image that can go to nodes: as a file, or by a reference with a digest."""

    id: str
    archive: Path | None = None
    sha256: str | None = None
    pull: str | None = None

    @property
    def digest(self) -> str | None:
        """What the registry calls it."""
        return self.pull.partition("@")[2] if self.pull else None


def settings_of(prepared: Prepared) -> ContainerSettings:
    """The `container:` section of the target, or what holds without one."""
    return prepared.target.container or ContainerSettings()


def wanted(prepared: Prepared) -> Wanted:
    """What the target asks for. Raises what `recipe_for` raises, or `_pulled`."""
    settings = settings_of(prepared)
    if settings.image is not None:
        return _pulled(prepared, settings, settings.image)
    from envbuild.container.build import texts
    from envbuild.container.select import recipe_for

    given = Given(settings.base, settings.runtime_image, settings.fetch_image, settings.python, settings.glibc)
    recipe = recipe_for(prepared.reference, prepared.profile, prepared.choice.variant, prepared.choice.target, given)
    total = hashlib.sha256()
    for name, text in sorted(texts(recipe).items()):
        total.update(f"{name}\0{len(text)}\0{text}".encode())
    return Wanted(
        total.hexdigest(), recipe.tag, recipe.prefix, recipe.environment, recipe.variant, recipe,
        warnings=recipe.warnings,
    )  # fmt: skip


def _pulled(prepared: Prepared, settings: ContainerSettings, reference: str) -> Wanted:
    """An image of a registry, when its labels say that it is of this lock.

    Raises EnvbuildError `image-not-ours`, `image-of-another-lock` (exit 7), and what asking a registry raises.
    """
    from envbuild.container.registry import ask_config

    image, config = ask_config(reference, plain_http=settings.insecure)
    environment = str((config.get("Labels") or {}).get(f"{LABEL}environment", ""))
    if not environment.startswith(f"{PREFIX}/envs/"):
        raise EnvbuildError(
            "image-not-ours",
            f"{reference} was not built by envbuild",
            why="it has no label that names an environment",
            hint="`envbuild image build STACK --push REF` makes one",
            exit_code=ExitCode.REFUSED,
        )
    variant = variant_of(reference, prepared.lock, config)
    return Wanted(reference, reference, PREFIX, environment, variant, id=image)


def known_id(image: Wanted) -> str | None:
    """The id that the image has, or had when it was built here."""
    record = _remembered(image.key)
    return image.id or record.get("carried") or record.get("id")


def obtain(
    image: Wanted, prepared: Prepared, folder: Path, *, file: Callable[[str], bool], say: Callable[[str], None]
) -> Obtained:
    """The image, built at most once; `file`: whether a node needs the image with that id as a file, put into `folder`.

    Raises EnvbuildError: what building, saving and pushing raise.
    """
    settings = settings_of(prepared)
    if image.recipe is None:
        assert image.id is not None and settings.image is not None  # noqa: S101 - see `_pulled`
        return Obtained(image.id, pull=settings.image)
    builder = find_builder(settings.builder, builds=True)
    record = _remembered(image.key)
    if _id(builder, image.name) is None or _id(builder, image.name) != record.get("id"):
        options = Options(
            wheelhouses=tuple(Path(path).expanduser() for path in settings.wheelhouse),
            gitconfig=Path(settings.gitconfig).expanduser() if settings.gitconfig else None,
            on_line=None,
        )
        say(f"building the image with {builder.name}")
        made = build_image(image.recipe, builder, options)
        record = {"id": made["id"], "name": image.name, "builder": builder.name}
        keep(_memory(image.key), record)
    known = str(record.get("carried") or record["id"])
    path: Path | None = None
    pull: str | None = None
    if settings.registry is not None:
        pull, known = _push(builder, image, settings)
    elif file(known):
        path = folder / f"image-{known[:12]}.tar"
        path.unlink(missing_ok=True)
        say("writing the image to a file")
        builder.save(image.name, path)
        known = archive_id(str(path))
    if known != record["id"]:
        # Docker's id of an image in containerd's store is that of its manifest; ours is that of its configuration.
        keep(_memory(image.key), {**record, "carried": known})
    sha256 = sha256_of(path) if path else None
    return Obtained(known, path, sha256, pull)


def _push(builder: Builder, image: Wanted, settings: ContainerSettings) -> tuple[str, str]:
    """The reference by digest after a push, and the image's id. Raises EnvbuildError `image-id-differs` (exit 5)."""
    from envbuild.container.registry import ask_config, ask_image

    to = f"{settings.registry}:{image.name.rpartition(':')[2]}"
    builder.push(image.name, to, insecure=settings.insecure)
    digest = ask_image(to, plain_http=settings.insecure)[0]
    reference = f"{settings.registry}@sha256:{digest}"
    there, _ = ask_config(reference, plain_http=settings.insecure)
    if builder.id(image.name) not in (there, digest):
        raise EnvbuildError(
            "image-id-differs",
            f"{to} is not the image that was pushed",
            why=f"the registry has id {there[:12]}, the builder {builder.id(image.name)[:12]}",
            hint="use a tag that nobody else pushes to",
        )
    return reference, there


def _id(builder: Builder, name: str) -> str | None:
    try:
        return builder.id(name)
    except EnvbuildError:
        return None


def _memory(key: str) -> Path:
    return platformdirs.user_cache_path("envbuild") / "images" / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def _remembered(key: str) -> dict[str, Any]:
    try:
        record = json.loads(_memory(key).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) and isinstance(record.get("id"), str) else {}
