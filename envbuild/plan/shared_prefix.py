"""A plan for nodes that share their prefix: one builds, all test. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from envbuild.errors import EnvbuildError
from envbuild.model.lock import Variant
from envbuild.model.plan import NodePlan, Plan, Step
from envbuild.plan.source_builds import lacks_tools

_ONE_KIND = (
    "ask for nodes of one kind (`scheduler: {constraints: ...}`, or another partition or queue) and run once for each; "
    "where one environment would do for all, name it: `--variant ID`"
)


def share(plan: Plan, variants: Mapping[str, Variant] | None = None, *, local: bool = False, pins: bool = True) -> Plan:
    """The plan on a prefix that all nodes share: the first node builds, the others only test what it built.

    `variants`: by node, as they will be built. `local`: each node has a prefix of its own; the others install what it
    has built. `pins`: a job can be given a node by its name, else it builds on whichever it gets.

    Raises EnvbuildError `nodes-differ` (exit 7) when the nodes would not get the same environment, `not-yet-supported`
    (exit 7) for what only nodes without a job can do, and that of a rule where no node can build.
    """
    working = [node for node in plan.nodes if node.steps]
    _refuse_different(working, variants or {})
    first = _builder(working, pins=pins)
    return plan.model_copy(update={"nodes": tuple(_shared(node, first, local) for node in plan.nodes)})


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


def _shared(node: NodePlan, first: str | None, local: bool) -> NodePlan:
    if not node.steps or node.node == first:
        return node
    return node.model_copy(update={"steps": other_steps(node, str(first), local=local)})


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
