"""The plan of a run, and plans from recorded facts: tools, steps, and who builds for whom."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from envbuild.catalog.node_facts import of_target
from envbuild.catalog.patches import patches_of
from envbuild.errors import EnvbuildError
from envbuild.hostlist import expand_hosts
from envbuild.model.facts import NodeFacts
from envbuild.model.plan import Plan
from envbuild.model.target import Target
from envbuild.node import identity
from envbuild.plan.node_steps import Inputs
from envbuild.plan.planner import make_plan
from envbuild.plan.sharing import Sharing, share
from envbuild.plan.tools import NodeTools
from envbuild.provision.contact.toolchain import disk_bytes, node_tools
from envbuild.provision.run.context import Prepared, Survey, Work
from envbuild.provision.survey.ask import decide, note_refusals
from envbuild.provision.survey.hosts import narrow, unsupported


def plan_of(work: Work, artifacts: Mapping[str, Mapping[str, Any]] | None = None) -> Plan:
    """The plan for the nodes that something was chosen for; `artifacts` as `Inputs` has them."""
    prepared, survey, settings = work.prepared, work.survey, work.settings
    facts: Mapping[str, NodeFacts] = survey.facts
    if settings.script:  # it builds everything, also what is there already
        facts = {node: observed.model_copy(update={"environments": ()}) for node, observed in facts.items()}
    made = _planned(
        prepared, survey, work.tools, facts,
        run=work.run.id,
        controller=_controller(survey),
        repair=tuple(node for node in work.tools if node not in work.done) if settings.repair else (),
        only=work.only,
        artifacts=artifacts or {},
        wait=settings.wait,
        jobs=settings.jobs,
        check_rebuild=settings.check_rebuild,
        bundle=str(settings.bundle or ""),
    )  # fmt: skip
    made = prepared.explained(made.model_copy(update={"nodes": (*survey.kept.values(), *made.nodes)}))
    given = _sharing(prepared.target, survey, work.tools)
    return share(made, given._replace(tried=work.tried, jobs=settings.jobs, rebuild=settings.check_rebuild))


def plan_recorded(
    prepared: Prepared,
    facts: Mapping[str, NodeFacts],
    *,
    toolchain_file: Path | None = None,
    repair: bool = False,
    bundle: str = "",
    seen: Container[str] = (),
) -> tuple[Plan, Survey]:
    """What would be built on nodes with these facts, and what stands against it node by node.

    No node is asked and nothing is fetched. The prefix is the target's; facts of another one warn. `repair`: also what
    they say is there already. `bundle`: what the user brings, as the plan names it. `seen`: modules that were loaded
    where the facts were recorded. Raises EnvbuildError `facts-unknown` (exit 2) when a host was asked for that has no
    facts.
    """
    named = expand_hosts(prepared.choice.hosts) if prepared.choice.hosts else list(facts)
    wanted, _ = narrow(named, prepared.choice.narrowing, "the recorded facts")
    missing = [node for node in wanted if node not in facts]
    if missing:
        raise EnvbuildError(
            "facts-unknown", f"there are no facts of {missing[0]}", why=f"the facts are of {', '.join(facts)}"
        )
    target = prepared.target
    placed, warnings = of_target({node: facts[node] for node in wanted}, target)
    survey = Survey(facts=placed)
    decide(prepared, survey, survey.facts)
    note_refusals(prepared, survey)
    tools = find_tools(target, survey, None, toolchain_file)
    plan = _planned(
        prepared, survey, tools, survey.facts,
        run="recorded-facts", controller=identity.here(), repair=tuple(tools) if repair else (), bundle=bundle,
    )  # fmt: skip
    if target.connection.kind != "job":
        plan = share(plan, _sharing(target, survey, tools))
    plan = prepared.explained(plan)
    folders = {tree.name: tree.at for variant in prepared.lock.variants for tree in variant.trees if tree.at}
    if target.connection.kind != "local":
        warnings += [
            f"the source {name} is the folder {at} of this machine: the nodes need it at the same path, or `git:` and "
            "`commit:` in the stack file"
            for name, at in folders.items()
        ]
    loaded = target.scheduler.modules.load if target.scheduler.modules else ()
    unseen = [module for module in loaded if module not in seen]
    if unseen:
        warnings.append(
            f"jobs of {target.name} load {', '.join(unseen)}: facts recorded outside such a job do not show what "
            "it brings; `envbuild doctor --target TARGET --facts-out FILE` records them in one"
        )
    warnings += [
        f"`provision` cannot do this yet: {cannot} (not-yet-supported); write `{instead}`"
        for cannot, instead in unsupported(target).items()
    ]
    return plan.model_copy(update={"warnings": (*warnings, *plan.warnings)}), survey


def _planned(
    prepared: Prepared, survey: Survey, tools: Mapping[str, NodeTools], facts: Mapping[str, NodeFacts], *,
    only: frozenset[str] | None = None, **given: Any,
) -> Plan:  # fmt: skip
    """Steps for the nodes that something was chosen for, `only` these (None: all); `given` as `Inputs` has it."""
    from envbuild.catalog.indexes import index_addresses

    missing = {tool for node, node_tools in tools.items() for tool in node_tools.missing(survey.facts[node].toolchain)}
    inputs = Inputs(
        tools=tools,
        channels=prepared.channels,
        indexes=index_addresses(),
        tool_bytes={tool.folder: disk_bytes(tool) for tool in missing},
        undownloaded=[tool for tool in missing if tool.kind == "tree" and not tool.source.is_file()],
        patches=patches_of(prepared.lock),
        asked=prepared.asked,
        **given,
    )
    chosen = {
        node: resolution
        for node, resolution in survey.resolutions.items()
        if (node in tools or resolution.refused) and (only is None or node in only)
    }
    return make_plan(prepared.target, prepared.lock, facts, chosen, inputs)


def _sharing(target: Target, survey: Survey, tools: Mapping[str, NodeTools]) -> Sharing:
    least = {node: node_tools.least(survey.facts[node].prefix.path) for node, node_tools in tools.items()}
    return Sharing(target, survey.facts, survey.variants, least)


def _controller(survey: Survey) -> dict[str, Any]:
    """This process, and in `ended` the runs of this machine that hold a prefix and are gone: killed, or a node died."""
    ended = set()
    for facts in survey.facts.values():
        party = (facts.busy or {}).get("controller")
        if isinstance(party, dict) and identity.same_machine(party) and not identity.is_alive(party):
            ended.add(str((facts.busy or {}).get("run")))
    return {**identity.here(), **({"ended": sorted(ended)} if ended else {})}


def find_tools(
    target: Target, survey: Survey, folder: Path | None, toolchain_file: Path | None
) -> dict[str, NodeTools]:
    """The tools of every node that something was chosen for; where they cannot be had, that is the node's error.

    `folder` as of `node_tools`. What an image is built with is no matter of the node.
    """
    tools: dict[str, NodeTools] = {}
    for node, variant in survey.variants.items():
        if target.engine == "container":
            tools[node] = NodeTools((), "", "", "", None)
        elif node not in survey.errors:
            facts, python = survey.facts[node], survey.resolutions[node].interpreter
            try:
                tools[node] = node_tools(facts, variant, python, folder=folder, toolchain_file=toolchain_file)
            except EnvbuildError as error:
                survey.errors[node] = error
    return tools
