"""Is there anything to do at all? Pure: brief facts and a lock in, the plan of a node that needs nothing out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock, Variant
from envbuild.model.plan import NodePlan
from envbuild.model.resolution import Decision, Resolution
from envbuild.provision.run.findings import Choice, Prepared

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
