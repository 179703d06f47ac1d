"""Nodes that lack nvcc or a compiler, beside nodes of the same kind that have them: whose wheels they get. Pure.

The rules decide for such a node with the other node's nvcc, if that node gets the same variant. `plan/sharing.py` plans
how the wheels reach it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from envbuild.model.facts import NodeFacts, NvccFacts
from envbuild.model.lock import Lock
from envbuild.model.resolution import Decision, Resolution
from envbuild.resolve.artifacts import numbers

NVCC = "nvcc-absent"
# The rules that refuse a node for what only building needs.
TOOLS = frozenset({NVCC, "gcc-range"})


class _Resolver(Protocol):
    """`engine.Resolver`."""

    lock: Lock

    def resolve(self, facts: NodeFacts, *, without: frozenset[str] = frozenset()) -> Resolution:
        """The resolution of one node."""


class _Lender(NamedTuple):
    """A node whose wheels are right for every node like it that gets one of the variants `digests`."""

    facts: NodeFacts
    digests: frozenset[str]
    nvcc: tuple[NvccFacts, ...] = ()


def borrow(
    resolver: _Resolver,
    facts: Mapping[str, NodeFacts],
    resolutions: Mapping[str, Resolution],
    others: Mapping[str, NodeFacts],
) -> dict[str, Resolution]:
    """New resolutions for nodes that lack a tool and can use the wheels of another node of the fleet."""
    lacking = {
        node: why for node, resolution in resolutions.items() if (why := _lacks(facts[node], resolution)) is not None
    }
    if not lacking:
        return {}
    lenders = _lenders(resolver, {**facts, **others}, resolutions)
    new = {node: _with_wheels(resolver, facts[node], why, lenders) for node, why in lacking.items()}
    return {node: resolution for node, resolution in new.items() if resolution is not None}


def _lacks(facts: NodeFacts, resolution: Resolution) -> Decision | None:
    """What keeps the node from a variant, where nothing does but a tool that it has not."""
    if facts.nvcc and facts.compilers:
        return None
    for candidate in resolution.candidates:
        against = [item for item in candidate.decisions if item.verdict == "refuse"]
        if against and all(item.rule in TOOLS for item in against):
            return against[0]
    return None


def _lenders(
    resolver: _Resolver, facts: Mapping[str, NodeFacts], resolutions: Mapping[str, Resolution]
) -> tuple[_Lender, ...]:
    """Finished nodes first, then those that can build, the one with most cores first."""
    finished, able = [], []
    for node, node_facts in facts.items():
        stamped = frozenset(_finished(node_facts, resolver.lock))
        if stamped:
            finished.append(_Lender(node_facts, stamped))
        if node_facts.nvcc and node_facts.compilers:
            chosen = resolutions.get(node) or resolver.resolve(node_facts)
            if chosen.nvcc is not None and chosen.variant_digest is not None:
                able.append(_Lender(node_facts, frozenset({chosen.variant_digest}), node_facts.nvcc))
    able.sort(key=lambda lender: -(lender.facts.cpus or 0))
    return (*finished, *able)


def _finished(facts: NodeFacts, lock: Lock) -> Iterable[str]:
    for stamp in facts.environments:
        same = (stamp.stack, stamp.profile) == (lock.stack, lock.profile)
        if same and stamp.current and stamp.stamp is not None and stamp.variant_digest is not None:
            yield stamp.variant_digest


def _with_wheels(resolver: _Resolver, facts: NodeFacts, why: Decision, lenders: Iterable[_Lender]) -> Resolution | None:
    """The resolution with the wheels of the first lender that gets the same variant; its own, if it has them, last."""
    tried: dict[tuple[NvccFacts, ...], Resolution] = {}
    for lender in sorted(lenders, key=lambda item: item.facts.node == facts.node):
        if not _alike(facts, lender.facts):
            continue
        if lender.nvcc not in tried:
            lent = facts.model_copy(update={"nvcc": lender.nvcc or facts.nvcc})
            tried[lender.nvcc] = resolver.resolve(lent, without=TOOLS)
        chosen = tried[lender.nvcc]
        if chosen.variant_digest in lender.digests:
            name = lender.facts.node
            text = f"{why.what}; " + ("it is built already" if name == facts.node else f"the wheels come from {name}")
            decision = why.model_copy(update={"verdict": "allow", "what": text})
            decisions = (*chosen.decisions, decision)
            return chosen.model_copy(update={"nvcc": None, "gcc": None, "wheels_from": name, "decisions": decisions})
    return None


def _alike(facts: NodeFacts, lender: NodeFacts) -> bool:
    """What was built there runs here, as far as the C library decides it; the GPUs are part of the variant."""
    if lender.node == facts.node:
        return True
    here, other = facts.libc, lender.libc
    same = (facts.os.arch, here.kind) == (lender.os.arch, other.kind)
    return same and numbers(here.version) >= numbers(other.version)
