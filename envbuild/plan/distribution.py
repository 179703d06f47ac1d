"""What is built once for many nodes as a whole: who builds an environment, and who takes it over. Pure.

On nodes with a disk each it is packed and handed from node to node (`provision/fleet/distribute.py`); on a prefix that
all nodes share, it is there for all once one has built it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Variant
from envbuild.model.plan import NodePlan, Plan, SpreadClass, Step
from envbuild.model.target import Target
from envbuild.plan.node_steps import NodeTool, toolchain_words
from envbuild.plan.shared_builds import can_build, compiled_wheels, install_args, names_of, stamp_of_environment
from envbuild.text import grouped

# Reading and writing a pack on a disk, in bytes a second; what the network takes is not known here.
UNPACK_BYTES_PER_SECOND = 80e6
# Of an install request, what `unpack` reads too.
_KEPT = ("environment", "stack", "profile", "variant", "controller", "wait")


class Sharing(NamedTuple):
    """What decides who builds for whom, beside the plan.

    `variants`: by node, as they will be built. `least`: by node, the tools without which not even the node program runs
    there; `tool_bytes`: size by folder. `tried`: nodes that were to give an environment and could not; they neither
    give nor take. `jobs` as the steps were made with. `rebuild`: a finished node gives nothing.
    """

    target: Target
    facts: Mapping[str, NodeFacts]
    variants: Mapping[str, Variant]
    least: Mapping[str, Sequence[NodeTool]] = {}
    tool_bytes: Mapping[str, int] = {}
    tried: Collection[str] = ()
    jobs: int | None = None
    rebuild: bool = False


def spread(plan: Plan, by: Sharing) -> Plan:
    """The plan with one builder for all nodes that get the same environment, and steps that say so."""
    if by.target.placement == "shared":
        classes = _on_one_prefix(plan, by.tried)
    elif by.target.placement == "node-local" and by.target.spread:
        classes = _on_own_disks(plan, by)
    else:
        return plan
    takes = {name: each for each in classes for name in each.nodes}
    gives = {each.builder: each for each in classes if each.nodes and not each.finished}

    def told(node: NodePlan) -> NodePlan:
        if node.node in takes:
            group = takes[node.node]
            return (_testing if group.shared else _taking)(node, group, by)
        return _giving(node, gives[node.node]) if node.node in gives else node

    return plan.model_copy(update={"nodes": tuple(map(told, plan.nodes)), "spreads": tuple(classes)})


def _on_own_disks(plan: Plan, by: Sharing) -> list[SpreadClass]:
    given = [node for node in plan.nodes if node.node not in by.tried]
    # A pack holds no link to folders outside the environment.
    alone = {name for name, variant in by.variants.items() if variant.outside}
    takers = [node for node in given if install_args(node) is not None and node.node not in alone]
    donors = [node for node in given if not by.rebuild and _is_finished(node, by.facts[node.node])]
    names = {node.node for node in donors}
    groups = _groups([*donors, *takers], by.facts)
    return [each for group in groups for each in _classes(group, names, by.facts, by.variants)]


def _on_one_prefix(plan: Plan, tried: Collection[str]) -> list[SpreadClass]:
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
            shared=True,
        )
        for environment, group in grouped(working, lambda node: node.environment).items()
        if environment in builders
    ]


def _is_finished(node: NodePlan, facts: NodeFacts) -> bool:
    stamp = stamp_of_environment(facts, node.environment)
    return node.nothing_to_do and stamp is not None and stamp.stamp is not None


def _groups(nodes: Iterable[NodePlan], facts: Mapping[str, NodeFacts]) -> list[list[NodePlan]]:
    """Nodes whose environments would be equal byte for byte, in the order of the plan."""
    found = grouped(nodes, lambda node: _key(node, facts[node.node]))
    return [group for key, group in found.items() if key is not None]


def _key(node: NodePlan, facts: NodeFacts) -> tuple[Any, ...] | None:
    """What must be equal; None where it is not known."""
    stands = _stands_on(node, facts)
    if stands is None or facts.libc.kind != "glibc":
        return None
    return (node.environment, node.variant_digest, facts.os.arch, stands)


def _stands_on(node: NodePlan, facts: NodeFacts) -> tuple[Any, ...] | None:
    """The interpreter: a tool below the prefix by its folder, which has its digest; another by path, version, packages.

    None where that is not known.
    """
    args = install_args(node)
    stamp = stamp_of_environment(facts, node.environment)
    given = (stamp.stamp or {}).get("interpreter") if args is None and stamp is not None else None
    path = given if isinstance(given, str) else node.python
    if path is None:
        return None
    below, _, rest = path.partition(f"{facts.prefix.path}/tools/")
    if not below and rest:
        return (rest.partition("/")[0],)
    for python in facts.pythons:
        if path == python.path or path in python.also:
            return (python.path, python.version, tuple(sorted((python.packages or {}).items())))
    version = next((each["details"]["python"] for each in (stamp.checks if stamp else ()) if _says_version(each)), None)
    return None if version is None else (path, version, ())


def _says_version(check: Mapping[str, Any]) -> bool:
    return bool((check.get("details") or {}).get("python"))


def _classes(
    group: Sequence[NodePlan],
    donors: Collection[str],
    facts: Mapping[str, NodeFacts],
    variants: Mapping[str, Variant],
) -> list[SpreadClass]:
    """One builder for a group; nodes whose C library is older than the builder's make classes of their own."""
    takers = [node for node in group if node.node not in donors]
    if not takers or len(group) < 2:
        return []
    builder = min(group, key=lambda node: _rank(node, donors, facts[node.node], variants.get(node.node)))
    if builder.node not in donors and builder.resolution.wheels_from is not None:
        return []
    ceiling = _glibc(facts[builder.node])
    served = [node for node in takers if node is not builder and _glibc(facts[node.node]) >= ceiling]
    rest = [node for node in group if node is not builder and node not in served]
    here = [
        SpreadClass(
            environment=builder.environment,
            builder=builder.node,
            nodes=tuple(node.node for node in served),
            finished=builder.node in donors,
        )
    ]
    return [*(here if served else ()), *_classes(rest, donors, facts, variants)]


def _rank(
    node: NodePlan, donors: Collection[str], facts: NodeFacts, variant: Variant | None
) -> tuple[bool, bool, tuple[int, ...], int]:
    """Who gives, smallest first: a finished node, one that can compile what has to be, the oldest glibc, most cores."""
    compiles = variant is not None and bool(compiled_wheels(variant))
    lacking = node.resolution.wheels_from is not None or (compiles and not can_build(node, facts))
    unable = node.node not in donors and lacking
    return (node.node not in donors, unable, _glibc(facts), -(facts.cpus or 0))


def _glibc(facts: NodeFacts) -> tuple[int, ...]:
    return tuple(int(part) for part in facts.libc.version.split(".") if part.isdigit())


def _giving(node: NodePlan, group: SpreadClass) -> NodePlan:
    why = f"built once for {len(group.nodes) + 1} nodes: {names_of(list(group.nodes))} take it over"

    # Packed again, it is about as large as what was fetched.
    pack = sum(step.fetch_bytes for step in node.steps)

    def told(step: Step) -> Step:
        if step.kind == "activate":
            return step.model_copy(update={"beside_bytes": pack, "rough": True})
        return step.model_copy(update={"why": f"{step.why}; {why}"}) if step.kind == "install" else step

    return node.model_copy(update={"steps": tuple(told(step) for step in node.steps)})


def _taking(node: NodePlan, group: SpreadClass, by: Sharing) -> NodePlan:
    """Unpacking in place of fetching, delivering and installing; of the tools, only what runs the node program."""
    steps: list[Step] = []
    facts = by.facts[node.node]
    missing = [tool for tool in by.least.get(node.node, ()) if tool.folder not in facts.toolchain]
    for step in node.steps:
        if step.kind == "toolchain" and missing:
            what = toolchain_words(missing, facts.prefix.path)
            amount = 0 if group.shared else sum(by.tool_bytes.get(tool.folder, 0) for tool in missing)
            sums = {"disk_bytes": amount, "inodes": 2 * len(missing)}
            steps.append(step.model_copy(update={"what": what, **sums}))
        elif step.kind == "install":
            steps.append(_unpack(step, group))
        elif step.kind in ("smoke", "activate"):
            steps.append(step)
    return node.model_copy(update={"steps": tuple(steps)})


def _unpack(install: Step, group: SpreadClass) -> Step:
    told = install.request or {}
    request = {**told, "verb": "unpack", "args": {key: told["args"][key] for key in _KEPT if key in told["args"]}}
    there = "is finished there" if group.finished else "is built there first"
    return Step(
        kind="unpack",
        what=f"take over the environment of {group.builder}",
        why=f"the same environment, on an equal interpreter and C library, {there}",
        request=request,
        disk_bytes=install.disk_bytes,
        # The pack, and what an install has beside it.
        beside_bytes=install.fetch_bytes + install.beside_bytes,
        rough=True,
        inodes=install.inodes,
        seconds=round(install.disk_bytes / UNPACK_BYTES_PER_SECOND, 1),
    )


def _testing(node: NodePlan, group: SpreadClass, by: Sharing) -> NodePlan:
    """The smoke test alone, and what runs it; nothing where only a link is switched."""
    taking = _taking(node, group, by).steps if any(step.kind == "smoke" for step in node.steps) else ()
    why = f"the prefix is shared: {group.builder} {'has built' if group.finished else 'builds'}"
    steps = (
        step.model_copy(update={"why": why} if step.kind == "smoke" else {})
        for step in taking
        if step.kind in ("toolchain", "smoke")
    )
    return node.model_copy(update={"steps": tuple(steps)})


def tree(holders: Sequence[str], waiting: Sequence[str], able: Collection[str], at_once: int) -> dict[str, list[str]]:
    """Who gives to whom, in the order in which a node gives: in each round, every node that has it gives it once.

    `able`: nodes that others can connect to. At most `at_once` nodes take part; the rest waits for another tree.
    Nodes that cannot give come last; nobody can give, nothing is drawn.
    """
    giving = [name for name in holders if name in able]
    left = sorted(waiting, key=lambda name: name not in able)
    drawn: dict[str, list[str]] = {}
    part: set[str] = set()
    while left and giving:
        for parent in tuple(giving):
            if not left or len(part | {parent}) >= at_once:
                return drawn
            child = left.pop(0)
            drawn.setdefault(parent, []).append(child)
            part |= {parent, child}
            if child in able:
                giving.append(child)
    return drawn
