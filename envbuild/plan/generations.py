"""Which folder an environment is built or found in. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping

from envbuild.model.facts import NodeFacts, StampFacts
from envbuild.model.lock import Lock
from envbuild.node.probe.inventory import generation
from envbuild.plan.node_steps import environment_path
from envbuild.resolve.variant_checks import stamp_of, stamps_of


class Generations:
    """The environments of one lock on the nodes of a run; `again` names the nodes that build theirs again."""

    def __init__(self, lock: Lock, facts: Mapping[str, NodeFacts], again: Collection[str]) -> None:
        """Plain data."""
        self._lock = lock
        self._facts = facts
        self._again = again

    def folder(self, facts: NodeFacts, digest: str, stamp: StampFacts | None) -> str:
        """The folder of a node's environment with that digest; `stamp` is the finished one that it has (`stamp_of`).

        That one, unless it is built again: then the next generation, the same on all nodes that do so, for they hand
        it on by its path. A node that has none takes the generation of the others. Nothing is built where `current`
        leads.
        """
        plain = environment_path(facts.prefix.path, self._lock.stack, self._lock.profile, digest)
        if facts.node in self._again:
            nodes = (self._facts[node] for node in self._again if node in self._facts)
            stamps = (each for node in nodes for each in stamps_of(node, self._lock, digest))
            number = 1 + max((each.generation for each in stamps), default=0)
        elif stamp is not None:
            return generation(plain, stamp.generation)
        else:
            used = (stamp_of(node, self._lock, digest) for node in self._facts.values())
            number = max((each.generation for each in used if each is not None), default=1)
        in_use = {posixpath.basename(each.path) for each in facts.environments if each.current}
        while posixpath.basename(generation(plain, number)) in in_use:
            number += 1
        return generation(plain, number)
