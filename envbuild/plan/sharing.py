"""Who builds for whom. Pure.

On a prefix that nodes share over SSH, and in a job, one node builds and all test. Wheels are compiled once for many
nodes, with a shared wheel store or without; only without one are they sent. The build key (`node/wheels/build_key.py`)
decides on each node whether a wheel fits it; the classes here are a forecast from the facts. If it is wrong, a node
builds for itself, which only takes longer.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from envbuild.errors import EnvbuildError
from envbuild.model.facts import NodeFacts, StampFacts
from envbuild.model.lock import Variant
from envbuild.model.plan import BuildClass, NodePlan, Plan, Step
from envbuild.model.target import Target
from envbuild.plan.node_steps import toolchain_words
from envbuild.plan.source_builds import compile_seconds, compile_text
from envbuild.plan.tools import Tool
from envbuild.text import grouped

_ONE_KIND = (
    "ask for nodes of one kind (`scheduler: {constraints: ...}`, or another partition or queue) and run once for each. "
    "If one environment fits all of them, name it: `--variant ID`"
)


def share(plan: Plan, given: Sharing) -> Plan:
    """The plan with its builders: of the environment on a shared prefix, else of each wheel for the nodes that it fits.

    Raises EnvbuildError as `in_job` does.
    """
    target = given.target
    if target.connection.kind == "job":
        return in_job(plan, given.variants, local=target.placement == "node-local")
    if target.connection.kind != "ssh" or plan.nothing_to_do:
        return plan
    return share_builds(spread(plan, given), given)


class Sharing(NamedTuple):
    """What decides who builds for whom, beside the plan.

    `variants`: by node, as they will be built. `least`: by node, the tools without which the node program does not run.
    `tried`: nodes that failed to build for others. `jobs`: as the steps were made with. `rebuild`: a finished node
    gives nothing.
    """

    target: Target
    facts: Mapping[str, NodeFacts]
    variants: Mapping[str, Variant]
    least: Mapping[str, Sequence[Tool]] = {}
    tried: Collection[str] = ()
    jobs: int | None = None
    rebuild: bool = False


def spread(plan: Plan, by: Sharing) -> Plan:
    """The plan for a prefix that all nodes share: for each environment one builds, if none has, and the others test."""
    if by.target.placement != "shared":
        return plan
    working = [node for node in plan.nodes if node.steps and node.node not in by.tried]
    finished = {node.environment: node.node for node in plan.nodes if node.nothing_to_do}
    builders = {**{node.environment: node.node for node in reversed(working)}, **finished}
    nodes, classes = {node.node: node for node in plan.nodes}, []
    for environment, group in grouped(working, lambda node: node.environment).items():
        builder = builders[environment]
        others = [node for node in group if node.node != builder]
        made = BuildClass(builder=builder, nodes=tuple(node.node for node in others), finished=environment in finished)
        classes.append(made)
        nodes |= {node.node: _testing(node, made, by) for node in others}
        if others and not made.finished:
            once = f"built once for {len(others) + 1} nodes that share the prefix"
            nodes[builder] = _changed(nodes[builder], partial(_because, once))
    return plan.model_copy(update={"nodes": tuple(nodes.values()), "builds": tuple(classes)})


def _because(more: str, step: Step) -> dict[str, Any]:
    """One more reason for a step."""
    return {"why": f"{step.why}; {more}"}


def _changed(node: NodePlan, change: Callable[[Step], dict[str, Any]]) -> NodePlan:
    """The node with other words or figures of its installation."""
    steps = (step.model_copy(update=change(step)) if step.kind == "install" else step for step in node.steps)
    return node.model_copy(update={"steps": tuple(steps)})


def _testing(node: NodePlan, group: BuildClass, by: Sharing) -> NodePlan:
    """The smoke test alone, and what runs it; nothing where only a link is switched."""
    changes: dict[str, dict[str, Any]] = {}
    if any(step.kind == "smoke" for step in node.steps):
        facts = by.facts[node.node]
        missing = [tool for tool in by.least.get(node.node, ()) if tool.folder not in facts.toolchain]
        why = f"the prefix is shared: {group.builder} {'has built' if group.finished else 'builds'}"
        changes["smoke"] = {"why": why}
        if missing:
            what = toolchain_words(missing, facts.prefix.path)
            changes["toolchain"] = {"what": what, "disk_bytes": 0, "inodes": 2 * len(missing)}
    steps = (step.model_copy(update=changes[step.kind]) for step in node.steps if step.kind in changes)
    return node.model_copy(update={"steps": tuple(steps)})


def in_job(plan: Plan, variants: Mapping[str, Variant] = {}, *, local: bool = False) -> Plan:
    """The plan on a prefix that all nodes share: the first node builds, the others only test what it built.

    `variants`: by node, as they will be built. `local`: each node has a prefix of its own; the others install what it
    has built.

    Raises EnvbuildError `nodes-differ` (exit 7) when the nodes would not get the same environment.
    """
    working = [node for node in plan.nodes if node.steps]
    _refuse_different(working, variants)
    first = working[0].node if working else None
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
    compared = [f"{first.node}: {first.resolution.variant_id}"]
    for node in others[:3]:
        difference = _of_base(node, first, variants) if based else ""
        compared.append(f"{node.node}: {difference or node.resolution.variant_id}")
    raise EnvbuildError(
        "nodes-differ",
        "the nodes of this job would get different environments",
        why=", ".join(compared),
        hint=_ONE_KIND + (", or make the base the same on all nodes" if based else ""),
    )


def _of_base(node: NodePlan, first: NodePlan, variants: Mapping[str, Variant]) -> str:
    """In what the base of a node is not that of the first one; empty where it is the same."""
    here, first_has = variants[node.node].provided, variants[first.node].provided
    names = sorted(name for name in {*here, *first_has} if here.get(name) != first_has.get(name))
    differences = [
        f"{name} {here.get(name, 'is not there')} (not {first_has.get(name, 'there')})" for name in names[:4]
    ]
    if node.python != first.python:
        differences.insert(0, f"{node.python} (not {first.python})")
    return " and ".join(differences)


def other_steps(node: NodePlan, first: str, *, local: bool) -> tuple[Step, ...]:
    """The remaining steps of a node if `first` builds for it."""
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


def compiled_wheels(variant: Variant) -> tuple[str, ...]:
    """The sources whose compiled code becomes wheels; a source that is built in its tree cannot be handed on."""
    return tuple(source.name for source in variant.sources if source.build and source.build.kind != "inplace")


def install_args(node: NodePlan) -> Mapping[str, Any] | None:
    """The arguments of the node's install request, None for a node that installs nothing."""
    request = next((step.request for step in node.steps if step.kind == "install" and step.request is not None), None)
    return None if request is None else request["args"]


def share_builds(plan: Plan, by: Sharing) -> Plan:
    """The plan with the classes of nodes for which one builds, and steps that say so."""
    facts, variants, jobs = by.facts, by.variants, by.jobs or by.target.build_jobs
    able = [node for node in plan.nodes if node.node not in by.tried]

    def gives(node: NodePlan) -> bool:
        """Nothing has to be done there, and its stamp says which wheels it was made with."""
        stamp = stamp_of_environment(facts[node.node], node.environment)
        return node.nothing_to_do and stamp is not None and bool(keys_of((stamp.stamp or {}).get("sources")))

    asking = [node for node in able if install_args(node) is not None and compiled_wheels(variants[node.node])]
    # With `rebuild` one builds in any case, twice.
    donors = {node.variant_digest: node for node in reversed(able) if not by.rebuild and gives(node)}
    classes: list[BuildClass] = []
    nodes = {node.node: node for node in plan.nodes}
    for group in _groups(asking, facts):
        donor, variant = donors.get(group[0].variant_digest), variants[group[0].node]
        # Without a donor, the node with most cores builds; if no node has a compiler, the builder names it.
        compiling = [node for node in group if tools_of(node, facts[node.node])] or group
        builder = donor or max(compiling, key=lambda node: facts[node.node].cpus or 0)
        others = tuple(node.node for node in group if node is not builder)
        if others:
            made = BuildClass(
                builder=builder.node, nodes=others, sources=compiled_wheels(variant), finished=donor is not None
            )
            classes.append(made)
            nodes |= {node.node: _with_class(node, made, variant, facts[node.node].cpus, jobs) for node in group}
    return plan.model_copy(update={"nodes": tuple(nodes.values()), "builds": (*plan.builds, *classes)})


def stamp_of_environment(facts: NodeFacts, environment: str) -> StampFacts | None:
    """The probe's facts of the environment at a path."""
    return next((item for item in facts.environments if item.path == environment), None)


def keys_of(sources: Any) -> dict[str, str]:
    """Build key by source, from the sources of an install result or a stamp."""
    keys: dict[str, str] = {}
    for source in sources if isinstance(sources, list | tuple) else ():
        build = source.get("build") if isinstance(source, Mapping) else None
        if isinstance(build, Mapping) and isinstance(build.get("key"), str):
            keys[str(source.get("name"))] = build["key"]
    return keys


def _groups(nodes: Iterable[NodePlan], facts: Mapping[str, NodeFacts]) -> Iterator[list[NodePlan]]:
    """Nodes that would make equal wheels; those without a compiler join the largest group that they can take from."""

    def of_base(node: NodePlan) -> tuple[str, ...]:
        about = facts[node.node]
        return node.variant_digest, about.os.arch, about.libc.kind, about.libc.version

    for group in grouped(nodes, of_base).values():
        able = grouped(group, lambda node: tools_of(node, facts[node.node]))
        bare = able.pop((), [])
        if able:
            max(able.values(), key=len).extend(bare)
        yield from able.values() if able else [bare]


def tools_of(node: NodePlan, facts: NodeFacts) -> tuple[object, ...]:
    """Compilers and nvcc as a build would find them; empty without a compiler."""
    plain = {(PurePosixPath(compiler.path).name, compiler.version) for compiler in facts.compilers}
    first = {compiler for compiler in plain if compiler[0] in ("gcc", "g++")} or plain
    if not first:
        return ()
    args = install_args(node) or {}
    return (facts.os.id, facts.os.version, tuple(sorted(first)), (args.get("build") or {}).get("nvcc"))


def _with_class(node: NodePlan, group: BuildClass, variant: Variant, cpus: int | None, jobs: int | None) -> NodePlan:
    """The node's steps with what its class does; `cpus` of it, which its compile time was estimated with."""
    names, compiled = ", ".join(group.sources), compile_text(variant, jobs)
    in_tree = [source.name for source in variant.sources if source.build and source.build.kind == "inplace"]
    rest = f"; compile {', '.join(in_tree)} in its tree" if in_tree else ""
    gone = compile_seconds(variant, jobs or cpus)
    if group.finished:
        shared = f"take over {names} as built on {group.builder}{rest}"
    elif node.node == group.builder:
        shared, gone = f"{compiled}; built on {node.node}, taken over by {names_of(group.nodes)}", 0.0
    else:
        shared = f"take over {names}, built on {group.builder} first{rest}"
    return _changed(
        node, lambda step: {"what": step.what.replace(compiled, shared), "seconds": max(0.0, step.seconds - gone)}
    )


def names_of(names: Sequence[str]) -> str:
    """`gpu2`, `gpu2, gpu3 and gpu4`, `gpu2, gpu3, gpu4 and 6 more`."""
    last = names[-1] if len(names) < 5 else f"{len(names) - 3} more"
    first = names[:-1] if len(names) < 5 else names[:3]
    return f"{', '.join(first)} and {last}" if first else last
