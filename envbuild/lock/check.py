"""Compares a lock with its stack and with the upstream repositories of its sources."""

from __future__ import annotations

import concurrent.futures
from dataclasses import dataclass
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.catalog.loader import manifest_digest
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.create import PLATFORM, locked_image, variant_plans
from envbuild.lock.git import fetched, resolve_ref
from envbuild.lock.manifest import field_digests
from envbuild.lock.sources import pin_patches
from envbuild.lock.unrecorded import CODE
from envbuild.model.first_use import trusted_files
from envbuild.model.lock import Lock, LockedInterpreter, LockedSource, Variant
from envbuild.model.stack import Profile, Source, Stack

Kind = Literal["problem", "note", "unchecked"]
_NO_SHA = "0" * 64
# What a locked source takes from the stack as it is; `tree` and `submodules` are resolved.
_SOURCE_FIELDS = ("git", "commit", "ref", "install", "path", "build", "patches", "generated")


@dataclass(frozen=True)
class LockFinding:
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
        return {
            "code": self.code,
            "kind": self.kind,
            "subject": self.subject,
            "says": self.says,
            "exit": int(self.exit_code) if self.kind == "problem" else 0,
        }


def check_lock(lock: Lock, stack: Stack, *, online: bool = True) -> list[LockFinding]:
    """Everything in which a lock disagrees with its stack, with itself, or (when `online`) with upstream.

    An empty list means that all was looked at and agrees. Sources that cannot be reached are `unchecked`.
    """
    findings = _digests(lock)
    if lock.stack != stack.name or lock.profile not in stack.profiles:
        says = f"the lock is of {lock.stack}, profile {lock.profile}; the stack is {stack.name}"
        return [*findings, LockFinding("lock-of-another-stack", "problem", "stack", says)]
    profile = stack.profiles[lock.profile]
    findings += _manifest(lock, stack, profile)
    findings += _contents(lock, profile)
    findings += _patches(lock)
    findings += _unrecorded(lock)
    if online:
        findings += _upstream(lock, profile)
    return findings


def _digests(lock: Lock) -> list[LockFinding]:
    return [
        LockFinding(
            "lock-digest-mismatch",
            "problem",
            variant.id,
            "the digest does not match the contents (edited by hand?)",
            ExitCode.INTEGRITY,
        )
        for variant in lock.variants
        if variant.digest != variant.compute_digest(lock.stack, lock.profile)
    ]


def _differs(field: str, says: str) -> LockFinding:
    return LockFinding("manifest-differs", "problem", field, says)


def _manifest(lock: Lock, stack: Stack, profile: Profile) -> list[LockFinding]:
    if lock.manifest_digest == manifest_digest(stack, lock.profile):
        return []
    now = field_digests(profile)
    # A field that one side does not have was at its default there.
    fields = sorted(
        name for name in now.keys() | lock.manifest_fields if now.get(name) != lock.manifest_fields.get(name)
    )
    if not lock.manifest_fields:
        return [_differs("manifest_digest", "the stack file is not the one that the lock was made from")]
    if not fields:
        return [_differs("manifest_digest", "no field differs; another envbuild made the lock, create it again")]
    return [_differs(name, f"`{name}` of the stack has changed since the lock was made") for name in fields]


def _contents(lock: Lock, profile: Profile) -> list[LockFinding]:
    """What the lock says against what the stack says, whatever the digests say."""
    findings = []
    day = profile.as_of.isoformat() if profile.as_of else None
    if day and lock.as_of != day:
        findings.append(_differs("as_of", f"{day} in the stack, {lock.as_of or 'none'} in the lock"))
    # Which builds are pinned does not matter here, only which variants there must be.
    pinned = LockedInterpreter(kind="standalone", name="any", sha256=_NO_SHA)
    plans = {plan.id: plan for plan in variant_plans(profile, dict.fromkeys(profile.python, pinned))}
    locked = {variant.id: variant for variant in lock.variants}
    findings += [_differs("variants", f"{name} is missing in the lock") for name in plans.keys() - locked.keys()]
    findings += [_differs("variants", f"{name} is not in the stack") for name in locked.keys() - plans.keys()]
    for name in sorted(plans.keys() & locked.keys()):
        plan, variant = plans[name], locked[name]
        torch = profile.torch.version if profile.torch and plan.flavour else None
        wanted = {
            "python": plan.python,
            "flavour": plan.flavour,
            "torch": torch,
            "base": plan.base,
            "platform": PLATFORM,
            "arch_list": None,
            "imports": profile.imports,
            "environment": profile.environment,
            "smoke": profile.smoke,
        }
        findings += [
            _differs(field, f"{name}: {_shown(value)} in the stack, {_shown(getattr(variant, field))} in the lock")
            for field, value in wanted.items()
            if getattr(variant, field) != value
        ]
        if variant.interpreter.kind != plan.interpreter.kind:
            findings.append(_differs("interpreters", f"{name}: {plan.interpreter.kind} in the stack"))
        image = locked_image(plan.base)
        if (image and image.name) != (variant.image and variant.image.name):
            findings.append(_differs("bases", f"{name}: the base has the image {image and image.name} in the stack"))
        elif image and variant.image and image.digest not in ("unrecorded", variant.image.digest):
            findings.append(_differs("bases", f"{name}: {image.name} is locked with another digest"))
        findings += _packages(variant, profile) + _sources(variant, profile)
    return findings


def _packages(variant: Variant, profile: Profile) -> list[LockFinding]:
    has = {package.name: package.version for package in variant.packages} | variant.provided
    left_to_base = {canonicalize_name(Requirement(text).name) for text in variant.base.provides}
    findings = []
    for text in (*profile.packages, *profile.constraints):
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({"python_version": variant.python}):
            continue
        field = "packages" if text in profile.packages else "constraints"
        if name not in has:
            if field == "packages" and name not in left_to_base:
                findings.append(_differs(field, f"{variant.id}: {text} is not locked"))
        elif not requirement.specifier.contains(has[name], prereleases=True):
            findings.append(_differs(field, f"{variant.id}: {text} in the stack, {name} {has[name]} in the lock"))
    if variant.torch and has.get("torch", "").partition("+")[0] != variant.torch:
        findings.append(_differs("torch", f"{variant.id}: torch {variant.torch} is not locked"))
    return findings


def _sources(variant: Variant, profile: Profile) -> list[LockFinding]:
    wanted = {source.name: source for source in profile.sources}
    locked = {source.name: source for source in variant.sources}
    findings = [_differs("sources", f"{variant.id}: {n} is missing in the lock") for n in wanted.keys() - locked.keys()]
    findings += [_differs("sources", f"{variant.id}: {n} is not in the stack") for n in locked.keys() - wanted.keys()]
    for name in sorted(wanted.keys() & locked.keys()):
        findings += [
            _differs(
                f"sources.{name}.{field}", f"{variant.id}: {_shown(there)} in the stack, {_shown(here)} in the lock"
            )
            for field, there, here in _source_differences(wanted[name], locked[name])
        ]
    return findings


def _source_differences(source: Source, locked: LockedSource) -> list[tuple[str, Any, Any]]:
    pairs = [(field, getattr(source, field), getattr(locked, field)) for field in _SOURCE_FIELDS]
    if source.tree is not None:
        pairs.append(("tree", source.tree, locked.tree))
    if not source.submodules:
        pairs.append(("submodules", (), locked.submodules))
    return [(field, there, here) for field, there, here in pairs if there != here]


def _shown(value: Any) -> str:
    return str(value.to_json_dict() if hasattr(value, "to_json_dict") else value)


def _patches(lock: Lock) -> list[LockFinding]:
    """A patch of the catalog that does something else than when it was locked."""
    findings = []
    sources = {source.name: source for variant in lock.variants for source in variant.sources}
    for source in sources.values():
        try:
            now = pin_patches(tuple(pin.name for pin in source.patch_pins), source.commit)
        except EnvbuildError as error:
            findings.append(_failed(error, source.name))
            continue
        findings += [
            LockFinding("patch-changed", "problem", source.name, f"{pin.name} is not the patch that was locked")
            for pin, there in zip(source.patch_pins, now, strict=True)
            if pin != there
        ]
    return findings


def _unrecorded(lock: Lock) -> list[LockFinding]:
    images = [(variant.id, variant.image) for variant in lock.variants if variant.image]
    notes = [
        LockFinding("image-unrecorded", "note", name, f"{image.name} has no recorded digest: {image.reason or ''}")
        for name, image in images
        if image.digest == "unrecorded"
    ]
    notes += [
        LockFinding("hash-first-use", "note", variant.id, f"{file.file} is of the {file.witness}; no other record")
        for variant in lock.variants
        for file in trusted_files(variant)
    ]
    return notes + [
        LockFinding(CODE, "note", variant.id, f"{item.file} has no recorded sha256: {item.reason or ''}")
        for variant in lock.variants
        for package in variant.packages
        for item in package.files
        if item.sha256 == "unrecorded"
    ]


def _upstream(lock: Lock, profile: Profile) -> list[LockFinding]:
    sources = {source.name: source for variant in lock.variants for source in variant.sources}
    contains = {source.name: source.contains for source in profile.sources}
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        results = pool.map(lambda source: _one_upstream(source, contains.get(source.name, ())), sources.values())
        return [finding for found in results for finding in found]


def _one_upstream(source: LockedSource, contains: tuple[str, ...]) -> list[LockFinding]:
    pins = [(source.git, source.commit, source.tree, source.name)]
    pins += [(sub.git, sub.commit, sub.tree, f"{source.name}/{sub.path}") for sub in source.submodules]
    findings = []
    for url, commit, tree, name in pins:
        try:
            findings += _one_pin(url, commit, tree, name, contains if name == source.name else ())
        except EnvbuildError as error:
            findings.append(_failed(error, name))
    if source.ref is not None:
        try:
            findings += _moved(source, source.ref)
        except EnvbuildError as error:
            findings.append(_failed(error, source.name))
    # One repository that is out of reach is one thing not checked, however often it was asked.
    return list(dict.fromkeys(findings))


def _one_pin(url: str, commit: str, tree: str, name: str, contains: tuple[str, ...]) -> list[LockFinding]:
    with fetched(url, commit, history=bool(contains)) as repository:
        there = repository.tree()
        findings = [
            LockFinding("ancestor-missing", "problem", name, f"{commit} does not contain {item}", ExitCode.INTEGRITY)
            for item in contains
            if not repository.contains(item)
        ]
    if there != tree:
        says = f"commit {commit} has tree {there} upstream, {tree} in the lock"
        findings.append(LockFinding("tree-mismatch", "problem", name, says, ExitCode.INTEGRITY))
    return findings


def _moved(source: LockedSource, ref: str) -> list[LockFinding]:
    now = resolve_ref(source.git, ref)
    if now == source.commit:
        return []
    where = f"is at {now} now" if now else "is gone"
    says = f"`{ref}` {where}; the lock has {source.commit} and is not affected"
    return [LockFinding("ref-moved", "problem", source.name, says)]


def _failed(error: EnvbuildError, name: str) -> LockFinding:
    if error.exit_code == ExitCode.TRY_AGAIN:
        return LockFinding(error.code, "unchecked", name, f"not checked: {error.what}")
    return LockFinding(error.code, "problem", name, error.what, error.exit_code)
