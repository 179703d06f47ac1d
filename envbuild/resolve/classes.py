"""Node classes: nodes with equal facts, so that a fleet is decided and shown class by class."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from envbuild.model.facts import NodeFacts


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Nodes with equal facts: `label` says what they are, `nodes` are their names in order."""

    label: str
    nodes: tuple[str, ...]


def group(facts: Mapping[str, NodeFacts]) -> tuple[NodeClass, ...]:
    """The classes of a fleet, the largest first (then by the first node's name)."""
    members: dict[str, list[str]] = {}
    for node, value in facts.items():
        members.setdefault(json.dumps(value.class_key(), sort_keys=True), []).append(node)
    classes = [NodeClass(describe(facts[nodes[0]]), tuple(sorted(nodes))) for nodes in members.values()]
    return tuple(sorted(classes, key=lambda c: (-len(c.nodes), c.nodes)))


def describe(facts: NodeFacts) -> str:
    """One line about a node: `8 x NVIDIA A100-SXM4-80GB, driver 535.86.05, ubuntu 20.04, x86_64`."""
    counts: dict[str, int] = {}
    for gpu in facts.gpus:
        counts[gpu.name] = counts.get(gpu.name, 0) + 1
    parts = [f"{count} x {name}" for name, count in counts.items()] or ["no GPU"]
    if facts.driver.version:
        parts.append(f"driver {facts.driver.version}")
    parts.append(f"{facts.os.id or 'unknown system'} {facts.os.version}".strip())
    parts.append(facts.os.arch or "unknown architecture")
    return ", ".join(parts)


def signature(facts: NodeFacts) -> Hashable:
    """What the rules read of a node, cheap to compute: equal signatures give equal rule decisions."""
    return (
        facts.os.arch,
        facts.libc,
        tuple((g.name, g.compute_capability, g.mig_enabled) for g in facts.gpus),
        facts.gpus_physical,
        facts.visible_devices,
        facts.driver,
        facts.nvcc,
        facts.compilers,
    )
