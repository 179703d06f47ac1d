"""Which profile of a stack is meant: the one asked for, the target's, else the document's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from envbuild.catalog.loader import pick_profile
from envbuild.errors import EnvbuildError
from envbuild.node.paths import read_json

if TYPE_CHECKING:
    from envbuild.catalog.loader import LoadedStack
    from envbuild.model.stack import Stack
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


def profile_in_use(stack: Stack, environment: str) -> str | None:
    """The profile of the environment at a path of this machine, by its stamp; None where no stamp of the stack is."""
    stamp = read_json(f"{environment}/.envbuild/stamp.json") or {}
    profile = stamp.get("profile")
    return profile if stamp.get("stack") == stack.name and profile in stack.profiles else None


def refuse_unable(stack: Stack, profile: str, verb: str, place: str) -> None:
    """Raise EnvbuildError `profile-cannot-run` (exit 7) for a profile whose environments do not run the benchmark.

    `place`: options of a command that name stack and target.
    """
    runs = stack.profiles[profile].runs
    if runs == "benchmark":
        return
    able = (name for name in (stack.default_profile, *stack.profiles) if stack.profiles[name].runs == "benchmark")
    name = next(able, None)
    raise EnvbuildError(
        "profile-cannot-run",
        f"`{verb}` cannot run the profile {profile} of {stack.name}",
        why=f"its stack says `runs: {runs}`, and `{verb}` starts the stack's own benchmark",
        hint=f"build one that can: `envbuild provision {place} --profile {name}`" if name else "no profile of it can",
    )
