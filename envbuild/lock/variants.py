"""Which variants a profile has: one for each Python, flavour, base and interpreter kind, and those of conda.

Also whether a requirement applies to one, what conda is asked for, and the refusals of what a lock has not recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError
from envbuild.model.finding import package_name
from envbuild.model.lock import ArtifactFile, LockedImage, LockedInterpreter, LockedTree, Variant
from envbuild.model.stack import Base, CondaSpec, LockPlatform, Profile

if TYPE_CHECKING:
    from envbuild.conda.virtual import Virtual

PLATFORM: LockPlatform = "linux_x86_64"
UNRECORDED = "hash-unrecorded"
_SPEC_NAME = re.compile(r"(?:.*::)?([A-Za-z0-9_][A-Za-z0-9_.-]*)")


class Plan(NamedTuple):
    """One variant to lock: which Python, flavour (None without torch), base and interpreter.

    `virtual`: the virtual packages that conda solves for; None for the engine venv.
    """

    id: str
    python: str
    flavour: str | None
    base: Base
    interpreter: LockedInterpreter
    virtual: Virtual | None = None

    @property
    def engine(self) -> Literal["venv", "conda"]:
        """The engine of the environment."""
        return "venv" if self.virtual is None else "conda"

    @property
    def platform(self) -> LockPlatform:
        """The platform that conda solves for; without conda always the same."""
        if self.virtual is None:
            return PLATFORM
        from envbuild.conda.virtual import platform_of

        return platform_of(self.virtual)


def decided(profile: Profile, plan: Plan) -> dict[str, Any]:
    """The fields of a variant that stack and plan decide, without a resolution."""
    return {
        "engine": plan.engine,
        "python": plan.python,
        "torch": profile.torch.version if profile.torch and plan.flavour else None,
        "flavour": plan.flavour,
        "base": plan.base,
        "trees": tuple(LockedTree(name=tree.name, install=tree.install) for tree in profile.working_trees),
        **run_fields(profile),
    }


def run_fields(profile: Profile) -> dict[str, Any]:
    """The fields that say what runs with the environment."""
    return {
        "imports": profile.imports,
        "environment": dict(sorted(profile.environment.items())),
        "smoke": profile.smoke_items,
        "training": profile.training,
    }


def variant_plans(
    profile: Profile,
    standalone: Mapping[str, LockedInterpreter] | None = None,
    virtual: Sequence[Virtual] = (),
) -> Iterator[Plan]:
    """Every variant of a profile, in the order of the stack file, those of conda last.

    `standalone`: minor version to pinned interpreter. `virtual`: what nodes have, instead of what the profile says.
    Raises EnvbuildError `interpreter-unknown` (exit 2).
    """
    if profile.conda is None or not profile.conda.only:
        yield from _venv_plans(profile, standalone or {})
    # The interpreter comes with the packages, so there is no base and no kind of interpreter to choose.
    if profile.conda is None:
        return
    from envbuild.conda.virtual import platform_of, solutions

    for python in profile.python:
        for flavour in profile.torch.flavours if profile.torch else (None,):
            before: list[str] = []
            for solution in solutions(profile.conda, flavour, virtual):
                name = f"{_label(python, flavour, platform_of(solution))}-conda"
                before.append(name)
                number = before.count(name)
                name += f"-{number}" if number > 1 else ""
                yield Plan(name, python, flavour, Base(kind="none"), LockedInterpreter(), solution)


def _label(python: str, flavour: str | None, platform: LockPlatform = PLATFORM) -> str:
    return f"cp{python.replace('.', '')}-{platform}" + (f"-{flavour}" if flavour else "")


def _venv_plans(profile: Profile, standalone: Mapping[str, LockedInterpreter]) -> Iterator[Plan]:
    kinds = [base.kind for base in profile.bases]
    for number, base in enumerate(profile.bases):
        repeated = kinds[:number].count(base.kind)
        label = "" if base.kind == "none" else f"-{base.kind}" + (f"-{repeated + 1}" if repeated else "")
        has_torch = any(package_name(text) == "torch" for text in base.provides)
        flavours = profile.torch.flavours if profile.torch and not has_torch else (None,)
        for python in profile.python:
            for flavour in flavours:
                for kind in profile.interpreters:
                    # What a base provides is in its own interpreter.
                    if kind == "standalone" and base.kind != "none" and "present" in profile.interpreters:
                        continue
                    name = _label(python, flavour) + label
                    interpreter = LockedInterpreter()
                    if kind == "standalone":
                        name += "-standalone"
                        interpreter = _standalone(python, standalone)
                    yield Plan(name, python, flavour, base, interpreter)


def _standalone(python: str, known: Mapping[str, LockedInterpreter]) -> LockedInterpreter:
    if python not in known:
        raise EnvbuildError(
            "interpreter-unknown",
            f"no standalone CPython {python} is pinned in the catalog",
            hint=f"use one of {', '.join(sorted(known)) or 'none'}, or `interpreters: [present]`",
        )
    return known[python]


def locked_image(base: Base, before: LockedImage | None = None) -> LockedImage | None:
    """The image of a base; pinned if its reference has the digest, or the lock had one (`before`)."""
    if base.image is None:
        return None
    _, _, digest = base.image.partition("@sha256:")
    if digest:
        return LockedImage(name=base.image, digest=digest)
    if before is not None and before.name == base.image and before.digest != "unrecorded":
        return before
    reason = "its registry was not asked; whoever runs the image decides which contents the tag names"
    return LockedImage(name=base.image, digest="unrecorded", reason=reason)


def applies(wanted: Requirement, python: str, platform: str) -> bool:
    """Whether the marker of a requirement, if it has one, holds for CPython `python` (as `3.11`) on a lock platform."""
    return wanted.marker is None or wanted.marker.evaluate(environment(python, platform))


def environment(python: str, platform: str) -> dict[str, str]:
    """The value of every name of markers. Of the Python the first release, as uv takes it."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": platform.removeprefix("linux_"),
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def provides(spec: CondaSpec | None) -> dict[str, str]:
    """Distribution, by its normalised name, to the conda package that provides it."""
    return {str(canonicalize_name(name)): conda for name, conda in spec.provides.items()} if spec else {}


def specs(profile: Profile, spec: CondaSpec, python: str, platform: str) -> tuple[str, ...]:
    """The match specs: Python, those of the section, and the profile's versions of what conda provides."""
    theirs = provides(spec)
    wanted = [Requirement(text) for text in (*profile.packages, *profile.constraints)]
    if profile.torch is not None and "torch" in theirs:
        wanted.append(Requirement(f"torch=={profile.torch.version}"))
    named = [
        f"{theirs[name]} {','.join(sorted(map(_conda_version, requirement.specifier)))}".strip()
        for requirement in wanted
        if (name := str(canonicalize_name(requirement.name))) in theirs and applies(requirement, python, platform)
    ]
    names = {spec_name(text) for text in (*spec.packages, *named)}
    bare = [name for name in theirs.values() if name not in names]
    return tuple(dict.fromkeys((f"python {python}.*", *spec.packages, *named, *bare)))


def _conda_version(specifier: object) -> str:
    """`==1.2.*` as conda has it: `1.2.*`; a local version is no part of conda's."""
    text = str(specifier).replace("===", "==").partition("+")[0]
    return text[2:] if text.startswith("==") and text.endswith(".*") else text


def spec_name(text: str) -> str:
    """The package of a match spec."""
    match = _SPEC_NAME.match(text)
    return match.group(1).lower() if match else text


def hash_unrecorded(file: ArtifactFile, command: str) -> EnvbuildError:
    """`hash-unrecorded` (exit 5) for one file, with the reason that the lock gives; `command` records it."""
    return EnvbuildError(
        UNRECORDED,
        f"{file.file} has no recorded sha256",
        why=file.reason or "",
        hint=f"`{command}` on a machine that reaches its index, or with `--from DIR` for a folder that has the file",
    )


def conda_unrecorded(variant: Variant) -> EnvbuildError:
    """`conda-unrecorded` (exit 5) for a variant whose conda packages are not recorded yet."""
    return EnvbuildError(
        "conda-unrecorded",
        f"the lock has no conda packages of {variant.id}",
        why=(variant.conda.unrecorded if variant.conda else None) or "",
        hint="run `envbuild lock create STACK` on a machine that reaches the channel",
    )
