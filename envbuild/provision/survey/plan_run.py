"""Look and plan: facts, resolutions and the plan of a run. Changes nothing on a node that has a Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envbuild.catalog.patches import patches_of
from envbuild.errors import EnvbuildError, as_dicts
from envbuild.hostlist import expand_hosts
from envbuild.model.facts import NodeFacts
from envbuild.model.plan import Plan
from envbuild.node import identity
from envbuild.node_program import node_pyz_digest
from envbuild.plan.node_steps import Inputs
from envbuild.plan.planner import make_plan
from envbuild.provision.ansible.play import payload_of, run_hosts
from envbuild.provision.ansible.steps import NodeHost, tmp_folder
from envbuild.provision.contact import toolchain
from envbuild.provision.run.context import Work
from envbuild.provision.run.evidence import first_error
from envbuild.provision.run.findings import Survey
from envbuild.provision.run.journal import EventKind
from envbuild.provision.survey.ask import decide, note_refusals, python_broken, survey_nodes
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
