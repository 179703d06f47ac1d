"""Fleet equality in words: one line where all nodes have one root, and what is other on those that deviate."""

from __future__ import annotations

from collections.abc import Sequence

from envbuild.model.evidence import Evidence
from envbuild.text import few

_SHOWN = 8


def sentence(evidence: Evidence) -> str:
    """`8 nodes, one root 9b2e44d0aa17 (measured)`, or how many deviate; empty where there is nothing to compare."""
    found = evidence.equality
    if found is None:
        return ""
    count = len(found.nodes) + sum(len(each.nodes) for each in found.deviating)
    if not found.deviating:
        return f"{count} nodes, one root {found.root[:12]} ({_level(evidence, count)})"
    bad = count - len(found.nodes)
    have = f"{len(found.nodes)} of {count} nodes have the root {found.root[:12]}"
    return f"{have}; {bad} deviate{'s' * (bad == 1)} ({_level(evidence, count)})"


def _level(evidence: Evidence, count: int) -> str:
    """On how many nodes the root was measured in this run; the others have it in their stamp."""
    measured = sum(node.root is not None and node.root_level == "measured" for node in evidence.nodes)
    if not measured:
        return "stamped"
    return "measured" if measured == count else f"measured on {measured}"


def names(nodes: Sequence[str], most: int = _SHOWN) -> str:
    """Node names as clusters write them, `gpu[01-60]`, and no more than fit a line."""
    from envbuild.hostlist import fold_hosts

    folded = fold_hosts(nodes)
    return folded if len(folded) <= 60 else few(nodes, most)
