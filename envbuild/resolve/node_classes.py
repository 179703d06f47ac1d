"""Node classes: nodes with equal facts, so that a fleet is decided and shown class by class. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from envbuild.model.facts import NodeFacts
from envbuild.resolve.health import equal_memory, faults, gpus_text, mig_instances, missing_gpus, shared, versions
from envbuild.resolve.request import visible_gpus
from envbuild.text import grouped

# What virtual machines and boards without a name of their own say.
_NO_PRODUCT = re.compile(
    r"|virtual machine|kvm|hvm domu|standard pc.*|vmware.*|virtualbox|google compute engine|openstack.*|bochs"
    r"|to be filled.*|system product name|default string|not (specified|applicable)|none|unknown",
    re.IGNORECASE,
)


class NodeClass(NamedTuple):
    """Nodes with equal facts: `label` describes them, `nodes` are their names in order.

    `differs`: how they differ from the largest class (empty for that class); `fault`: what is wrong with their GPUs and
    ports, `hint`: what helps.
    """

    label: str
    nodes: tuple[str, ...]
    differs: tuple[str, ...] = ()
    fault: str = ""
    hint: str = ""


def group(facts: Mapping[str, NodeFacts], *, exclusive: bool = False) -> tuple[NodeClass, ...]:
    """The classes of a fleet, the largest first (then by the first node's name).

    `exclusive`: jobs get whole nodes, so a GPU that a job does not see is missing.
    """
    members = grouped(facts, lambda node: json.dumps(_key(facts[node]), sort_keys=True))
    classes = [names for nodes in members.values() for names in _of_equal_memory(sorted(nodes), facts)]
    classes.sort(key=lambda names: (-len(names), names))
    return tuple(
        NodeClass(
            describe(facts[names[0]]),
            tuple(names),
            differences(facts[classes[0][0]], facts[names[0]]) if names is not classes[0] else (),
            *gpu_fault(facts[names[0]], exclusive=exclusive),
        )
        for names in classes
    )


def _key(facts: NodeFacts) -> dict[str, Any]:
    """What is equal in a class: which GPUs a job got does not matter, how many and how they are divided does."""
    key = facts.class_key()
    key["visible_devices"], key["memory_bytes"] = visible_gpus(facts), None
    key["shared"], key["faults"] = shared(facts, facts.memory_bytes or 0), [fault.what for fault in faults(facts)]
    del key["shared"]["memory"]
    for gpu, fact in zip(key["gpus"], facts.gpus, strict=True):
        gpu["index"], gpu["mig"] = 0, sorted(name.partition(" ")[0] for name in fact.mig)
    return key


def _of_equal_memory(nodes: list[str], facts: Mapping[str, NodeFacts]) -> Iterable[list[str]]:
    by_size = sorted(nodes, key=lambda node: facts[node].memory_bytes or 0)
    part: list[str] = []
    for node in by_size:
        if part and not equal_memory(facts[node].memory_bytes or 0, facts[part[-1]].memory_bytes or 0):
            yield sorted(part)
            part = []
        part.append(node)
    yield sorted(part)


def describe(facts: NodeFacts) -> str:
    """One line about a node: `8 x NVIDIA A100-SXM4-80GB, driver 535.86.05, nvcc 11.4, ubuntu 20.04, x86_64`."""
    product = facts.product.strip()
    parts = [product] if not _NO_PRODUCT.fullmatch(product) else []
    parts.append(gpus_text(facts))
    if facts.driver.version:
        parts.append(f"driver {facts.driver.version}")
    if facts.nvcc:
        parts.append(f"nvcc {versions(facts.nvcc)}")
    parts.append(f"{facts.os.id or 'unknown system'} {facts.os.version}".strip())
    parts.append(facts.os.arch or "unknown architecture")
    return ", ".join(parts)


def differences(usual: NodeFacts, other: NodeFacts) -> tuple[str, ...]:
    """How a node differs from another, as `driver 470.57.02 ≠ 470.82.01`; the most important first."""
    here, shared_usual = (shared(facts, usual.memory_bytes or 0) for facts in (other, usual))
    names = dict.fromkeys((*shared_usual, *here))
    odd = [name for name in names if here.get(name) != shared_usual.get(name)]
    return tuple(f"{name} {here.get(name) or 'none'} ≠ {shared_usual.get(name) or 'none'}" for name in odd) or (
        _other_differences(usual, other)
    )


def _other_differences(usual: NodeFacts, other: NodeFacts) -> tuple[str, ...]:
    """What is left: tools, paths, containers."""
    here, usual_key = _key(other), _key(usual)
    tools = sorted({name for name, _ in here["tools"].items() ^ usual_key["tools"].items()})
    rest = [key for key in here if here[key] != usual_key.get(key) and key not in ("tools", "faults")]
    names = ([f"tools ({', '.join(tools[:5])})"] if tools else []) + rest
    return (f"other {', '.join(names)}",) if names else ()


def gpu_fault(facts: NodeFacts, *, exclusive: bool) -> tuple[str, str]:
    """What is wrong with a node's GPUs and ports, as `7 of 8 GPUs visible`, and what helps; empty if nothing is."""
    missing = missing_gpus(facts, exclusive=exclusive)
    both = (*((missing,) if missing else ()), *faults(facts))
    return "; ".join(fault.what for fault in both), "; ".join(dict.fromkeys(fault.helps for fault in both))


def signature(facts: NodeFacts) -> Hashable:
    """What the rules read of a node, cheap to compute: equal signatures give equal rule decisions."""
    return (
        facts.os.arch,
        facts.os.kernel,
        facts.cpu,
        facts.libc,
        tuple((g.name, g.compute_capability, g.mig_enabled) for g in facts.gpus),
        mig_instances(facts) if any(g.mig for g in facts.gpus) else 0,
        facts.gpus_physical,
        facts.visible_devices,
        bool(facts.scheduler.job),
        facts.driver,
        facts.nvcc,
        facts.compilers,
    )
