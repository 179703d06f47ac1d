"""Who builds for whom: on a prefix that nodes over SSH share, and in a job, where one builds and all test. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from envbuild.errors import EnvbuildError
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Variant
from envbuild.model.plan import NodePlan, Plan, SpreadClass, Step
from envbuild.model.target import Target
from envbuild.plan.node_steps import NodeTool, toolchain_words
from envbuild.plan.shared_builds import left_alone, share_builds, without
from envbuild.plan.source_builds import lacks_tools
from envbuild.text import grouped

_ONE_KIND = (
    "ask for nodes of one kind (`scheduler: {constraints: ...}`, or another partition or queue) and run once for each; "
    "where one environment would do for all, name it: `--variant ID`"
)


def share(plan: Plan, given: Sharing) -> tuple[Plan, dict[str, EnvbuildError]]:
    """The plan with its builders, and the error of each node that cannot build what nobody gives it.

    Raises EnvbuildError as `in_job` does.
    """
    target = given.target
    if target.connection.kind == "job":
        local, pins = target.placement == "node-local", target.scheduler.starts_tasks
        return in_job(plan, given.variants, local=local, pins=pins), {}
    if target.connection.kind == "ssh":
        plan = over_ssh(plan, given)
    resolutions = {node.node: node.resolution for node in plan.nodes}
    lacking = {node: lacks_tools(resolutions[node]) for node in left_alone(plan, given.variants)}
    return (without(plan, tuple(lacking)) if lacking else plan), lacking


def over_ssh(plan: Plan, given: Sharing) -> Plan:
    """One node builds an environment on a prefix that all share, else each wheel for those that can use it."""
    if plan.nothing_to_do:
        return plan
    jobs = given.jobs or given.target.build_jobs
    return share_builds(spread(plan, given), given.facts, given.variants, jobs=jobs, check_rebuild=given.rebuild)


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


def in_job(plan: Plan, variants: Mapping[str, Variant] = {}, *, local: bool = False, pins: bool = True) -> Plan:
    """The plan on a prefix that all nodes share: the first node builds, the others only test what it built.

    `variants`: by node, as they will be built. `local`: each node has a prefix of its own; the others install what it
    has built. `pins`: a job can be given a node by its name, else it builds on whichever it gets.

    Raises EnvbuildError `nodes-differ` (exit 7) when the nodes would not get the same environment, `not-yet-supported`
    (exit 7) for what only nodes without a job can do, and that of a rule where no node can build.
    """
    working = [node for node in plan.nodes if node.steps]
    _refuse_different(working, variants)
    first = _builder(working, pins=pins)
    nodes = (
        node.model_copy(update={"steps": other_steps(node, str(first), local=local)})
        if node.steps and node.node != first
        else node
        for node in plan.nodes
    )
    return plan.model_copy(update={"nodes": tuple(nodes)})


def _refuse_different(working: list[NodePlan], variants: Mapping[str, Variant]) -> None:
    """Raises EnvbuildError `nodes-differ` (exit 7) where nodes need environments of their own."""
    based = any(variants[node.node].base.kind != "none" for node in working if node.node in variants)
    kinds = {(node.environment, node.python if based else None): node for node in reversed(working)}
    if len(kinds) < 2:
        return
    first, *others = sorted(kinds.values(), key=working.index)
    told = [f"{first.node}: {first.resolution.variant_id}"]
    for node in others[:3]:
        there = _of_base(node, first, variants) if based else ""
        told.append(f"{node.node}: {there or node.resolution.variant_id}")
    raise EnvbuildError(
        "nodes-differ",
        "the nodes of this job would get different environments",
        why=", ".join(told),
        hint=_ONE_KIND + (", or make the base the same on all nodes" if based else ""),
    )


def _of_base(node: NodePlan, first: NodePlan, variants: Mapping[str, Variant]) -> str:
    """In what the base of a node is not that of the first one; empty where it is the same."""
    here, there = variants[node.node].provided, variants[first.node].provided
    names = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
    said = [f"{name} {here.get(name, 'is not there')} (not {there.get(name, 'there')})" for name in names[:4]]
    if node.python != first.python:
        said.insert(0, f"{node.python} (not {first.python})")
    return " and ".join(said)


def _builder(working: list[NodePlan], *, pins: bool) -> str | None:
    """The first node that has what it takes to build; None where nothing has to be done.

    Raises EnvbuildError with the rule that is against it (exit 7) where no node has, or another one might come first.
    """
    able = [node.node for node in working if node.resolution.wheels_from is None]
    lacking = [node for node in working if node.node not in able]
    if lacking and not able:
        raise lacks_tools(lacking[0].resolution, "no node of this job has it")
    if lacking and not pins:
        raise lacks_tools(lacking[0].resolution, "a job builds on its first node here, which may be any")
    return able[0] if able else None


def pinned(plan: Plan) -> str | None:
    """The node that a job must have and build on, because others of its kind could not; None: whichever comes first."""
    lacking = any(node.resolution.wheels_from is not None for node in plan.nodes if node.steps)
    return builder_of(plan).node if lacking else None


def other_steps(node: NodePlan, first: str, *, local: bool) -> tuple[Step, ...]:
    """What is left of a node's steps where `first` builds for it."""
    why = f"{first} builds what is compiled" if local else f"the prefix is shared: {first} builds"
    tests = tuple(step.model_copy(update={"why": why}) for step in node.steps if step.kind == "smoke")
    if not local:
        return tests
    what = f"install {posixpath.basename(node.environment)} and point the link at it"
    disk = max((step.disk_bytes for step in node.steps), default=0)
    return (Step(kind="install", what=what, why=why, disk_bytes=disk), *tests)


def builder_of(plan: Plan) -> NodePlan:
    """The node of a shared plan that builds, or only switches the link."""
    return next(node for node in plan.nodes if any(step.kind == "activate" for step in node.steps))
