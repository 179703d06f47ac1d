"""One image on the nodes of a target: built or pulled once, brought to those that need it, asked about.

How nodes are reached is a subclass, as in `provision/environments.py`; `plan.py` decides.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError, ExitCode, as_dicts
from envbuild.hostlist import expand_hosts
from envbuild.model.evidence import Check, NodeEvidence
from envbuild.model.facts import NodeFacts
from envbuild.model.plan import NodePlan, Plan
from envbuild.node import identity
from envbuild.provision.ansible.play import node_host, run_hosts
from envbuild.provision.ansible.steps import NodeHost, tmp_folder
from envbuild.provision.contact.first_contact import ContactResult, contact, node_request
from envbuild.provision.contact.toolchain import runner_tools
from envbuild.provision.fleet.multi_node_smoke import note_floors
from envbuild.provision.fleet.rollout import in_waves
from envbuild.provision.images.obtain import Obtained, Wanted, known_id, obtain, settings_of, wanted
from envbuild.provision.images.plan import (
    NodeImage,
    expected_id,
    image_evidence,
    install_args,
    make_plan,
    most_common,
    node_image,
    smoke_args,
    todo,
    verify_args,
)
from envbuild.provision.run import evidence as collect
from envbuild.provision.run.context import Outcome, Question, Route, Work
from envbuild.provision.run.journal import EventKind
from envbuild.provision.survey.ask import decide, refusal
from envbuild.provision.survey.prepare import as_asked
from envbuild.text import plural


def look_request(work: Work, node: str | None = None) -> dict[str, Any]:
    """What asks a node about containers; None: a node of a job, which says its own name."""
    args = {"action": "look", "node": node, "stack": work.prepared.stack.name}
    return node_request("container", work.prepared.target.prefix, args, work.run.id)


def told_of(answer: ContactResult) -> dict[str, Any]:
    """The answer of a node. Raises `node-without-python` (exit 7) with what helps here."""
    if answer.bare:
        raise EnvbuildError(
            "node-without-python",
            f"{answer.node} has no Python 3.6 or newer",
            why="Ansible and the node program run on the node, outside of the image",
            hint="install Python on the node: with `engine: container`, envbuild cannot install it",
            details={"node": answer.node},
        )
    return answer.result()


def no_room(node: str, facts: NodeFacts, size: int) -> EnvbuildError | None:
    """An error where the file of an image cannot even be put down; the runtime's own storage tells for itself."""
    free = facts.prefix.free_bytes
    if free is None or free >= size:
        return None
    return EnvbuildError(
        "disk-full",
        f"{node}: no room for the image in {facts.prefix.path}",
        why=f"it has {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free",
        hint="make room, or name a larger disk as `prefix`; then run the same command again",
        details={"node": node},
    )


def files_for(work: Work, facts: NodeFacts, python: Mapping[str, str], image: Path | None, store: str) -> NodeHost:
    """What is carried to a node: missing tools, and the file of the `image` into `store`."""
    tools = runner_tools(
        facts, python["path"], python["version"], folder=work.run.staging, toolchain_file=work.settings.toolchain_file
    )
    return replace(node_host(work, facts, tools), image=image, store=store)


ASK_DEADLINE = 2 * 3600.0


class InImages(Route):
    """Nodes that are asked one by one: this machine. `look` comes before all else.

    `wanted`: the image; `answers` of the nodes, `why` something is done on which, and the arguments that were `used`.
    `login`: what the login host of jobs said.
    """

    wanted: Wanted

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.answers: dict[str, dict[str, Any]] = {}
        self.nodes: dict[str, NodeImage] = {}
        self.why: dict[str, str] = {}
        self.used: dict[str, dict[str, Any]] = {}
        self.login: dict[str, Any] = {}

    def look(self, work: Work, *, bring_python: bool) -> None:
        """Ask every node once, and decide what is done there. Changes nothing: images bring no Python."""
        self.wanted = wanted(work.prepared)
        self.ask_nodes(work)

    def plan(self, work: Work) -> Plan:
        """The plan of what is known now, written into the run directory."""
        settings = settings_of(work.prepared)
        delivery = "pull" if settings.image or settings.registry else "take in"
        given = (work.prepared, self.wanted, self.nodes, self.why, work.survey.resolutions)
        return work.planned(make_plan(*given, delivery=delivery))

    def ask_nodes(self, work: Work) -> None:
        """Ask, and decide what is done on which node."""
        target = work.prepared.target
        names = expand_hosts(target.hosts)
        with work.phase("probe", f"contacting {work.prepared.selection or plural(len(names), 'node')}"):
            requests = {node: look_request(work, node) for node in names}
            self.take_in(work, contact(requests, target.connection, run=work.run))
        self.decide(work)

    def take_in(self, work: Work, looks: Mapping[str, ContactResult]) -> None:
        """What nodes say of themselves, instead of all that was known of any."""
        survey = work.survey
        self.answers, survey.facts, survey.errors = {}, {}, {}
        for node, look in looks.items():
            try:
                self.answers[node] = self.seen(node, told_of(look))
                facts = NodeFacts.from_plain(self.answers[node]["facts"])
                survey.facts[node] = facts.model_copy(update={"node": node})
            except EnvbuildError as error:
                survey.errors[node] = error

    def seen(self, node: str, look: dict[str, Any]) -> dict[str, Any]:
        """What a node says, with what is known of it otherwise."""
        return look

    def bring(self, work: Work, plan: Plan) -> tuple[Plan, Outcome]:
        """Get the image, and bring it to the nodes that need it."""
        with work.phase("image", "getting the image"):
            got = obtain(
                self.wanted, work.prepared, work.run.path, say=work.journal.stage,
                file=lambda image: any(_carried(work, node, image) for node in self.nodes.values()),
            )  # fmt: skip
        more = todo(self.nodes, got.id)
        if set(more) - set(self.why):
            work.notes.append(f"nodes with another image than {got.id[:12]} get it too: {', '.join(sorted(more))}")
        self.why = more | self.why
        plan = self.plan(work)
        try:
            with work.phase("provision", "bringing the image to the nodes"):
                return in_waves(work, plan, lambda _, part: (part, self._wave(work, part, got)), replan=lambda _: plan)
        finally:
            if got.archive is not None:
                got.archive.unlink(missing_ok=True)

    def meet(self, work: Work, plan: Plan, outcome: Outcome) -> None:
        """There is no joint test; floors of one are said not to be measured."""
        note_floors(work, outcome)

    def evidence(self, work: Work, plan: Plan, outcome: Outcome) -> list[NodeEvidence]:
        """What each node of the plan did."""
        return [self._evidence(work, node, outcome) for node in plan.nodes]

    def ask(self, work: Work, question: Question) -> list[NodeEvidence]:
        """`verify` or `smoke` inside the image in use on every node. Ids that are not equal are a failed check.

        `verify` is always deep there, for starting the image costs the most.
        """
        verb, target = question.verb, work.prepared.target
        asked = {"action": "ask", "stack": work.prepared.stack.name, "verb": verb, "request": asks_of(work, verb)}
        answers = self.ask_all(work, verb, node_request("container", target.prefix, asked, work.run.id))
        if verb == "smoke":
            note_floors(work, Outcome())
        return _equal({node: _asked(node, answer, verb) for node, answer in answers.items()})

    def ask_all(self, work: Work, verb: str, request: dict[str, Any]) -> dict[str, ContactResult]:
        """What every node answers to a request."""
        target = work.prepared.target
        names = expand_hosts(target.hosts)
        with work.phase(verb, f"{verb} in the images of {plural(len(names), 'node')}"):
            return contact(dict.fromkeys(names, request), target.connection, ASK_DEADLINE, run=work.run)

    def decide(self, work: Work) -> None:
        """Decide for every node that has told: how it runs the image, and why it needs one."""
        survey = work.survey
        # The rules of drivers and GPUs are about the variant that the image is of.
        meant = work.prepared.choice._replace(variant=self.wanted.variant.id)
        decide(work.prepared._replace(choice=meant), survey, list(survey.facts))
        for node, facts in survey.facts.items():
            resolution, containers = survey.resolutions[node], self.answers[node]["containers"]
            try:
                if resolution.refused:
                    raise refusal(resolution)
                given = (node, work.prepared, self.wanted, containers, facts)
                self.nodes[node] = node_image(*given, repair=work.settings.repair)
            except EnvbuildError as error:
                survey.errors[node] = error
        work.journal.append(EventKind.CONTACTED, nodes=sorted(survey.facts), errors=as_dicts(survey.errors))
        self.why = todo(self.nodes, expected_id(self.nodes, known_id(self.wanted)))

    def args_of(self, work: Work, node: str, got: Obtained, archive: str | None) -> dict[str, Any]:
        """The arguments of `install` on a node, which are those of `take`, `try` and `accept` in jobs too."""
        facts, containers, settings = self.answers[node]["facts"], self.answers[node]["containers"], work.settings
        return {
            **install_args(work.prepared, self.wanted, got, self.nodes[node], containers, archive=archive),
            "controller": identity.here(),
            "wait": settings.wait,
            "force": settings.repair,
            "tmp": tmp_folder(work.prepared.target.tmp, facts["user"], facts.get("home", "")),
        }

    def _wave(self, work: Work, plan: Plan, got: Obtained) -> Outcome:
        requests: dict[str, dict[str, Any]] = {}
        files: dict[str, NodeHost] = {}
        full: dict[str, EnvbuildError] = {}
        for node_plan in plan.nodes:
            node = node_plan.node
            if not node_plan.steps or (work.only is not None and node not in work.only - work.done):
                continue
            facts, answer, one = work.survey.facts[node], self.answers[node], self.nodes[node]
            store = posixpath.join(facts.prefix.path, "images")
            carried = got.archive if _carried(work, one, got.id) else None
            if carried is not None and (error := no_room(node, facts, carried.stat().st_size)):
                full[node] = error
                continue
            archive = None if carried is None else posixpath.join(store, carried.name)
            args = self.args_of(work, node, got, archive)
            self.used[node] = args
            requests[node] = {"container": node_request("container", facts.prefix.path, args, work.run.id)}
            files[node] = files_for(work, facts, answer["python"], carried, store)
        outcome = run_hosts(requests, files, work, playbook="image.yml")
        outcome.errors.update(full)
        return outcome

    def _evidence(self, work: Work, plan: NodePlan, outcome: Outcome) -> NodeEvidence:
        node = plan.node
        responses = outcome.responses.get(node, {})
        answer, record = responses.get("container"), self.nodes[node].record
        if answer is None and node not in outcome.errors and not plan.steps:
            parts: dict[str, Mapping[str, Any]] = {"verify": {"ok": True, "result": _of_record(record)}, **responses}
        else:
            parts, record = dict(responses), self.used.get(node, {})
            if answer is not None and answer.get("ok"):  # of one verb, as the answers of those that ran inside
                inside = answer["result"]
                parts = {verb: {"ok": True, "result": inside[verb]} for verb in ("verify", "smoke") if verb in inside}
        evidence = collect.node_evidence(plan, work.survey.facts[node], parts, outcome.errors.get(node))
        if not record or evidence.status not in ("ok", "unchanged"):
            return evidence
        image = image_evidence(record, ((answer or {}).get("result") or {}).get("launcher"))
        says = f"{image.runtime} runs the image {image.id[:12]}"
        update = {
            "image": image,
            "packages": {package.name: package.version for package in self.wanted.variant.packages},
            "checks": (Check(name="image/id", status="passed", says=says), *evidence.checks),
        }
        return evidence.model_copy(update=update)


def _carried(work: Work, node: NodeImage, image_id: str) -> bool:
    """Whether the image has to be carried to a node: its runtime does not have it, or not as it should be."""
    record = node.record
    there = node.has and record.get("id") == image_id and record.get("runtime") == node.chosen.runtime
    return work.settings.repair or not there


def _of_record(record: Mapping[str, Any]) -> dict[str, Any]:
    at = record.get("installed_at")
    says = f"contents of the image not read; last read on {at}, when it was brought"
    unread = {"name": "files", "status": "not-run", "level": "not-checked", "says": says, "details": {"read_at": at}}
    known = {"root": record.get("root"), "level": "stamped", "sources": record.get("sources") or []}
    known["base_packages"] = record.get("base_packages") or {}
    return {"ok": True, "checks": [unread], **known}


def _equal(nodes: dict[str, NodeEvidence]) -> list[NodeEvidence]:
    """The evidence, with a failed check where a node runs another image than most."""
    image = most_common([node.image.id for node in nodes.values() if node.image is not None])
    for node, evidence in nodes.items():
        if evidence.image is not None and evidence.image.id != image:
            says = f"this node runs the image {evidence.image.id[:12]}, most run {str(image)[:12]}"
            checks = (*evidence.checks, Check(name="image/equal", status="failed", says=says))
            failed = {"status": "failed", "exit": evidence.exit or int(ExitCode.CHECK_FAILED)}
            nodes[node] = evidence.model_copy(update={"checks": checks, **failed})
    return list(nodes.values())


def _asked(node: str, answer: ContactResult, verb: str) -> NodeEvidence:
    """What a node answered."""
    if answer.failure is not None:
        return collect.failed_node(node, answer.failure)
    result = answer.result()
    record, responses = result["record"], {verb: {"ok": True, "result": result}}
    return collect.inspected_node(
        node, responses, record, environment=result.get("environment"), image=image_evidence(record)
    )


def asks_of(work: Work, verb: str) -> dict[str, Any]:
    """The arguments of a verb inside the image that the target asks for.

    Raises EnvbuildError `option-does-not-fit` (exit 2): nodes are not tested together inside images.
    """
    prepared = work.prepared
    if any(name.partition("/")[0] == "nodes" for name in work.settings.only):
        raise EnvbuildError(
            "option-does-not-fit",
            "`--only nodes` does not fit images",
            why="nodes are tested together in environments of the engines venv and conda",
            hint="`envbuild bench` runs the stack's own command on several nodes",
        )
    image = wanted(prepared)
    if verb == "verify":
        return verify_args(prepared, image)
    # The node knows whether its containers have GPUs.
    return as_asked(prepared, work.settings, smoke_args(prepared, image))
