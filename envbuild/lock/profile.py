"""Which profile of a stack is meant: the one asked for, the target's, else the first whose files all have a hash."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from envbuild.catalog.loader import lock_path, pick_profile

if TYPE_CHECKING:
    from envbuild.catalog.loader import LoadedStack
    from envbuild.model.lock import Variant
    from envbuild.model.target import Target


class ChosenProfile(NamedTuple):
    """A profile of a stack; `why` is empty where the user asked for it or it is the stack's default."""

    name: str
    why: str = ""


def choose_profile(
    loaded: LoadedStack, asked: str | None, target: Target | None, *, trust_first_use: bool = False
) -> ChosenProfile:
    """The profile of a stack for a target; without one, that of the document is meant.

    On a target, a default profile that needs a file whose hash is missing from its lock comes after one that does not,
    unless the user trusts it (`trust_first_use`). Raises EnvbuildError `profile-unknown` (exit 2), and what reading a
    lock raises.
    """
    if asked is not None:
        return ChosenProfile(pick_profile(loaded, asked))
    default = pick_profile(loaded, None)
    if target is None:
        return ChosenProfile(default)
    if target.profile is not None and target.stack in (loaded.ref, loaded.stack.name):
        return ChosenProfile(pick_profile(loaded, target.profile), f"the target {target.name} names it")
    unrecorded = None if trust_first_use else _unrecorded(lock_path(loaded, default))
    if unrecorded is None:
        return ChosenProfile(default)
    for name in loaded.stack.profiles:
        path = lock_path(loaded, name)
        if name != default and path.is_file() and _unrecorded(path) is None:
            why = f"{default} needs {unrecorded}, whose hash the lock lacks; `--trust-first-use` takes {default}"
            return ChosenProfile(name, why)
    return ChosenProfile(default)


def _unrecorded(path: Path) -> str | None:
    """A file without a hash that the first variant of a lock needs, where every variant has one; else None."""
    from envbuild.lock.files import lock_text, parse_lock
    from envbuild.lock.first_use import fill, read_first_uses

    # Most locks have no such file, and a plan is to be there in an instant.
    text = lock_text(path) if path.exists() else ""
    if "unrecorded" not in text:
        return None
    found = [_without_hash(variant) for variant in fill(parse_lock(text, str(path)), read_first_uses()).variants]
    return found[0] if all(found) else None


def _without_hash(variant: Variant) -> str | None:
    if variant.conda is not None and variant.conda.unrecorded is not None:
        return "packages of conda"
    return next((file.file for file in variant.files if file.sha256 == "unrecorded"), None)
