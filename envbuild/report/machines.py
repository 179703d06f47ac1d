"""What a node is, in rows, and nodes that are alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from envbuild.model.common import LEFT_OUT
from envbuild.model.evidence import Evidence, NodeEvidence
from envbuild.model.facts import NodeFacts
from envbuild.text import few, grouped, minutes


@dataclass(frozen=True)
class NodeClass:
    """Nodes with equal facts: their names and rows of (fact, value)."""

    nodes: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]


def gibibytes(number: int | None) -> str:
    """Bytes as GiB or MiB."""
    if number is None:
        return "–"
    return f"{number / 2**30:,.1f} GiB" if number >= 2**30 else f"{number / 2**20:,.1f} MiB"


def fact_rows(facts: NodeFacts) -> tuple[tuple[str, str], ...]:
    """What a node is, as rows of (fact, value)."""
    # A brief probe did not look for tools: what it does not name may be there.
    none = "" if facts.brief else "none"
    names = [gpu.name for gpu in facts.gpus]
    gpus = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "none visible"
    if facts.gpus_physical is not None and facts.gpus_physical != len(names):
        gpus += f" ({facts.gpus_physical} physical)"
    memories = sorted({gpu.memory_mib for gpu in facts.gpus if gpu.memory_mib})
    memory = ", ".join(f"{value / 1024:.0f} GiB" for value in memories)
    nics = [f"{nic.kind} {nic.rate_gbps:g} Gbit/s" if nic.rate_gbps else nic.kind for nic in facts.nics]
    compilers = [f"{each.path.rsplit('/', 1)[-1]} {each.version}" for each in facts.compilers if each.path != LEFT_OUT]
    compilers = compilers or [each.version for each in facts.compilers]
    driver = facts.driver.version or facts.driver.problem or "none"
    ceiling = f", up to CUDA {facts.driver.cuda_ceiling}" if facts.driver.cuda_ceiling else ""
    rows = (
        ("System", f"{facts.os.id} {facts.os.version}, {facts.libc.kind} {facts.libc.version}, {facts.os.arch}"),
        ("Kernel", facts.os.kernel),
        ("CPU and memory", f"{facts.cpus or '?'} CPUs, {gibibytes(facts.memory_bytes)}"),
        ("GPUs", f"{gpus}{', ' + memory if memory else ''}"),
        ("NVIDIA driver", driver + ceiling),
        ("nvcc", ", ".join(nvcc.version for nvcc in facts.nvcc) or none),
        ("Compilers", ", ".join(dict.fromkeys(compilers)) or none),
        ("Pythons", ", ".join(dict.fromkeys(python.version for python in facts.pythons)) or none),
        ("Network", ", ".join(dict.fromkeys(nics)) or "not known"),
        ("Scheduler", "" if facts.brief else " ".join(filter(None, (facts.scheduler.kind, facts.scheduler.version)))),
    )
    return tuple((name, value) for name, value in rows if value.strip(" ,"))


def classes(nodes: Sequence[NodeEvidence]) -> tuple[NodeClass, ...]:
    """Nodes with equal facts together; nodes without facts are in none."""
    known = [(node.node, node.facts) for node in nodes if node.facts is not None]
    groups = grouped(known, lambda each: json.dumps(each[1].class_key(), sort_keys=True))
    return tuple(NodeClass(tuple(name for name, _ in group), fact_rows(group[0][1])) for group in groups.values())


def seconds(value: float | None) -> str:
    """Seconds, or minutes from two minutes on."""
    if value is None:
        return "–"
    return f"{value:.1f} s" if value < 120 else minutes(value)


def image_rows(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    """`Image` and what most nodes run, `Other images`; nothing where they run environments of their own."""
    found = [(node.node, node.image) for node in evidence.nodes if node.image is not None]
    if not found:
        return ()
    largest = max(grouped(found, lambda each: each[1].id).values(), key=len)
    image = largest[0][1]
    through = sorted({each.runtime for _, each in largest})
    said = f"{image.id[:12]} through {' and '.join(through)} on {len(largest)} of {len(evidence.nodes)} nodes"
    others = [f"{node} has {each.id[:12]}" for node, each in found if each.id != image.id]
    return (("Image", said), *((("Other images", few(others)),) if others else ()))
