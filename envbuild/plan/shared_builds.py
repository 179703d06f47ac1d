"""What is compiled once for many nodes: who builds, and who takes it over. Pure.

Whether the nodes share a wheel store does not matter here; where they do, nothing has to be carried.
The build key (`node/wheels/build_key.py`) decides on the node whether a wheel is right for it; the classes here are
what the facts say about that beforehand. Where they are wrong, a node builds for itself: correct, and only slower.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from envbuild.model.facts import NodeFacts, StampFacts
from envbuild.model.lock import Variant
from envbuild.model.plan import BuildClass, NodePlan, Plan, Step
from envbuild.plan.source_builds import compile_seconds, compile_text, lacking

BUILDERS = 2
# Of `tools_of`: what comes before nvcc.
_BESIDE_NVCC = 3


def compiled_wheels(variant: Variant) -> tuple[str, ...]:
    """The sources whose compiled code becomes wheels; what is built in its tree cannot be handed on."""
    return tuple(source.name for source in variant.sources if source.build and source.build.kind != "inplace")


def install_args(node: NodePlan) -> Mapping[str, Any] | None:
    """The arguments of the node's install request, None for a node that installs nothing."""
    found = next((step.request for step in node.steps if step.kind == "install" and step.request is not None), None)
    return None if found is None else found["args"]


def share_builds(
    plan: Plan,
    facts: Mapping[str, NodeFacts],
    variants: Mapping[str, Variant],
    *,
    jobs: int | None = None,
    check_rebuild: bool = False,
) -> Plan:
    """The plan with the classes of nodes for which one builds, and steps that say so.

    `variants`: by node, as it will be built; `jobs` as the steps were made with. With `check_rebuild` one builds in any
    case, twice.
    """
    asking = [node for node in plan.nodes if _asks(node, variants)]
    finished = [] if check_rebuild else [node for node in plan.nodes if _gives(node, facts[node.node])]
    donors = {node.variant_digest: node for node in reversed(finished)}
    classes = tuple(
        made
        for group in _groups(asking, facts)
        if (made := _class(group, donors.get(group[0].variant_digest), facts, variants)) is not None
    )
    told = {name: each for each in classes for name in each.nodes}
    nodes = tuple(
        _told(node, told[node.node], variants[node.node], jobs or facts[node.node].cpus, jobs)
        if node.node in told
        else node
        for node in plan.nodes
    )
    return plan.model_copy(update={"nodes": nodes, "builds": classes})


def _asks(node: NodePlan, variants: Mapping[str, Variant]) -> bool:
    """The node would compile a wheel."""
    return install_args(node) is not None and node.node in variants and bool(compiled_wheels(variants[node.node]))


def _gives(node: NodePlan, facts: NodeFacts) -> bool:
    """Nothing has to be done on the node, and its stamp says which wheels it was made with."""
    stamp = stamp_of_environment(facts, node.environment)
    return node.nothing_to_do and stamp is not None and bool(keys_of((stamp.stamp or {}).get("sources")))


def stamp_of_environment(facts: NodeFacts, environment: str) -> StampFacts | None:
    """What the probe found at the path of an environment."""
    return next((each for each in facts.environments if each.path == environment), None)


def keys_of(sources: Any) -> dict[str, str]:
    """Build key by source, of what an install result or a stamp says of its sources."""
    found: dict[str, str] = {}
    for source in sources if isinstance(sources, list | tuple) else ():
        build = source.get("build") if isinstance(source, Mapping) else None
        if isinstance(build, Mapping) and isinstance(build.get("key"), str):
            found[str(source.get("name"))] = build["key"]
    return found


def _groups(nodes: Iterable[NodePlan], facts: Mapping[str, NodeFacts]) -> list[list[NodePlan]]:
    """Nodes that would make equal wheels; one that lacks a tool joins the largest group that it can take from."""
    able: dict[tuple[tuple[str, ...], tuple[object, ...]], list[NodePlan]] = {}
    bare: dict[tuple[tuple[str, ...], tuple[object, ...]], list[NodePlan]] = {}
    for node in nodes:
        there = facts[node.node]
        tools = tools_of(node, there)
        base: tuple[str, ...] = (node.variant_digest, there.os.arch, there.libc.kind, there.libc.version)
        if can_build(node, there):
            able.setdefault((base, tools), []).append(node)
        else:
            # Of a node without nvcc, the compilers have to be those of the builder; see `why_not_for` of the build key.
            bare.setdefault((base, tools[:_BESIDE_NVCC]), []).append(node)
    for (base, tools), group in bare.items():
        fitting = [key for key in able if key[0] == base and tools in ((), key[1][:_BESIDE_NVCC])]
        if fitting:
            able[max(fitting, key=lambda key: len(able[key]))] += group
        else:
            able[base, ("bare", *tools)] = group
    return list(able.values())


def can_build(node: NodePlan, facts: NodeFacts) -> bool:
    """The node has what it takes to compile: compilers, and nvcc where CUDA code is compiled."""
    return node.resolution.wheels_from is None and bool(tools_of(node, facts))


def tools_of(node: NodePlan, facts: NodeFacts) -> tuple[object, ...]:
    """Compilers and nvcc as a build would find them; empty for a node that has no compiler."""
    plain = {(PurePosixPath(each.path).name, each.version) for each in facts.compilers}
    first = {each for each in plain if each[0] in ("gcc", "g++")} or plain
    if not first:
        return ()
    args = install_args(node) or {}
    return (facts.os.id, facts.os.version, tuple(sorted(first)), (args.get("build") or {}).get("nvcc"))


def _class(
    group: list[NodePlan], donor: NodePlan | None, facts: Mapping[str, NodeFacts], variants: Mapping[str, Variant]
) -> BuildClass | None:
    """None where one node is left to itself. Builders are those with most cores, in the order of the plan."""
    names = [node.node for node in group]
    able = [node.node for node in group if can_build(node, facts[node.node])]
    # Where no node has a compiler, one says so; without nvcc, all are refused (`left_alone`).
    able = able or [node.node for node in group if node.resolution.wheels_from is None]
    builders = sorted(able, key=lambda name: -(facts[name].cpus or 0))[:BUILDERS]
    if donor is None and (len(names) < 2 or not builders):
        return None
    return BuildClass(
        sources=compiled_wheels(variants[names[0]]),
        nodes=tuple(names),
        builders=tuple(builders) if len(names) > 1 else (),
        donor=None if donor is None else donor.node,
    )


def left_alone(plan: Plan, variants: Mapping[str, Variant]) -> tuple[str, ...]:
    """Nodes that cannot compile and would have to: no node of this plan gives them what they need."""
    taking = {name for each in plan.builds for name in each.nodes}
    return tuple(
        node.node
        for node in plan.nodes
        if node.resolution.wheels_from is not None
        and install_args(node) is not None
        and (node.node not in taking or _in_its_tree(node, variants[node.node]))
    )


def _in_its_tree(node: NodePlan, variant: Variant) -> bool:
    """Something is built in its tree, on the node itself, which cannot do that."""
    lacks = lacking(variant, node.resolution)
    return any(each.build and each.build.kind == "inplace" and each.name in lacks for each in variant.sources)


def without(plan: Plan, names: Collection[str]) -> Plan:
    """The plan without some nodes, none of which gives anything to others."""
    builds = (each.model_copy(update={"nodes": tuple(n for n in each.nodes if n not in names)}) for each in plan.builds)
    nodes = tuple(node for node in plan.nodes if node.node not in names)
    return plan.model_copy(update={"nodes": nodes, "builds": tuple(each for each in builds if each.nodes)})


def _told(node: NodePlan, group: BuildClass, variant: Variant, width: int | None, jobs: int | None) -> NodePlan:
    """The node's steps with what its class does; `width`: jobs that its compile time was estimated with."""
    names, compiled = ", ".join(group.sources), compile_text(variant, jobs)
    gone = compile_seconds(variant, width)
    if group.donor is not None:
        said = f"take over {names} as built on {group.donor}{_in_place(variant)}"
    elif node.node == group.builders[0]:
        others = [name for name in group.nodes if name != node.node]
        said, gone = f"{compiled}; built on {node.node}, taken over by {names_of(others)}", 0.0
    else:
        said = f"take over {names}, built on {group.builders[0]} first{_in_place(variant)}"

    def changed(step: Step) -> Step:
        what = step.what.replace(compiled, said)
        return step.model_copy(update={"what": what, "seconds": max(0.0, step.seconds - gone)})

    steps = tuple(changed(step) if step.kind == "install" else step for step in node.steps)
    return node.model_copy(update={"steps": steps})


def _in_place(variant: Variant) -> str:
    names = [source.name for source in variant.sources if source.build and source.build.kind == "inplace"]
    return f"; compile {', '.join(names)} in its tree" if names else ""


def names_of(names: list[str]) -> str:
    """`gpu2`, `gpu2, gpu3 and gpu4`, `gpu2, gpu3, gpu4 and 6 more`."""
    last = names[-1] if len(names) < 5 else f"{len(names) - 3} more"
    first = names[:-1] if len(names) < 5 else names[:3]
    return f"{', '.join(first)} and {last}" if first else last
