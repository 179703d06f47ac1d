"""Which variants a profile has: one for each Python, flavour, base and interpreter kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError
from envbuild.model.lock import LockedImage, LockedInterpreter
from envbuild.model.stack import Base, Profile

PLATFORM = "linux_x86_64"


@dataclass(frozen=True)
class Plan:
    """One variant to lock: which Python, flavour (None without torch), base and interpreter."""

    id: str
    python: str
    flavour: str | None
    base: Base
    interpreter: LockedInterpreter


def variant_plans(profile: Profile, standalone: Mapping[str, LockedInterpreter] | None = None) -> Iterator[Plan]:
    """Every variant of a profile, in the order of the stack file.

    `standalone`: minor version to pinned interpreter. Raises EnvbuildError `interpreter-unknown` (exit 2).
    """
    kinds = [base.kind for base in profile.bases]
    for number, base in enumerate(profile.bases):
        repeated = kinds[:number].count(base.kind)
        label = "" if base.kind == "none" else f"-{base.kind}" + (f"-{repeated + 1}" if repeated else "")
        flavours = profile.torch.flavours if profile.torch and not _provides(base, "torch") else (None,)
        for python in profile.python:
            for flavour in flavours:
                for kind in profile.interpreters:
                    name = f"cp{python.replace('.', '')}-{PLATFORM}" + (f"-{flavour}" if flavour else "") + label
                    interpreter = LockedInterpreter()
                    if kind == "standalone":
                        name += "-standalone"
                        interpreter = _standalone(python, standalone or {})
                    yield Plan(name, python, flavour, base, interpreter)


def _standalone(python: str, known: Mapping[str, LockedInterpreter]) -> LockedInterpreter:
    if python not in known:
        raise EnvbuildError(
            "interpreter-unknown",
            f"no standalone CPython {python} is pinned in the catalog",
            hint=f"use one of {', '.join(sorted(known)) or 'none'}, or `interpreters: [present]`",
        )
    return known[python]


def _provides(base: Base, package: str) -> bool:
    return any(canonicalize_name(Requirement(text).name) == package for text in base.provides)


def locked_image(base: Base, before: LockedImage | None = None) -> LockedImage | None:
    """The image of a base; pinned where its reference holds the digest, or the lock had one (`before`)."""
    if base.image is None:
        return None
    _, _, digest = base.image.partition("@sha256:")
    if digest:
        return LockedImage(name=base.image, digest=digest)
    if before is not None and before.name == base.image and before.digest != "unrecorded":
        return before
    reason = "its registry was not asked; whoever runs the image decides which contents the tag names"
    return LockedImage(name=base.image, digest="unrecorded", reason=reason)
