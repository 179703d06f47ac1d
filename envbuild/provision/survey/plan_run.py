"""Look and plan: facts, resolutions and the plan of a run. Changes nothing on a node that has a Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envbuild.catalog.patches import patches_of
from envbuild.errors import EnvbuildError, as_dicts
from envbuild.hostlist import expand_hosts
from envbuild.model.facts import NodeFacts
from envbuild.model.plan import Plan
from envbuild.model.target import Target
from envbuild.node import identity
from envbuild.node_program import node_pyz_digest
from envbuild.plan.node_steps import Inputs
from envbuild.plan.planner import make_plan
from envbuild.provision.ansible.node_files import payload_of
from envbuild.provision.ansible.play import run_hosts
from envbuild.provision.contact import toolchain
from envbuild.provision.contact.toolchain import NodeTools, disk_bytes, node_tools
from envbuild.provision.run.context import Work
from envbuild.provision.run.evidence import first_error
from envbuild.provision.run.findings import Prepared, Survey
from envbuild.provision.run.journal import EventKind
from envbuild.provision.run.outcome import NodeFiles, tmp_folder
from envbuild.provision.survey.ask import decide, note_refusals, python_broken, survey_nodes
from envbuild.provision.survey.hosts import narrow, unsupported
from envbuild.text import plural


def look(work: Work, *, bring_python: bool) -> None:
    """Ask all nodes and decide for each.

    `bring_python`: put a Python under the prefix of nodes that have none, so that they can be asked; without it such
    nodes are errors (`node-without-python`).
    """
    nodes = expand_hosts(work.prepared.target.hosts)
    meant = work.prepared.selection or plural(len(nodes), "node")
    with work.phase("probe", f"asking {meant}"):
        work.survey = survey_nodes(nodes, work.prepared, work.run, keep=not work.settings.repair)
    if bring_python and work.survey.without_python:
        with work.phase("toolchain", "bringing a Python to nodes that have none"):
            _bring_python(work)
        # What is known of these nodes now may be what others wait for: one that can build for them.
        decide(work.prepared, work.survey, list(work.survey.resolutions))


def plan_surveyed(work: Work) -> Plan:
    """The plan of what was found, written down with what stands against it node by node."""
    for node in work.survey.without_python:
        if (error := work.survey.contacts[node].failure) is not None:
            work.survey.errors.setdefault(node, error)
    work.journal.append(EventKind.CONTACTED, nodes=sorted(work.survey.facts), errors=as_dicts(work.survey.errors))
    note_refusals(work.prepared, work.survey)
    chosen = {node: variant.id for node, variant in work.survey.variants.items()}
    work.journal.append(EventKind.RESOLVED, variants=chosen)
    _find_tools(work)
    plan = plan_of(work)
    work.survey.errors.update(work.lacking)
    return work.planned(plan)


def plan_of(work: Work, artifacts: Mapping[str, Mapping[str, Any]] | None = None) -> Plan:
    """The plan for the nodes that something was chosen for; `artifacts` as `Inputs` has them."""
    from envbuild.catalog.indexes import index_addresses
    from envbuild.catalog.patches import patches_of
    from envbuild.plan.distribution import Sharing, share
    from envbuild.plan.node_steps import Inputs
    from envbuild.plan.planner import make_plan

    prepared, survey = work.prepared, work.survey
    missing = {tool for node, each in work.tools.items() for tool in each.missing(survey.facts[node].toolchain)}
    tools = {tool.folder: toolchain.disk_bytes(tool) for tool in missing}
    inputs = Inputs(
        run=work.run.id,
        controller=_controller(survey),
        pyz_digest=node_pyz_digest(),
        tools=work.tools,
        repair=tuple(node for node in work.tools if node not in work.done) if work.settings.repair else (),
        indexes=index_addresses(),
        channels=prepared.channels,
        artifacts=artifacts or {},
        tool_bytes=tools,
        wait=work.settings.wait,
        patches=patches_of(prepared.lock),
        jobs=work.settings.jobs,
        check_rebuild=work.settings.check_rebuild,
        asked=prepared.asked,
        bundle=str(work.settings.bundle or ""),
    )
    chosen = {
        node: item
        for node, item in survey.resolutions.items()
        if (node in work.tools or item.refused) and (work.only is None or node in work.only)
    }
    facts: Mapping[str, NodeFacts] = survey.facts
    if work.settings.script:  # it builds everything, also what is there already
        facts = {node: each.model_copy(update={"environments": ()}) for node, each in facts.items()}
    made = make_plan(prepared.target, prepared.lock, facts, chosen, inputs)
    made = prepared.explained(made.model_copy(update={"nodes": (*survey.kept.values(), *made.nodes)}))
    least = {node: each.least(survey.facts[node].prefix.path) for node, each in work.tools.items()}
    given = Sharing(
        prepared.target, survey.facts, survey.variants, least, work.tried,
        jobs=work.settings.jobs, rebuild=work.settings.check_rebuild,
    )  # fmt: skip
    made, work.lacking = share(made, given)
    return made


def _controller(survey: Survey) -> dict[str, Any]:
    """This process, and in `ended` the runs of this machine that hold a prefix and are gone: killed, or a node died."""
    ended = set()
    for facts in survey.facts.values():
        party = (facts.busy or {}).get("controller")
        if isinstance(party, dict) and identity.same_machine(party) and not identity.is_alive(party):
            ended.add(str((facts.busy or {}).get("run")))
    return {**identity.here(), **({"ended": sorted(ended)} if ended else {})}


def _find_tools(work: Work) -> None:
    for node, variant in work.survey.variants.items():
        if node in work.survey.errors:
            continue
        try:
            work.tools[node] = toolchain.node_tools(
                work.survey.facts[node],
                variant,
                work.survey.resolutions[node].interpreter,
                folder=work.run.staging,
                toolchain_file=work.settings.toolchain_file,
            )
        except EnvbuildError as error:
            work.survey.errors[node] = error


def _bring_python(work: Work) -> None:
    """Run the toolchain task alone on nodes without a Python, then ask them again."""
    files: dict[str, NodeFiles] = {}
    for node in work.survey.without_python:
        answer = work.survey.contacts[node]
        try:
            tools = toolchain.first_tools(answer, work.prepared.lock.variants, work.settings.toolchain_file)
        except EnvbuildError as error:
            work.survey.errors[node] = error
            continue
        prefix = answer.findings["prefix"]
        tmp = tmp_folder(work.prepared.target.tmp, answer.findings.get("user", ""))
        files[node] = NodeFiles(tools[0].path(prefix), "", payload_of(work, tools, prefix), tmp=tmp)
    outcome = run_hosts({node: {} for node in files}, files, work)
    told = {node: first_error(answers.values()) for node, answers in outcome.responses.items()}
    failed = {**{node: error for node, error in told.items() if error is not None}, **outcome.errors}
    again = survey_nodes([node for node in files if node not in failed], work.prepared, work.run)
    again.errors.update({node: python_broken(node, files[node].python) for node in again.without_python}, **failed)
    work.survey.add(again)


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
        from envbuild.plan.distribution import Sharing, over_ssh

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
