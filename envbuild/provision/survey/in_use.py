"""The environment in use on a node, and the variant of the lock that it was built from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock, Variant
from envbuild.model.plan import NodePlan
from envbuild.model.resolution import Decision, Resolution
from envbuild.provision.run.context import Choice, Prepared

RULE = "in-use"


def can_keep(choice: Choice, base: str | None) -> bool:
    """Whether what is in use may simply be kept: the user asked for nothing in particular, and it stands on nothing.

    What a base provides is part of a variant's digest and has to be asked.
    """
    return choice.variant is None and choice.interpreter is None and base in (None, "none")


def kept(facts: NodeFacts, prepared: Prepared) -> NodePlan | None:
    """The plan of a node whose environment in use is of this lock, was checked, and still fits; None for any other.

    Driver and GPUs must be those it was chosen for, and its variables those of stack and target; then every rule would
    say what it said when the environment was built.
    """
    for stamp in facts.environments:
        if not (stamp.current and stamp.checks and stamp.stack == prepared.stack.name):
            continue
        written: Mapping[str, Any] = stamp.stamp or {}
        variant = _variant(prepared, stamp.variant_digest, written.get("arch_list"))
        if variant is None or (written.get("evidence") or {}).get("hardware") != facts.hardware():
            return None
        if variant.arch_list is not None and not facts.gpus:
            # Compiled for what the target expected then; what it expects now is for the rules to say.
            return None
        if written.get("variables") != variant.variables(prepared.target.environment):
            return None
        resolution = _resolution(facts.node, prepared.lock, variant, written.get("interpreter"))
        return NodePlan(
            node=facts.node,
            environment=stamp.path,
            variant_digest=variant.digest,
            python=resolution.interpreter,
            steps=(),
            resolution=resolution,
        )
    return None


def _variant(prepared: Prepared, digest: str | None, arch_list: Any) -> Variant | None:
    """The variant with that digest, compiled for what the stamp says, where the target's engine makes it."""
    lock, engine = prepared.lock, prepared.target.installer
    archs = tuple(arch_list) if isinstance(arch_list, list) else None
    plain = (item for item in lock.variants if item.base.kind == "none" and item.engine == engine)
    bound = (item.with_arch_list(lock.stack, lock.profile, archs) for item in plain)
    return next((item for item in bound if item.digest == digest), None)


def _resolution(node: str, lock: Lock, variant: Variant, interpreter: object) -> Resolution:
    decision = Decision(
        rule=RULE,
        verdict="allow",
        what="the environment in use is of this lock, and driver and GPUs are those it was chosen for",
        compared=(variant.digest[:12], variant.digest[:12]),
        source="its stamp",
    )
    return Resolution(
        node=node,
        stack=lock.stack,
        profile=lock.profile,
        variant_id=variant.id,
        variant_digest=variant.digest,
        interpreter=interpreter if isinstance(interpreter, str) else None,
        arch_list=variant.arch_list,
        decisions=(decision,),
        candidates=(),
    )


# Where it is, the variant it was built from, and its stamp.
Current = tuple[str, Variant, dict[str, Any]]


def matching_variant(lock: Lock, stamp: Mapping[str, Any]) -> Variant | None:
    """The variant of the lock that a stamp was built from.

    What the base provided then, and the GPUs that sources were compiled for, are part of the comparison.
    """
    archs = stamp.get("arch_list")
    for locked in lock.variants:
        variant = locked.with_arch_list(lock.stack, lock.profile, None if archs is None else tuple(archs))
        if variant.base.kind != "none":
            variant = variant.with_provided(lock.stack, lock.profile, dict(stamp.get("base_packages") or {}))
        if variant.digest == stamp.get("variant_digest"):
            return variant
    return None


def made_by(item: Mapping[str, Any]) -> str:
    """The engine of a listed environment (`StampFacts` as JSON)."""
    return "conda" if (item.get("stamp") or {}).get("conda") else "venv"


def of_stack(items: Iterable[dict[str, Any]], stack: str | None, engine: str | None) -> dict[str, Any] | None:
    """The environment in use for a stack; of an `engine` that was asked for the one in use, else the last finished."""
    mine = [item for item in items if item.get("stack") == stack and item.get("stamp")]
    if engine is None:
        return next((item for item in mine if item.get("current")), None)
    theirs = [item for item in mine if made_by(item) == engine]
    return max(theirs, key=lambda item: (bool(item.get("current")), str(item["stamp"].get("stamped_at"))), default=None)


def current_of(prepared: Prepared, node: str, found: list[dict[str, Any]] | EnvbuildError) -> Current | EnvbuildError:
    """Path, variant and stamp of the environment that is asked for (`of_stack`), or why there is none."""
    if isinstance(found, EnvbuildError):
        return found
    stack, engine = prepared.stack.name, prepared.choice.engine
    place = f"{prepared.reference or stack} --target {prepared.choice.target}"
    item = of_stack(found, stack, engine)
    if item is not None:
        stamp = item.get("stamp") or {}
        variant = matching_variant(prepared.lock, stamp)
        if variant is None:
            profile = stamp.get("profile")
            if profile != prepared.profile:
                return EnvbuildError(
                    "environment-not-of-lock",
                    f"{node}: the environment in use is of the profile {profile}, not {prepared.profile}",
                    hint=f"`--profile {profile}` asks about the one in use; "
                    f"`envbuild provision {place} --profile {prepared.profile}` builds the other",
                )
            return EnvbuildError(
                "environment-not-of-lock",
                f"{node}: the environment in use matches no variant of {prepared.lock_file.name}",
                why=f"its stamp says variant {str(item.get('variant_digest'))[:12]}",
                hint=f"`envbuild provision {place} --profile {prepared.profile}` builds what the lock says now; "
                "the old environment stays until removed",
            )
        return str(item["path"]), variant, stamp
    return EnvbuildError(
        "environment-unknown",
        f"{node}: no environment of {stack} is {f'of the engine {engine}' if engine else 'in use'}",
        hint=f"build it: `envbuild provision {place}"
        f"{f' --profile {prepared.choice.profile}' if prepared.choice.profile else ''}`; "
        f"`envbuild status --all --target {prepared.choice.target}` lists the environments",
        exit_code=ExitCode.CHECK_FAILED,
    )
