"""Plans from recorded facts: no node is asked, nothing is fetched, nothing but the catalog and the facts is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from envbuild.catalog.patches import patches_of
from envbuild.errors import EnvbuildError
from envbuild.hostlist import expand_hosts
from envbuild.model.facts import NodeFacts
from envbuild.model.plan import Plan
from envbuild.model.target import Target
from envbuild.node import identity
from envbuild.node_program import node_pyz_digest
from envbuild.plan.node_steps import Inputs
from envbuild.plan.planner import make_plan
from envbuild.provision.contact.toolchain import NodeTools, disk_bytes, node_tools
from envbuild.provision.run.context import Prepared, Survey
from envbuild.provision.survey.ask import decide, note_refusals
from envbuild.provision.survey.hosts import narrow, unsupported

RUN = "recorded-facts"


def plan_recorded(
    prepared: Prepared, facts: Mapping[str, NodeFacts], *, toolchain_file: Path | None = None, repair: bool = False
) -> tuple[Plan, Survey]:
    """What would be built on nodes with these facts, and what stands against it node by node.

    The prefix is the target's, whatever the facts were recorded for. `repair`: also what they say is there already.
    Raises EnvbuildError `facts-unknown` (exit 2) when a host was asked for that has no facts.
    """
    named = expand_hosts(prepared.choice.hosts) if prepared.choice.hosts else list(facts)
    wanted, _ = narrow(named, prepared.choice.narrowing, "the recorded facts")
    missing = [node for node in wanted if node not in facts]
    if missing:
        raise EnvbuildError(
            "facts-unknown", f"there are no facts of {missing[0]}", why=f"the facts are of {', '.join(facts)}"
        )
    survey = Survey(facts={node: _at_the_prefix(facts[node], prepared.target) for node in wanted})
    decide(prepared, survey, survey.facts)
    note_refusals(prepared, survey)
    tools: dict[str, NodeTools] = {}
    for node in survey.variants:
        try:
            tools[node] = _tools(prepared.target, survey, node, toolchain_file)
        except EnvbuildError as error:
            survey.errors[node] = error
    different = {tool.folder: tool for node in tools.values() for tool in node.tools}
    chosen = {node: item for node, item in survey.resolutions.items() if node in tools or item.refused}
    inputs = Inputs(
        run=RUN,
        controller=identity.here(),
        pyz_digest=node_pyz_digest(),
        tools=tools,
        repair=tuple(tools) if repair else (),
        channels=prepared.channels,
        patches=patches_of(prepared.lock),
        asked=prepared.asked,
        tool_bytes={folder: disk_bytes(tool) for folder, tool in different.items()},
    )
    plan = make_plan(prepared.target, prepared.lock, survey.facts, chosen, inputs)
    if prepared.target.connection.kind == "ssh":
        from envbuild.plan.sharing import Sharing, over_ssh

        least = {node: each.least(survey.facts[node].prefix.path) for node, each in tools.items()}
        plan = over_ssh(plan, Sharing(prepared.target, survey.facts, survey.variants, least))
    plan = prepared.explained(plan)
    return plan.model_copy(update={"warnings": (*_cannot_yet(prepared.target), *plan.warnings)}), survey


def _cannot_yet(target: Target) -> tuple[str, ...]:
    missing = unsupported(target)
    return (f"`provision` cannot do this yet: {'; '.join(missing)} (not-yet-supported)",) if missing else ()


def _tools(target: Target, survey: Survey, node: str, toolchain_file: Path | None) -> NodeTools:
    if target.engine == "container":
        # What an image is built with is no matter of the node.
        return NodeTools((), "", "", "", None)
    facts, resolution = survey.facts[node], survey.resolutions[node]
    variant = survey.variants[node]
    return node_tools(facts, variant, resolution.interpreter, folder=None, toolchain_file=toolchain_file)


def _at_the_prefix(facts: NodeFacts, target: Target) -> NodeFacts:
    """The facts with the target's prefix for this user; free space stays what was recorded."""
    facts = facts.model_copy(update={"home": facts.home or f"/home/{facts.user}"})
    path = facts.filled(target.prefix.replace("{data}", "{home}/.local/share"))
    return facts.model_copy(update={"prefix": facts.prefix.model_copy(update={"path": path})})
