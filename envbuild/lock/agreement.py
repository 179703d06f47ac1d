"""Compares what a lock says with what its stack says, apart from digests; pure, runs before every plan."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from envbuild.catalog.loader import LoadedStack, is_path, pick_profile
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.variants import (
    PLATFORM,
    applies,
    decided,
    locked_image,
    provides,
    spec_name,
    specs,
    variant_plans,
)
from envbuild.model.finding import package_name, requirement
from envbuild.model.lock import TAKEN, Lock, LockedInterpreter, LockedSource, Variant
from envbuild.model.stack import Profile, Source, Stack
from envbuild.model.target import Target
from envbuild.node.paths import read_json


class ChosenProfile(NamedTuple):
    """A profile of a stack; `why` is empty if the user asked for it or it is the stack's default."""

    name: str
    why: str = ""


def choose_profile(loaded: LoadedStack, asked: str | None, target: Target | None) -> ChosenProfile:
    """The profile of a stack for a target. Raises EnvbuildError `profile-unknown` (exit 2)."""
    if asked is None and target is not None and target.profile is not None and _names(target, loaded):
        return ChosenProfile(pick_profile(loaded, target.profile), f"the target {target.name} names it")
    return ChosenProfile(pick_profile(loaded, asked))


def _names(target: Target, loaded: LoadedStack) -> bool:
    """Whether a target names this stack; its path may be written in another way than the one that was typed."""
    if target.stack is None or target.stack in (loaded.ref, loaded.stack.name):
        return target.stack is not None
    return is_path(target.stack) and Path(target.stack).resolve() == loaded.path.resolve()


def profile_in_use(stack: Stack, environment: str) -> str | None:
    """The profile of the environment at a path on this machine, from its stamp; None without a stamp of the stack."""
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
        hint=f"build a profile that can: `envbuild provision {place} --profile {name}`"
        if name
        else "no profile of it can",
    )


Kind = Literal["problem", "note", "unchecked"]
_NO_SHA = "0" * 64
_LONG = 120  # characters of one entry
_NUMBER = re.compile(r"(?<=-conda)-[0-9]+\Z")


class LockFinding(NamedTuple):
    """One result of a check.

    `kind`: `problem` (the check fails with `exit_code`), `note`, or `unchecked` (could not be looked at, counted).
    `subject` is the field, variant or source that it is about.
    """

    code: str
    kind: Kind
    subject: str
    says: str
    exit_code: ExitCode = ExitCode.CHECK_FAILED

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        row = self._asdict()
        code = row.pop("exit_code")
        return {**row, "exit": int(code) if self.kind == "problem" else 0}


def differs(field: str, says: str) -> LockFinding:
    """The finding that a field of the stack is not what the lock has."""
    return LockFinding("manifest-differs", "problem", field, says)


def refuse_edited(lock: Lock, stack: Stack, profile: str, name: str) -> None:
    """Raises EnvbuildError `lock-edited` (exit 5): the lock `name` says it was made from this profile, and was not."""
    findings = contents(lock, stack.profiles[profile])
    if (lock.stack, lock.profile) != (stack.name, profile):
        findings = [differs("stack", f"the lock is of {lock.stack}, profile {lock.profile}"), *findings]
    if not findings:
        return
    raise EnvbuildError(
        "lock-edited",
        f"{name} does not match the stack {stack.name}",
        why="; ".join(f"`{finding.subject}`: {finding.says}" for finding in findings),
        hint="`envbuild lock check` lists every difference; `envbuild lock create` makes a new lock",
    )


def asked(lock: Lock, profile: Profile) -> tuple[str, ...]:
    """The packages (normalised names) that a lock has for itself, not because another package requires them."""
    listed = {package_name(text) for text in profile.packages}
    needed = {name for variant in lock.variants for source in variant.sources for name in source.needs or ()}
    return tuple(sorted(listed | needed | {"torch"}))


def contents(lock: Lock, profile: Profile) -> list[LockFinding]:
    """The differences between what the lock says and what the stack says, apart from digests."""
    return list(_contents(lock, profile))


def _contents(lock: Lock, profile: Profile) -> Iterator[LockFinding]:
    day = profile.as_of.isoformat() if profile.as_of else None
    if day and lock.as_of != day:
        yield differs("as_of", f"{day} in the stack, {lock.as_of or 'none'} in the lock")
    # Which builds are pinned does not matter here, only which variants there must be.
    pinned = LockedInterpreter(kind="standalone", name="any", sha256=_NO_SHA)
    plans = {plan.id: plan for plan in variant_plans(profile, dict.fromkeys(profile.python, pinned), ({},))}
    locked = {variant.id: variant for variant in lock.variants}
    # For how many kinds of nodes conda was solved, and of which architecture, is the lock's own matter.
    usual = {own.id: own.id.replace(own.platform, PLATFORM) for own in lock.variants if own.conda}
    left = {name: plan for name, plan in plans.items() if name not in usual.values()}
    plans = left | {name: plans[first] for name, text in usual.items() if (first := _NUMBER.sub("", text)) in plans}
    yield from (differs("variants", f"{name} is missing in the lock") for name in plans.keys() - locked.keys())
    yield from (differs("variants", f"{name} is not in the stack") for name in locked.keys() - plans.keys())
    for name in sorted(plans.keys() & locked.keys()):
        plan, variant = plans[name], locked[name]
        wanted = {**decided(profile, plan), "arch_list": None, "platform": PLATFORM}
        if name in usual:
            del wanted["platform"]
        for field, value in wanted.items():
            if getattr(variant, field) != value:
                yield differs(field, f"{name}: {_apart(value, getattr(variant, field))}")
        if variant.interpreter.kind != plan.interpreter.kind:
            yield differs("interpreters", f"{name}: {plan.interpreter.kind} in the stack")
        image = locked_image(plan.base)
        if (image and image.name) != (variant.image and variant.image.name):
            yield differs("bases", f"{name}: the base has the image {image and image.name} in the stack")
        elif image and variant.image and image.digest not in ("unrecorded", variant.image.digest):
            yield differs("bases", f"{name}: {image.name} is locked with another digest")
        for look in (_packages, _conda, _sources):
            yield from look(variant, profile)


def _packages(variant: Variant, profile: Profile) -> Iterator[LockFinding]:
    has = {package.name: package.version for package in variant.packages} | variant.provided
    elsewhere = {package_name(text) for text in variant.base.provides}
    elsewhere |= variant.conda.provides.keys() if variant.conda else set()
    for text in (*profile.packages, *profile.constraints):
        wanted, name = requirement(text), package_name(text)
        if not applies(wanted, variant.python, variant.platform):
            continue
        field = "packages" if text in profile.packages else "constraints"
        if name in has and not wanted.specifier.contains(has[name], prereleases=True):
            yield differs(field, f"{variant.id}: {text} in the stack, {name} {has[name]} in the lock")
        elif name not in {*has, *elsewhere} and field == "packages":
            yield differs(field, f"{variant.id}: {text} is not locked")
    if variant.torch and "torch" not in elsewhere and has.get("torch", "").partition("+")[0] != variant.torch:
        yield differs("torch", f"{variant.id}: torch {variant.torch} is not locked")


def _conda(variant: Variant, profile: Profile) -> Iterator[LockFinding]:
    """What conda was asked for is there, by its name; versions were the solver's matter, and the digest holds them."""
    locked, spec = variant.conda, profile.conda
    if locked is None or spec is None:
        return
    for field, wanted in (("provides", provides(spec)), ("link_scripts", spec.link_scripts)):
        here = getattr(locked, field)
        if wanted != here:
            yield differs(f"conda.{field}", f"{variant.id}: {wanted} in the stack, {here} in the lock")
    if locked.unrecorded is not None:
        return
    has, known = {package.name: package for package in locked.packages}, {channel.name for channel in spec.channels}
    for text in specs(profile, spec, variant.python, variant.platform):
        if spec_name(text) not in has:
            yield differs("conda.packages", f"{variant.id}: `{text}` is not locked")
    for package in has.values():
        if package.channel not in known:
            says = f"{package.file} is of {package.channel}, which the stack does not name"
            yield differs("conda.channels", f"{variant.id}: {says}")
    python = has.get("python")
    if python is not None and not python.version.startswith(f"{variant.python}."):
        yield differs("python", f"{variant.id}: {python.file} in the lock")


def _sources(variant: Variant, profile: Profile) -> Iterator[LockFinding]:
    wanted = {source.name: source for source in profile.pinned_sources}
    locked = {source.name: source for source in variant.sources}
    yield from (differs("sources", f"{variant.id}: {n} is missing in the lock") for n in wanted.keys() - locked.keys())
    yield from (differs("sources", f"{variant.id}: {n} is not in the stack") for n in locked.keys() - wanted.keys())
    for name in sorted(wanted.keys() & locked.keys()):
        for field, due, here in _source_differences(wanted[name], locked[name]):
            says = f"{variant.id}: {_shown(due)} in the stack, {_shown(here)} in the lock"
            yield differs(f"sources.{name}.{field}", says)


def _source_differences(source: Source, locked: LockedSource) -> list[tuple[str, Any, Any]]:
    pairs = [(field, getattr(source, field), getattr(locked, field)) for field in TAKEN]
    if source.tree is not None:
        pairs.append(("tree", source.tree, locked.tree))
    if not source.submodules:
        pairs.append(("submodules", (), locked.submodules))
    return [(field, wanted, here) for field, wanted, here in pairs if wanted != here]


def _apart(wanted: Any, here: Any) -> str:
    """Both sides; of two lists what only one of them has, where they differ in more than their order."""
    if isinstance(wanted, tuple) and isinstance(here, tuple) and set(map(_shown, wanted)) != set(map(_shown, here)):
        only = [[_shown(item) for item in one if item not in other] for one, other in ((wanted, here), (here, wanted))]
        wanted, here = (", ".join(texts) or "nothing of it" for texts in only)
    return f"{_shown(wanted)} in the stack, {_shown(here)} in the lock"


def _shown(value: Any) -> str:
    if isinstance(value, BaseModel):
        text = json.dumps(value.model_dump(mode="json", by_alias=True, exclude_defaults=True))
        return text if len(text) <= _LONG else f"{text[:_LONG]} ..."
    return str(value.to_json_dict() if hasattr(value, "to_json_dict") else value)
