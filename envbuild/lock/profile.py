"""Which profile of a stack is meant: the one asked for, the target's, else the document's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from envbuild.catalog.loader import pick_profile

if TYPE_CHECKING:
    from envbuild.catalog.loader import LoadedStack
    from envbuild.model.target import Target


class ChosenProfile(NamedTuple):
    """A profile of a stack; `why` is empty where the user asked for it or it is the stack's default."""

    name: str
    why: str = ""


def choose_profile(loaded: LoadedStack, asked: str | None, target: Target | None) -> ChosenProfile:
    """The profile of a stack for a target. Raises EnvbuildError `profile-unknown` (exit 2)."""
    named = target.profile if target is not None and target.stack in (loaded.ref, loaded.stack.name) else None
    if asked is None and target is not None and named is not None:
        return ChosenProfile(pick_profile(loaded, named), f"the target {target.name} names it")
    return ChosenProfile(pick_profile(loaded, asked))
