"""What is built once for nodes over SSH that share their prefix: who builds, and who tests it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from envbuild.errors import EnvbuildError
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Variant
from envbuild.model.plan import NodePlan, Plan, SpreadClass, Step
from envbuild.model.target import Target
from envbuild.plan import shared_prefix
from envbuild.plan.node_steps import NodeTool, toolchain_words
from envbuild.plan.shared_builds import left_alone, share_builds, without
from envbuild.plan.source_builds import lacks_tools
from envbuild.text import grouped


def share(plan: Plan, given: Sharing) -> tuple[Plan, dict[str, EnvbuildError]]:
    """The plan with its builders, and the error of each node that cannot build what nobody gives it.

    Raises EnvbuildError as `shared_prefix.share` does.
    """
    return _WAYS[given.target.connection.kind](plan, given)


def over_ssh(plan: Plan, given: Sharing) -> Plan:
    """One node builds an environment on a prefix that all share, else each wheel for those that can use it."""
    if plan.nothing_to_do:
        return plan
    jobs = given.jobs or given.target.build_jobs
    return share_builds(spread(plan, given), given.facts, given.variants, jobs=jobs, check_rebuild=given.rebuild)


def _ssh(plan: Plan, given: Sharing) -> tuple[Plan, dict[str, EnvbuildError]]:
    return _alone(over_ssh(plan, given), given)


def _alone(plan: Plan, given: Sharing) -> tuple[Plan, dict[str, EnvbuildError]]:
    resolutions = {node.node: node.resolution for node in plan.nodes}
    lacking = {node: lacks_tools(resolutions[node]) for node in left_alone(plan, given.variants)}
    return (without(plan, tuple(lacking)) if lacking else plan), lacking


def _in_job(plan: Plan, given: Sharing) -> tuple[Plan, dict[str, EnvbuildError]]:
    local, pins = given.target.placement == "node-local", given.target.scheduler.starts_tasks
    return shared_prefix.share(plan, given.variants, local=local, pins=pins), {}


_WAYS = {"local": _alone, "ssh": _ssh, "job": _in_job}


class Sharing(NamedTuple):
    """What decides who builds for whom, beside the plan.

    `variants`: by node, as they will be built. `least`: by node, the tools without which not even the node program runs
    there. `tried`: nodes that were to build for others and could not. `jobs` as the steps were made with. `rebuild`: a
    finished node gives nothing.
    """

    target: Target
    facts: Mapping[str, NodeFacts]
    variants: Mapping[str, Variant]
    least: Mapping[str, Sequence[NodeTool]] = {}
    tried: Collection[str] = ()
    jobs: int | None = None
    rebuild: bool = False


def spread(plan: Plan, by: Sharing) -> Plan:
    """The plan with one builder for each environment on a prefix that all nodes share, and steps that say so."""
    if by.target.placement != "shared":
        return plan
    classes = _classes(plan, by.tried)
    takes = {name: each for each in classes for name in each.nodes}
    gives = {each.builder: each for each in classes if each.nodes and not each.finished}

    def told(node: NodePlan) -> NodePlan:
        if node.node in takes:
            return _testing(node, takes[node.node], by)
        return _giving(node, gives[node.node]) if node.node in gives else node

    return plan.model_copy(update={"nodes": tuple(map(told, plan.nodes)), "spreads": tuple(classes)})


def _classes(plan: Plan, tried: Collection[str]) -> list[SpreadClass]:
    """For each environment one node builds, if none has, and the others test."""
    working = [node for node in plan.nodes if node.steps and node.node not in tried]
    finished = {node.environment: node.node for node in plan.nodes if node.nothing_to_do}
    able = [node for node in working if node.resolution.wheels_from is None]
    builders = {**{node.environment: node.node for node in reversed(able)}, **finished}
    return [
        SpreadClass(
            environment=environment,
            builder=builders[environment],
            nodes=tuple(node.node for node in group if node.node != builders[environment]),
            finished=environment in finished,
        )
        for environment, group in grouped(working, lambda node: node.environment).items()
        if environment in builders
    ]


def _giving(node: NodePlan, group: SpreadClass) -> NodePlan:
    why = f"built once for {len(group.nodes) + 1} nodes that share the prefix"

    def told(step: Step) -> Step:
        return step.model_copy(update={"why": f"{step.why}; {why}"}) if step.kind == "install" else step

    return node.model_copy(update={"steps": tuple(told(step) for step in node.steps)})


def _testing(node: NodePlan, group: SpreadClass, by: Sharing) -> NodePlan:
    """The smoke test alone, and what runs it; nothing where only a link is switched."""
    if not any(step.kind == "smoke" for step in node.steps):
        return node.model_copy(update={"steps": ()})
    facts = by.facts[node.node]
    missing = [tool for tool in by.least.get(node.node, ()) if tool.folder not in facts.toolchain]
    why = f"the prefix is shared: {group.builder} {'has built' if group.finished else 'builds'}"
    steps: list[Step] = []
    for step in node.steps:
        if step.kind == "toolchain" and missing:
            sums = {"disk_bytes": 0, "inodes": 2 * len(missing)}
            what = toolchain_words(missing, facts.prefix.path)
            steps.append(step.model_copy(update={"what": what, **sums}))
        elif step.kind == "smoke":
            steps.append(step.model_copy(update={"why": why}))
    return node.model_copy(update={"steps": tuple(steps)})
