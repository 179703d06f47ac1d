"""Node classes: nodes with equal facts, so that a fleet is decided and shown class by class. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from envbuild.model.facts import NodeFacts
from envbuild.resolve.request import physical_gpus, visible_gpus
from envbuild.text import grouped, plural

# What virtual machines and boards without a name of their own say.
_NO_PRODUCT = re.compile(
    r"|virtual machine|kvm|hvm domu|standard pc.*|vmware.*|virtualbox|google compute engine|openstack.*|bochs"
    r"|to be filled.*|system product name|default string|not (specified|applicable)|none|unknown",
    re.IGNORECASE,
)
_MEMORY_TOLERANCE = 0.05


class NodeClass(NamedTuple):
    """Nodes with equal facts: `label` says what they are, `nodes` are their names in order.

    `differs`: in what they are not like the largest class (which has none); `fault`: what is wrong with their GPUs.
    """

    label: str
    nodes: tuple[str, ...]
    differs: tuple[str, ...] = ()
    fault: str = ""


def group(facts: Mapping[str, NodeFacts], *, exclusive: bool = False) -> tuple[NodeClass, ...]:
    """The classes of a fleet, the largest first (then by the first node's name).

    `exclusive`: jobs get whole nodes here, so a GPU that is not visible inside of one is missing.
    """
    members = grouped(facts, lambda node: json.dumps(_key(facts[node]), sort_keys=True))
    classes = [names for nodes in members.values() for names in _of_equal_memory(sorted(nodes), facts)]
    classes.sort(key=lambda names: (-len(names), names))
    return tuple(
        NodeClass(
            describe(facts[names[0]]),
            tuple(names),
            differences(facts[classes[0][0]], facts[names[0]]) if names is not classes[0] else (),
            gpu_fault(facts[names[0]], exclusive=exclusive),
        )
        for names in classes
    )


def _key(facts: NodeFacts) -> dict[str, Any]:
    """What is equal in a class: which GPUs a job got does not matter, how many and how they are divided does."""
    key = facts.class_key()
    key["visible_devices"], key["memory_bytes"] = visible_gpus(facts), None
    for gpu, fact in zip(key["gpus"], facts.gpus, strict=True):
        gpu["index"], gpu["mig"] = 0, sorted(name.partition(" ")[0] for name in fact.mig)
    return key


def _of_equal_memory(nodes: list[str], facts: Mapping[str, NodeFacts]) -> Iterable[list[str]]:
    """Equal machines differ by some megabytes; where a module is missing there is a gap."""
    by_size = sorted(nodes, key=lambda node: facts[node].memory_bytes or 0)
    part: list[str] = []
    for node in by_size:
        before = (facts[part[-1]].memory_bytes or 0) if part else 0
        if part and (facts[node].memory_bytes or 0) > before * (1 + _MEMORY_TOLERANCE):
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
        parts.append(f"nvcc {_versions(facts.nvcc)}")
    parts.append(f"{facts.os.id or 'unknown system'} {facts.os.version}".strip())
    parts.append(facts.os.arch or "unknown architecture")
    return ", ".join(parts)


def gpus_text(facts: NodeFacts) -> str:
    """`8 x NVIDIA A100`, `7 of 8 x …` where a process sees fewer than there are; MIG instances with their number."""
    names = [gpu.name for gpu in facts.gpus]
    seen, there = visible_gpus(facts), physical_gpus(facts)
    if not names:
        return f"0 of {there} GPUs visible" if there else "no GPU"
    counts = {name: names.count(name) for name in names}
    text = ", ".join(f"{count} x {name}" for name, count in counts.items())
    if seen < there:
        text = f"{seen} of {there} x {names[0]}" if len(counts) == 1 else f"{text} ({seen} of {there} visible)"
    if any(gpu.mig_enabled for gpu in facts.gpus):
        text += f" with {plural(mig_instances(facts), 'MIG instance')}"
    return text


def mig_instances(facts: NodeFacts) -> int:
    """MIG instances that a process may use: all that there are, or those that CUDA_VISIBLE_DEVICES names."""
    there = [name.rpartition(" ")[2] for gpu in facts.gpus for name in gpu.mig]
    if facts.visible_devices is None or "MIG-" not in facts.visible_devices:
        return len(there)
    return sum(entry.strip() in there for entry in facts.visible_devices.split(","))


def gpu_fault(facts: NodeFacts, *, exclusive: bool) -> str:
    """`7 of 8 GPUs visible` where all should be: outside of jobs, and inside of one that has the node for itself.

    Also what is wrong with the driver where no GPU is known to be missing.
    """
    seen, there = visible_gpus(facts), physical_gpus(facts)
    if seen >= there or (facts.scheduler.job and not exclusive):
        return facts.driver.problem or ""
    why = facts.driver.problem or (
        "" if facts.visible_devices is None else f"CUDA_VISIBLE_DEVICES is {facts.visible_devices!r}"
    )
    return f"{seen} of {there} GPUs visible" + (f": {why}" if why else "")


def differences(usual: NodeFacts, other: NodeFacts) -> tuple[str, ...]:
    """In what a node is not like the usual one, as `driver 470.57.02 ≠ 470.82.01`; what people look for first."""
    out = []
    for name, here, there in (
        ("product", other.product, usual.product),
        ("GPUs", gpus_text(other), gpus_text(usual)),
        ("GPU memory", *(_distinct(f"{gpu.memory_mib} MiB" for gpu in each.gpus) for each in (other, usual))),
        ("driver", *(each.driver.version or each.driver.problem or "none" for each in (other, usual))),
        ("nvcc", _versions(other.nvcc), _versions(usual.nvcc)),
        ("system", *(f"{each.os.id} {each.os.version} {each.os.arch}" for each in (other, usual))),
        ("kernel", other.os.kernel, usual.os.kernel),
        ("libc", *(f"{each.libc.kind} {each.libc.version}" for each in (other, usual))),
        ("CPUs", str(other.cpus), str(usual.cpus)),
        ("compilers", _versions(other.compilers), _versions(usual.compilers)),
        ("Pythons", _versions(other.pythons), _versions(usual.pythons)),
        ("umask", other.umask, usual.umask),
    ):
        if here != there:
            out.append(f"{name} {here or 'none'} ≠ {there or 'none'}")
    if abs((other.memory_bytes or 0) - (usual.memory_bytes or 0)) > _MEMORY_TOLERANCE * (usual.memory_bytes or 0):
        out.append(f"memory {(other.memory_bytes or 0) / 1e9:.0f} GB ≠ {(usual.memory_bytes or 0) / 1e9:.0f} GB")
    return tuple(out) or _other_differences(usual, other)


def _other_differences(usual: NodeFacts, other: NodeFacts) -> tuple[str, ...]:
    """What is left: tools, paths, containers."""
    here, there = _key(other), _key(usual)
    tools = sorted({name for name, _ in here["tools"].items() ^ there["tools"].items()})
    rest = [key for key in here if here[key] != there.get(key) and key != "tools"]
    names = ([f"tools ({', '.join(tools[:5])})"] if tools else []) + rest
    return (f"other {', '.join(names)}",) if names else ()


def _distinct(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _versions(found: Iterable[Any]) -> str:
    """The versions of compilers or interpreters, each once, in order."""
    return _distinct(sorted(each.version for each in found))


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
