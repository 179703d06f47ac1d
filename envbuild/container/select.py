"""From what a user names to a recipe: stack, profile, variant and target, with the catalog's choice where unsaid."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envbuild import resources
from envbuild.catalog.loader import load_stack, load_target, lock_path, pick_profile, refuse_template
from envbuild.container.base_images import Given, StackImage, find_place, load_containers, read_digests
from envbuild.container.inside import ImageInputs
from envbuild.container.recipe import ImageRecipe, make_recipe
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.agreement import refuse_edited
from envbuild.lock.files import read_lock
from envbuild.model.lock import Lock, Variant
from envbuild.model.target import Target
from envbuild.resolve.compat_read import load_compat
from envbuild.resolve.request import named_variant


@dataclass(frozen=True, slots=True)
class LockedStack:
    """A stack with the lock of one profile; `known`: what the catalog says of its image."""

    shipped: bool
    lock: Lock
    path: Path
    known: StackImage | None


def locked_stack(stack: str, profile: str | None = None) -> LockedStack:
    """The lock of a stack. Raises what reading both and `refuse_edited` raise."""
    loaded = load_stack(stack)
    known = load_containers().stacks.get(loaded.stack.name) if loaded.shipped else None
    profile = pick_profile(loaded, profile or (known.profile if known else None))
    path = lock_path(loaded, profile)
    lock = read_lock(path)
    refuse_edited(lock, loaded.stack, profile, path.name)
    return LockedStack(loaded.shipped, lock, path, known)


def recipe_for(
    stack: str, profile: str | None = None, variant: str | None = None, target: str | None = None,
    given: Given | None = None,
) -> ImageRecipe:  # fmt: skip
    """The recipe of what the user said; None: the catalog's choice.

    Raises what reading stack, lock and target raises, and what `make_recipe` raises.
    """
    containers, locked = load_containers(), locked_stack(stack, profile)
    lock, known = locked.lock, locked.known
    # The shipped choice of a variant is one of its own profile.
    usual = known if known is not None and known.profile == lock.profile else None
    digests = {**read_digests(), **read_digests(locked.path.with_name("images.toml"))}
    asked = image_target(target, known)
    chosen = _variant(lock, variant or (usual.variant if usual else None))
    if chosen.outside:
        raise EnvbuildError(
            "engine-fits",
            f"the source {chosen.outside} uses folders of a node (`path:` or `outputs:`), which no image has",
            hint="pin it by `git:` and `commit:` in the stack file, without `outputs:`",
            exit_code=ExitCode.REFUSED,
        )
    about = usual
    if about is None and known is not None:  # why a profile was chosen only where it was
        about = known.model_copy(update={"why": None, "system": None, "pods": None})
    place = find_place(chosen, containers, about, given)
    return make_recipe(ImageInputs(lock, chosen, asked, place, containers.prefix, load_compat()), digests)


def image_target(asked: str | None, known: StackImage | None) -> Target:
    """The target of an image: asked for, else what the catalog says. Raises what reading it raises."""
    loaded = load_target(asked or (known.target if known else "local"), template=True)
    refuse_template(loaded, contacted=False)
    return loaded.target


def _variant(lock: Lock, asked: str | None) -> Variant:
    """The variant asked for; else, of those that uv makes where there are any, the first on an image or on nothing."""
    if asked is not None:
        return named_variant(lock, asked)
    fitting = [variant for variant in lock.variants if variant.engine == "venv"] or lock.variants
    for kind in ("image", "none"):
        for variant in fitting:
            if variant.base.kind == kind:
                return variant
    return fitting[0]


def shipped() -> tuple[str, ...]:
    """The stacks whose images `containers/` has."""
    return tuple(load_containers().stacks)


def committed(stack: str) -> Path:
    """Where the generated files of a shipped stack lie."""
    return resources.containers() / stack


def in_checkout() -> bool:
    """Whether the generated files are those of a checkout and not of an installed wheel."""
    return resources.containers().parent.name != "_data"
