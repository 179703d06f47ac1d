"""Environments on the nodes of a target: looked for, planned, brought, asked. How nodes are reached is a subclass."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError, as_dicts
from envbuild.hostlist import expand_hosts
from envbuild.model.evidence import NodeEvidence
from envbuild.model.plan import NodePlan, Plan
from envbuild.model.target import Target
from envbuild.node import paths
from envbuild.plan.source_builds import BUNDLE
from envbuild.provision.ansible.play import following, node_host, payload_of, run_hosts, telling
from envbuild.provision.ansible.steps import NodeHost, tmp_folder
from envbuild.provision.contact.first_contact import DEADLINE, ContactResult, ask_each, contact, node_request
from envbuild.provision.contact.toolchain import first_tool
from envbuild.provision.run import evidence as collect
from envbuild.provision.run.context import Outcome, Question, Route, Work
from envbuild.provision.run.journal import EventKind
from envbuild.provision.run.run_dir import RunDir
from envbuild.provision.survey.ask import Current, current_of, decide, note_refusals, python_broken, survey_nodes
from envbuild.provision.survey.plan_run import find_tools, plan_of
from envbuild.text import plural


class Environments(Route):
    """Nodes that are asked one by one: this machine."""

    def look(self, work: Work, *, bring_python: bool) -> None:
        """Ask all nodes and decide for each.

        `bring_python`: put a Python under the prefix of nodes that have none, so that they can be asked; without it
        such nodes are errors (`node-without-python`).
        """
        nodes = expand_hosts(work.prepared.target.hosts)
        meant = work.prepared.selection or plural(len(nodes), "node")
        with work.phase("probe", f"contacting {meant}"):
            work.survey = survey_nodes(nodes, work.prepared, work.run, keep=not work.settings.repair)
        if bring_python and work.survey.without_python:
            with work.phase("toolchain", "bringing a Python to nodes that have none"):
                put_python(work)
            # What is known of these nodes now may be what others wait for: one that can build for them.
            decide(work.prepared, work.survey, list(work.survey.resolutions))

    def plan(self, work: Work) -> Plan:
        """The plan of what was found, written down with what stands against it node by node."""
        survey = work.survey
        for node in survey.without_python:
            if (error := survey.contacts[node].failure) is not None:
                survey.errors.setdefault(node, error)
        work.journal.append(EventKind.CONTACTED, nodes=sorted(survey.facts), errors=as_dicts(survey.errors))
        note_refusals(work.prepared, survey, "`envbuild provision --dry-run --repair` asks it again")
        chosen = {node: variant.id for node, variant in survey.variants.items()}
        work.journal.append(EventKind.RESOLVED, variants=chosen)
        work.tools |= find_tools(work.prepared.target, survey, work.run.staging, work.settings.toolchain_file)
        return work.planned(plan_of(work))

    def bring(self, work: Work, plan: Plan) -> tuple[Plan, Outcome]:
        """Stage what nodes need, and run their steps."""
        plan, files = stage(work, plan)
        with work.phase("provision", "provisioning"):
            return plan, run_hosts(requests_of(plan), files, work)

    def verify(self, work: Work, plan: Plan, outcome: Outcome) -> None:
        """The fast check: what `activate` or the probe saw, else asked for now."""
        by_name = {node.node: node for node in plan.nodes}
        for name, node_plan in by_name.items():
            activated = outcome.responses.get(name, {}).get("activate", {}).get("result") or {}
            result = activated.get("verify") if outcome.well(name) else None
            result = result or _verified_by_probe(work, node_plan)
            if result is not None:
                outcome.responses.setdefault(name, {})["verify"] = {"ok": True, "changed": False, "result": result}
        good = [name for name in by_name if outcome.well(name) and "verify" not in outcome.responses.get(name, {})]
        requests = {}
        for node in good:
            variant = work.survey.variants[node].to_json_dict()
            args = {"stack": plan.stack, "environment": by_name[node].environment, "variant": variant, "deep": False}
            requests[node] = node_request("verify", work.survey.facts[node].prefix.path, args, work.run.id)
        with work.phase("verify", "" if plan.nothing_to_do else "verifying"):
            for node, answer in contact(requests, work.prepared.target.connection, run=work.run).items():
                outcome.take(node, "verify", answer)

    def evidence(self, work: Work, plan: Plan, outcome: Outcome) -> list[NodeEvidence]:
        """What each node of the plan did, and the notes of all."""
        work.notes += [
            f"{node}: {note}"
            for node, answers in outcome.responses.items()
            for answer in answers.values()
            for note in (answer.get("result") or {}).get("notes", ())
        ]
        return [
            collect.node_evidence(
                node,
                work.survey.facts[node.node],
                outcome.responses.get(node.node, {}),
                outcome.errors.get(node.node),
            )
            for node in plan.nodes
        ]

    def ask(self, work: Work, question: Question) -> list[NodeEvidence]:
        """`verify` or `smoke` of the environment in use on every node."""
        return ask_in_use(work, question)


def put_python(work: Work) -> None:
    """Run the toolchain task alone on nodes without a Python, then ask them again."""
    files: dict[str, NodeHost] = {}
    for node in work.survey.without_python:
        answer = work.survey.contacts[node]
        try:
            tool = first_tool(answer, work.prepared.lock.variants, work.settings.toolchain_file)
        except EnvbuildError as missing:
            work.survey.errors[node] = missing
            continue
        prefix = answer.findings["prefix"]
        tmp = tmp_folder(work.prepared.target.tmp, answer.findings.get("user", ""))
        files[node] = NodeHost(node, tool.path(prefix), "", payload=payload_of(work, [tool], prefix), tmp=tmp)
    outcome = run_hosts({node: {} for node in files}, files, work)
    ended = {node: outcome.error_of(node) for node in files}
    failed = {node: error for node, error in ended.items() if error is not None}
    again = survey_nodes([node for node in files if node not in failed], work.prepared, work.run)
    again.errors.update({node: python_broken(node, files[node].python) for node in again.without_python}, **failed)
    work.survey.add(again)


def requests_of(plan: Plan) -> dict[str, dict[str, dict[str, Any]]]:
    """The requests of the nodes that have something to do, by verb."""
    return {
        node.node: {str(step.request["verb"]): step.request for step in node.steps if step.request is not None}
        for node in plan.nodes
        if node.steps
    }


def stage(work: Work, plan: Plan, *, only: str | None = None) -> tuple[Plan, dict[str, NodeHost]]:
    """Everything the controller prepares: payloads, and bundles for nodes that fetch nothing themselves.

    `only`: the node whose prefix all others share.
    """
    made: dict[str, Path] = {}
    requests: dict[str, dict[str, Any]] = {}
    if any(step.kind == "deliver" for node in plan.nodes for step in node.steps):
        from envbuild.provision.deliver import deliver  # few runs bring anything along

        with work.phase("fetch", "getting packages and sources for the nodes"):
            made, requests = deliver(work, plan)
        plan = plan_of(work, requests)
    takers = {name for group in plan.builds if not group.sources for name in group.nodes}
    count = sum(bool(node.steps) for node in plan.nodes)
    if count > 1:
        work.journal.stage(f"preparing tools for {count} nodes")
    files = {}
    for node in plan.nodes:
        if not node.steps or only not in (None, node.node):
            continue
        facts, tools = work.survey.facts[node.node], work.tools[node.node]
        files[node.node] = node_host(work, facts, tools, least=node.node in takers)
        if node.node in made and work.prepared.target.connection.kind != "local":
            store = paths.delivered(facts.stage_prefix, work.survey.variants[node.node].digest)
            files[node.node] = replace(files[node.node], bundles={BUNDLE: made[node.node]}, store=store)
    return plan, files


def _verified_by_probe(work: Work, node: NodePlan) -> dict[str, Any] | None:
    """The result of a `verify` made of what the probe checked already; only where nothing was changed since."""
    if not node.nothing_to_do:
        return None
    for stamp in work.survey.facts[node.node].environments:
        if stamp.path == node.environment and stamp.checks:
            ok = all(check.get("status") != "failed" for check in stamp.checks)
            written = stamp.stamp or {}
            contents = {"packages": written.get("packages") or {}, "sources": written.get("sources") or []}
            return {"ok": ok, "checks": list(stamp.checks), "root": stamp.root, "level": "stamped", **contents}
    return None


def environments(
    target: Target, run: RunDir | None = None, *, detailed: bool = False
) -> dict[str, list[dict[str, Any]] | EnvbuildError]:
    """Every environment under the prefix of every node (`StampFacts` as JSON; `detailed`: `node/shared/look.py`)."""
    answers = ask_each("verify", target, {"tell": "environments", "detailed": detailed}, DEADLINE, run=run)
    return {
        node: answer if isinstance(answer, EnvbuildError) else list(answer["environments"])
        for node, answer in answers.items()
    }


# Asks nodes together that have answered well: their environments, and what they answered.
Together = Callable[[Work, Mapping[str, Current | EnvbuildError], Mapping[str, ContactResult]], Outcome]


def ask_in_use(work: Work, question: Question, together: Together = lambda *_: Outcome()) -> list[NodeEvidence]:
    """Ask every node about its environment in use, and then several `together`."""
    prepared = work.prepared
    with work.phase("probe", "looking for environments"):
        there = environments(prepared.target, work.run)
        current = {node: current_of(prepared, node, answer) for node, answer in there.items()}
    answers = _answers(work, question, current)
    outcome = together(work, current, answers)
    for node, answer in answers.items():
        outcome.take(node, question.verb, answer)
    if question.then is not None:
        able = {node: current[node] for node, answer in answers.items() if answer.response is not None}
        for node, answer in _answers(work, question.then, able).items():
            outcome.take(node, question.then.verb, answer)
    return [
        asked_evidence(node, in_use, outcome.responses.get(node, {}), outcome.errors.get(node))
        for node, in_use in current.items()
    ]


def _answers(
    work: Work, question: Question, current: Mapping[str, Current | EnvbuildError]
) -> dict[str, ContactResult]:
    """What the nodes that have an environment in use answer."""
    prepared, verb = work.prepared, question.verb
    requests: dict[str, dict[str, Any]] = {}
    for node, in_use in current.items():
        if not isinstance(in_use, EnvbuildError):
            environment, variant, stamp = in_use
            work.survey.variants[node] = variant
            args = {"stack": prepared.stack.name, "environment": environment, **question.args(variant, stamp)}
            requests[node] = node_request(verb, prepared.target.prefix, args, work.run.id)
    if not requests:
        return {}
    tells = verb == "smoke"  # what it checks; no log, which pushed out those of builds
    with work.phase(verb, f"{verb} on {plural(len(requests), 'node')}"):
        for node, request in requests.items() if tells else ():
            # As the node has filled it in.
            prefix = posixpath.dirname(posixpath.dirname(request["args"]["environment"]))
            requests[node] = telling({**request, "prefix": prefix}, work.run.id)
            work.journal.tell(EventKind.STEP_STARTED, node=node, step=verb)
        asked = {node: {verb: request} for node, request in requests.items()}
        with following(asked, work) if tells else nullcontext():
            answers = contact(requests, prepared.target.connection, question.deadline, run=work.run)
        for node, reply in answers.items() if tells else ():
            well = reply.failure is None and reply.result().get("ok", True)
            work.journal.tell(EventKind.STEP_FINISHED, node=node, step=verb, status="ok" if well else "failed")
    return answers


def asked_evidence(
    node: str, in_use: Current | EnvbuildError, responses: Mapping[str, Any], error: EnvbuildError | None
) -> NodeEvidence:
    """What one node answered; `error` where it could not, or not to everything."""
    if isinstance(in_use, EnvbuildError):
        return collect.failed_node(node, in_use)
    if not responses:
        silent = EnvbuildError("node-silent", f"{node} did not answer")
        return collect.failed_node(node, error or silent)
    environment, variant, stamp = in_use
    packages = {name: dict(stamp.get(name) or {}) for name in ("packages", "base_packages")}
    about = {"environment": environment, "variant_digest": variant.digest, **packages}
    return collect.inspected_node(node, responses, stamp, error, **about)
