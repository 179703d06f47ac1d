"""The parts of looking and planning: tools, the plan of a run, and a Python for nodes that have none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envbuild.catalog.patches import patches_of
from envbuild.errors import EnvbuildError
from envbuild.model.facts import NodeFacts
from envbuild.model.plan import Plan
from envbuild.node import identity
from envbuild.node_program import node_pyz_digest
from envbuild.plan.node_steps import Inputs
from envbuild.plan.planner import make_plan
from envbuild.provision.ansible.play import payload_of, run_hosts
from envbuild.provision.ansible.steps import NodeHost, tmp_folder
from envbuild.provision.contact import toolchain
from envbuild.provision.run.context import Survey, Work
from envbuild.provision.run.evidence import first_error
from envbuild.provision.survey.ask import python_broken, survey_nodes


def plan_of(work: Work, artifacts: Mapping[str, Mapping[str, Any]] | None = None) -> Plan:
    """The plan for the nodes that something was chosen for; `artifacts` as `Inputs` has them."""
    from envbuild.catalog.indexes import index_addresses
    from envbuild.plan.sharing import Sharing, share

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


def find_tools(work: Work) -> None:
    """The tools of every node that something was chosen for; where they cannot be had, that is the node's error."""
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


def bring_python(work: Work) -> None:
    """Run the toolchain task alone on nodes without a Python, then ask them again."""
    files: dict[str, NodeHost] = {}
    for node in work.survey.without_python:
        answer = work.survey.contacts[node]
        try:
            tools = toolchain.first_tools(answer, work.prepared.lock.variants, work.settings.toolchain_file)
        except EnvbuildError as error:
            work.survey.errors[node] = error
            continue
        prefix = answer.findings["prefix"]
        tmp = tmp_folder(work.prepared.target.tmp, answer.findings.get("user", ""))
        files[node] = NodeHost(node, tools[0].path(prefix), "", payload=payload_of(work, tools, prefix), tmp=tmp)
    outcome = run_hosts({node: {} for node in files}, files, work)
    told = {node: first_error(answers.values()) for node, answers in outcome.responses.items()}
    failed = {**{node: error for node, error in told.items() if error is not None}, **outcome.errors}
    again = survey_nodes([node for node in files if node not in failed], work.prepared, work.run)
    again.errors.update({node: python_broken(node, files[node].python) for node in again.without_python}, **failed)
    work.survey.add(again)
