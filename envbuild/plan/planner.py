"""The planner: resolutions and facts in, the steps of every node out, and the time of their job. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any

from envbuild.model.doubts import doubts
from envbuild.model.facts import NodeFacts, StampFacts
from envbuild.model.lock import Lock, Variant
from envbuild.model.plan import NodePlan, Plan, Resolution
from envbuild.model.target import Target
from envbuild.node.probe.inventory import generation
from envbuild.node.redact import secrets_of
from envbuild.plan.node_steps import Inputs, NodeSteps, environment_path
from envbuild.resolve.artifacts import platform_of
from envbuild.resolve.estimate import Estimate, estimate
from envbuild.resolve.health import odd_ones
from envbuild.resolve.rules.node import unexpected
from envbuild.resolve.variant_checks import bound_variant, stamp_of, stamps_of
from envbuild.schedule.job import seconds_of
from envbuild.text import few

LEAST_LIMIT = 1800  # seconds that a job may run


class Generations:
    """The environments of one lock on the nodes of a run; `again`: nodes that build theirs again."""

    def __init__(self, lock: Lock, facts: Mapping[str, NodeFacts], again: Collection[str]) -> None:
        """No digest is asked for yet."""
        self._lock, self._facts, self._again = lock, facts, again
        self._known: dict[str, tuple[int, int]] = {}

    def folder(self, facts: NodeFacts, digest: str, stamp: StampFacts | None) -> str:
        """The folder of a node's environment with that digest; `stamp`: the finished one that it has (`stamp_of`).

        That folder, unless the environment is built again: then the next generation, the same on all such nodes,
        because they hand it on by its path. A node without one takes the generation of the others. Nothing is built in
        the folder that `current` points at.
        """
        plain = environment_path(facts.prefix.path, self._lock.stack, self._lock.profile, digest)
        if facts.node not in self._again and stamp is not None:
            return generation(plain, stamp.generation)
        usual, unused = self._numbers(digest)
        number = unused if facts.node in self._again else usual
        in_use = {posixpath.basename(environment.path) for environment in facts.environments if environment.current}
        while posixpath.basename(generation(plain, number)) in in_use:
            number += 1
        return generation(plain, number)

    def _numbers(self, digest: str) -> tuple[int, int]:
        """The generation that the nodes have, and the first that no node has which builds again; found once for all."""
        if digest not in self._known:
            finished = (stamp_of(node, self._lock, digest) for node in self._facts.values())
            usual = max((stamp.generation for stamp in finished if stamp is not None), default=1)
            nodes = (self._facts[node] for node in self._again if node in self._facts)
            stamps = (stamp for node in nodes for stamp in stamps_of(node, self._lock, digest))
            self._known[digest] = usual, 1 + max((stamp.generation for stamp in stamps), default=0)
        return self._known[digest]


def make_plan(
    target: Target, lock: Lock, facts: Mapping[str, NodeFacts], resolutions: Mapping[str, Resolution], inputs: Inputs
) -> Plan:
    """Steps for every node with a chosen variant and its tools; errors say why other nodes have none."""
    chosen, generations = ChosenVariants(lock), Generations(lock, facts, inputs.repair)

    def planned(node: NodeFacts, resolution: Resolution) -> NodePlan:
        variant, plain = chosen.with_plain(resolution, node)
        stamp = stamp_of(node, lock, variant.here)
        folder = generations.folder(node, variant.here, stamp)
        steps = NodeSteps(node, target, lock, variant, plain, chosen.cost(variant, node), inputs, resolution, folder)
        return NodePlan(
            node=node.node,
            environment=folder,
            variant_digest=variant.digest,
            python=steps.interpreter,
            steps=steps.steps(stamp),
            resolution=resolution,
        )

    able = (
        (facts[node], resolution)
        for node, resolution in resolutions.items()
        if not resolution.refused and node in facts
    )
    nodes = tuple(planned(node, resolution) for node, resolution in able)
    warnings = plan_warnings(nodes, target, facts, resolutions)
    return Plan(stack=lock.stack, profile=lock.profile, target=target.name, nodes=nodes, warnings=warnings)


class ChosenVariants:
    """The variants of a lock as nodes will build them, and their cost; shared by nodes that get the same."""

    def __init__(self, lock: Lock) -> None:
        """Nothing is chosen yet."""
        self._lock = lock
        self._known: dict[Hashable, tuple[Variant, dict[str, Any]]] = {}
        self._costs: dict[Hashable, Estimate] = {}

    def of(self, resolution: Resolution, facts: NodeFacts) -> Variant:
        """The variant of a resolution. Raises KeyError when none was chosen."""
        return self.with_plain(resolution, facts)[0]

    def with_plain(self, resolution: Resolution, facts: NodeFacts) -> tuple[Variant, dict[str, Any]]:
        """The same, and as plain data, which must not be changed."""
        variant = next((variant for variant in self._lock.variants if variant.id == resolution.variant_id), None)
        if variant is None:
            raise KeyError(resolution.variant_id)
        python = next((p for p in facts.pythons if p.path == resolution.interpreter), None)
        packages = python.packages if python is not None and variant.base.kind != "none" else None
        provided = None if packages is None else frozenset(packages.items())
        key = (variant.id, resolution.arch_list, provided)
        if key not in self._known:
            bound = bound_variant(self._lock, variant, python, resolution.arch_list)
            self._known[key] = (bound, bound.to_json_dict())
        return self._known[key]

    def cost(self, variant: Variant, facts: NodeFacts) -> Estimate:
        """The cost of building one of these on the node."""
        key = (variant.digest, platform_of(variant, facts))
        if key not in self._costs:
            self._costs[key] = estimate(variant, key[1])
        return self._costs[key]


def plan_warnings(
    nodes: Iterable[NodePlan],
    target: Target,
    facts: Mapping[str, NodeFacts],
    resolutions: Mapping[str, Resolution],
) -> tuple[str, ...]:
    """What a user should read before the work begins; gigabytes for a missing GPU come first."""
    heavy: dict[str, list[str]] = {}
    by_text: dict[str, list[str]] = {}
    of_target = [*doubts(target), *filter(None, [_in_clear(target)])]
    for node in nodes:
        if node.nothing_to_do:
            continue
        for text in of_target:
            by_text.setdefault(text, []).append(node.node)
        for item in node.resolution.decisions:
            if item.verdict in ("warn", "patch"):
                group = heavy if item.rule == "cuda-without-gpu" else by_text
                instead = f"; instead: {item.instead}" if item.instead else ""
                group.setdefault(f"{item.what} ({item.rule}){instead}", []).append(node.node)
    for name, value in facts.items():
        for text in (*value.warnings, *unexpected(value, target)):
            by_text.setdefault(text, []).append(name)
    by_text.update(odd_ones(facts))
    many = len(resolutions) > 1
    return tuple(
        f"{text} [{few(names)}]" if many else text for group in (heavy, by_text) for text, names in group.items()
    )


def _in_clear(target: Target) -> str:
    """What to say of the target's variables that hold a secret, by name or value; empty when none does."""
    names = secrets_of(target.environment)
    if not names:
        return ""
    return (
        f"{', '.join(names)} of the target's variables look{'s' * (len(names) == 1)} like a secret: values go in clear "
        "into activate.sh, the stamp and the modulefile, where everybody who can read the prefix can read them"
    )


def limit_of(plan: Plan, target: Target) -> int:
    """Seconds that a job may run: as the target says, or four times what was estimated, half an hour at least."""
    if target.scheduler.time_limit:
        return seconds_of(target.scheduler.time_limit)
    estimated = max(sum(step.seconds for step in node.steps) for node in plan.nodes)
    return max(LEAST_LIMIT, round(4 * estimated / 60) * 60)


def compiled(plan: Plan) -> list[str]:
    """The sources that its nodes compile."""
    requests = (step.request for node in plan.nodes for step in node.steps if step.kind == "install" and step.request)
    rows = (row for request in requests for row in request["args"]["variant"]["sources"])
    return list(dict.fromkeys(row["name"] for row in rows if "build" in row))
