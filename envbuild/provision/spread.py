"""Carry out a plan in which one node builds an environment and others take it over (`plan_spread.py` decides who).

Builders run first, with the nodes that nobody waits for. What a builder has finished is packed there, goes from node to
node along a tree (`node/relay.py`), and is unpacked, tested and stamped by those who wait. A node that cannot reach the
one above it is sent the pack by this machine. Where a builder fails, the next one tries; what fails on two nodes for a
reason that is not the node's own is not tried on a third. Packs are removed from all nodes afterwards.
"""

from __future__ import annotations

import copy
import ipaddress
import posixpath
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.plan import NodePlan, Plan, SpreadClass
from envbuild.node import proc
from envbuild.plan_once import names_of
from envbuild.plan_spread import PACKS, tree
from envbuild.provision.build_once import add_member, execute_once, not_built
from envbuild.provision.collect import first_error
from envbuild.provision.contact import WORKERS, ContactResult, contact, node_request
from envbuild.provision.execute import NodeFiles, Outcome
from envbuild.provision.journal import EventKind
from envbuild.provision.look import plan_of
from envbuild.provision.receive import receive
from envbuild.provision.work import Work

Stage = Callable[[Work, Plan], tuple[Plan, dict[str, NodeFiles]]]
Answers = Mapping[str, ContactResult | EnvbuildError]
PACK_DEADLINE_S = 3600.0
# On every level of a tree a node waits, takes, checks and gives; slower than this many bytes a second is no network.
_LEAST_SPEED = 1e6
_LEVEL_S = 60.0
# Below the range from which Linux takes ports for outgoing connections.
_PORTS = range(20000, 32768)
_TRIES = 2
_PEER = ("peer-unreachable", "peer-gave-up")
_OF_THE_NODE = frozenset({ExitCode.UNREACHABLE, ExitCode.REFUSED, ExitCode.TRY_AGAIN, ExitCode.INTERRUPTED})


@dataclass
class _Group:
    """A class while its nodes are provisioned."""

    made: SpreadClass
    waiting: list[str]


@dataclass
class _Journey:
    """How far a pack has come: `holders` have it, `sent` get it from this machine, `errors` end the others."""

    pack: Mapping[str, Any]
    holders: list[str]
    waiting: list[str]
    sent: list[str] = field(default_factory=list)
    errors: dict[str, EnvbuildError] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)
    archive: Path | None = None


def execute_spread(plan: Plan, files: Mapping[str, NodeFiles], work: Work, stage: Stage) -> tuple[Plan, Outcome]:
    """Run every step of every node that has one; the plan as it was carried out, and the answers.

    `stage` prepares the files for a plan that was made anew because a builder failed. Raises EnvbuildError as
    `run_hosts` does.
    """
    if not plan.spreads:
        return plan, execute_once(plan, files, work)
    return _Run(plan, files, work, stage).run()


class _Run:
    """The state between the plays: who still waits, and the plan and files of each node as they are now."""

    def __init__(self, plan: Plan, files: Mapping[str, NodeFiles], work: Work, stage: Stage) -> None:
        self.plan, self.work, self.stage = plan, work, stage
        self.nodes = {node.node: node for node in plan.nodes if node.steps}
        self.files = dict(files)
        self.groups = [_Group(each, [name for name in each.nodes if name in self.nodes]) for each in plan.spreads]
        self.builds = plan.builds
        self.tries: Counter[str] = Counter()
        self.outcome = Outcome()
        self.archives: list[Path] = []

    def run(self) -> tuple[Plan, Outcome]:
        """Play until no node waits."""
        waiting = {name for group in self.groups for name in group.waiting}
        ready = [name for name in self.nodes if name not in waiting]
        try:
            while True:
                ready += self._hand_over([group for group in self.groups if group.waiting and self._has(group)])
                if not ready:
                    break
                now, later = self._at_once(ready)
                self._play(now)
                ready = later
                for group in [each for each in self.groups if each.waiting and each.made.builder in now]:
                    if not self._has(group):
                        ready += self._next(group)
        finally:
            for path in self.archives:
                path.unlink(missing_ok=True)
        plans = tuple(self.nodes.get(node.node, node) for node in self.plan.nodes)
        return self.plan.model_copy(update={"nodes": plans}), self.outcome

    def _has(self, group: _Group) -> bool:
        """The builder of a group is finished, from this run or from an earlier one."""
        builder = group.made.builder
        if builder in self.work.tried:
            return False
        if builder not in self.nodes:
            return group.made.finished
        answers = self.outcome.responses.get(builder, {})
        return builder not in self.outcome.errors and bool((answers.get("activate") or {}).get("ok"))

    def _at_once(self, ready: list[str]) -> tuple[list[str], list[str]]:
        """Who plays now, and who after that: two builders on one prefix would be in each other's way."""
        builders = [group.made.builder for group in self.groups if group.made.shared and group.made.builder in ready]
        later = set(builders[1:])
        return [name for name in ready if name not in later], [name for name in ready if name in later]

    def _play(self, now: list[str]) -> None:
        finished = [node for node in self.plan.nodes if node.nothing_to_do and node.node not in self.nodes]
        part = self.plan.model_copy(
            update={
                "nodes": (*finished, *(self.nodes[name] for name in now)),
                "builds": tuple(each for each in self.builds if set(each.nodes) <= set(now)),
            }
        )
        found = execute_once(part, {name: self.files[name] for name in now}, self.work)
        self.outcome.responses.update(found.responses)
        self.outcome.errors.update(found.errors)

    def _next(self, group: _Group) -> list[str]:
        """Who builds now in place of a builder that failed; where it was tried often enough, those who wait end."""
        failed, waiting = group.made.builder, group.waiting
        group.waiting = []
        error = self._error_of(failed)
        self.work.tried.add(failed)
        if error.exit_code not in _OF_THE_NODE and error.code != "step-failed":
            self.tries.update(waiting)
        ended = [name for name in waiting if self.tries[name] >= _TRIES]
        self.outcome.errors.update({name: not_built(name, failed, error) for name in ended})
        waiting = [name for name in waiting if name not in ended]
        return self._plan_again(waiting) if waiting else []

    def _plan_again(self, waiting: list[str]) -> list[str]:
        """Plan for nodes whose builder failed, without it; returns the new builders."""
        whole = plan_of(self.work)
        made = whole.model_copy(update={"nodes": tuple(node for node in whole.nodes if node.node in waiting)})
        made, files = self.stage(self.work, made)
        self.nodes.update({node.node: node for node in made.nodes if node.node in waiting})
        self.files.update({name: each for name, each in files.items() if name in waiting})
        self.builds = made.builds
        taken: set[str] = set()
        for each in made.spreads:
            names = [name for name in each.nodes if name in waiting]
            if names:
                self.groups.append(_Group(each, names))
                taken.update(names)
        return [name for name in waiting if name not in taken]

    def _error_of(self, node: str) -> EnvbuildError:
        """Why a node that was to give an environment has none."""
        answers = self.outcome.responses.get(node, {})
        error = self.outcome.errors.get(node) or first_error(answers.values())
        if error is not None:
            return error
        smoke = (answers.get("smoke") or {}).get("result") or {}
        failed = [str(each.get("name")) for each in smoke.get("checks", ()) if each.get("status") == "failed"]
        code = ExitCode.BELOW_FLOOR if smoke.get("exit") == ExitCode.BELOW_FLOOR else ExitCode.CHECK_FAILED
        return EnvbuildError(
            "smoke-failed", f"its smoke test failed: {', '.join(failed) or 'no answer'}", exit_code=code
        )

    def _hand_over(self, groups: list[_Group]) -> list[str]:
        """Bring the environments of finished builders to those who wait for them; they are returned, ready to run."""
        ready = [name for group in groups if group.made.shared for name in group.waiting]
        carried = [group for group in groups if not group.made.shared]
        journeys = proc.parallel([partial(self._carry, group) for group in carried])
        for group in groups:
            if group.made.shared:
                group.waiting = []
        for group, journey in zip(carried, journeys, strict=True):
            if isinstance(journey, _Journey):
                ready += self._arrived(group, journey)
            else:
                ready += self._not_given(group, journey)
        return ready

    def _not_given(self, group: _Group, error: EnvbuildError | None) -> list[str]:
        """A finished builder could not pack what it has: that is not its own failure, and another one builds."""
        builder = group.made.builder
        why = ": ".join(filter(None, (error.what, error.why))) if error is not None else "nothing was there to pack"
        self.work.notes.append(f"the environment of {builder} could not be handed to {names_of(group.waiting)}: {why}")
        self.work.tried.add(builder)
        waiting, group.waiting = group.waiting, []
        return self._plan_again(waiting)

    def _arrived(self, group: _Group, journey: _Journey) -> list[str]:
        """Complete the requests of those who have the pack or get it with the play."""
        pack = journey.pack
        ready = [name for name in group.waiting if name not in journey.errors]
        for name in ready:
            self.nodes[name] = _with_pack(self.nodes[name], pack)
            if name in journey.sent:
                store = posixpath.dirname(pack["file"])
                self.files[name] = replace(self.files[name], artifacts=journey.archive, store=store)
        self.outcome.errors.update(journey.errors)
        group.waiting = []
        return ready

    def _carry(self, group: _Group) -> _Journey | EnvbuildError:
        """Pack on the builder and bring the pack to all who wait."""
        builder, began = group.made.builder, time.monotonic()
        try:
            self.work.progress.stage(f"{builder} hands its environment to {len(group.waiting)} more")
            pack = self._pack(group)
            journey = _Journey(pack, [builder], list(group.waiting))
            try:
                self._along_trees(journey)
                self._fetch_for_rest(journey, builder)
            finally:
                self._remove(builder, pack)
        except EnvbuildError as error:
            return error
        except OSError as error:
            return EnvbuildError("pack-not-written", f"the pack of {builder} cannot be kept here", why=str(error))
        self.work.journal.append(
            EventKind.SPREAD, node=builder, to=[name for name in group.waiting if name not in journey.errors],
            sent=journey.sent, bytes=pack["bytes"], format=pack["format"], root=pack["root"],
            seconds=round(time.monotonic() - began, 3),
        )  # fmt: skip
        return journey

    def _ask(self, node: str, verb: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """One request to one node. Raises EnvbuildError."""
        request = node_request(verb, self._prefix(node), args, self.work.run.id)
        connection, deadline = self.work.prepared.target.connection, min(PACK_DEADLINE_S, self.work.settings.deadline)
        answer = contact([node], lambda _: request, connection, deadline)[node]
        if isinstance(answer, EnvbuildError):
            raise answer
        return answer.result()

    def _prefix(self, node: str) -> str:
        return self.work.survey.facts[node].prefix.path

    def _pack(self, group: _Group) -> dict[str, Any]:
        builder = group.made.builder
        packed = all(self.work.survey.facts[name].tools.get("zstd") for name in group.waiting)
        formats = ["tar.zst", "tar"] if packed else ["tar"]
        folder = posixpath.join(self._prefix(builder), PACKS)
        args: dict[str, Any] = {"environment": group.made.environment, "folder": folder, "formats": formats}
        args["durable"] = False
        args["interpreter"] = not all(self._has_interpreter(name) for name in group.waiting)
        return self._ask(builder, "pack", args)

    def _has_interpreter(self, node: str) -> bool:
        """What the environment stands on is on the node already, or comes with the tools that it needs anyway."""
        prefix, tools = self._prefix(node), self.work.tools[node]
        there = {*self.work.survey.facts[node].toolchain, *(tool.folder for tool in tools.least(prefix))}
        return any((tools.interpreter or "").startswith(f"{prefix}/tools/{folder}/") for folder in there)

    def _remove(self, node: str, pack: Mapping[str, Any]) -> None:
        try:
            self._ask(node, "relay", {"file": pack["file"], "remove": True})
        except EnvbuildError as error:
            self.work.notes.append(f"the pack {pack['file']} stays on {node}: {error.what}")

    def _along_trees(self, journey: _Journey) -> None:
        """Let nodes give to nodes, until nobody waits who could still be reached so."""
        addresses = {name: self._address(name) for name in (*journey.holders, *journey.waiting)}
        able = {name for name, address in addresses.items() if address}
        while journey.waiting:
            drawn = tree(journey.holders, journey.waiting, able, WORKERS)
            if not drawn:
                journey.sent += journey.waiting
                journey.waiting = []
                break
            levels = len(drawn).bit_length() + 1
            seconds = levels * (_LEVEL_S + journey.pack["bytes"] / _LEAST_SPEED)
            deadline = min(seconds, self.work.settings.deadline)
            requests = {
                name: node_request("relay", self._prefix(name), args, self.work.run.id)
                for name, args in _relays(drawn, addresses, journey.pack, deadline).items()
            }
            connection = self.work.prepared.target.connection
            _note(journey, drawn, contact(requests, requests.__getitem__, connection, deadline + _LEVEL_S))

    def _address(self, node: str) -> str:
        """Where this machine has reached the node, if other nodes may reach it there too; else empty."""
        found = self.work.survey.contacts.get(node)
        words = found.findings.get("reached", "").split() if found is not None else []
        try:
            address = ipaddress.ip_address(words[2])
        except (IndexError, ValueError):
            return ""
        return "" if address.is_loopback or address.is_link_local or address.is_unspecified else str(address)

    def _fetch_for_rest(self, journey: _Journey, builder: str) -> None:
        """Bring the pack here for the nodes that no other node could give it to; the play carries it to them."""
        if not journey.sent:
            return
        work, pack = self.work, journey.pack
        name = posixpath.basename(pack["file"])
        here, archive = work.run.path / name, work.run.path / f"spread-{name}.tar"
        self.archives += [here, archive]
        connection = work.prepared.target.connection
        receive(builder, pack["file"], here, size=pack["bytes"], sha256=pack["sha256"], connection=connection)
        add_member(archive, name, here)
        here.unlink()
        journey.archive = archive
        megabytes = max(1, round(pack["bytes"] / 1e6))
        work.notes.append(
            f"this machine sent the environment of {builder} ({megabytes} MB) to {names_of(journey.sent)}, "
            "which could not get it from another node"
        )


def _with_pack(node: NodePlan, pack: Mapping[str, Any]) -> NodePlan:
    """The node's plan, where unpacking and stamping know the pack."""
    steps = []
    for step in node.steps:
        request = copy.deepcopy(step.request)
        if step.kind == "unpack" and request is not None:
            request["args"].update({key: pack[key] for key in ("file", "sha256", "format", "root")}, remove=True)
        elif step.kind == "activate" and request is not None:
            request["args"]["root"] = pack["root"]
        steps.append(step.model_copy(update={"request": request}))
    return node.model_copy(update={"steps": tuple(steps)})


def _relays(
    drawn: Mapping[str, list[str]], addresses: Mapping[str, str], pack: Mapping[str, Any], deadline: float
) -> dict[str, dict[str, Any]]:
    """The arguments of `relay` for every node of a tree, with a token for each of its edges."""
    parents = {child: parent for parent, children in drawn.items() for child in children}
    names = list(dict.fromkeys((*drawn, *parents)))
    ports = {name: random.sample(_PORTS, 4) for name in drawn}
    tokens = {child: secrets.token_hex(32) for child in parents}
    # Every node is contacted by a thread of this process; the last ones begin seconds after the first.
    patience = 15.0 + 0.5 * len(names)
    found = {}
    for name in names:
        args: dict[str, Any] = {"file": pack["file"], "sha256": pack["sha256"], "bytes": pack["bytes"]}
        args.update(patience=patience, deadline=deadline)
        if name in parents:
            above = parents[name]
            args["parent"] = {"address": addresses[above], "ports": ports[above], "token": tokens[name]}
        if name in drawn:
            args["children"] = [{"name": child, "token": tokens[child]} for child in drawn[name]]
            args["listen"] = {"address": addresses[name], "ports": ports[name]}
        found[name] = args
    return found


def _note(journey: _Journey, drawn: Mapping[str, list[str]], answers: Answers) -> None:
    """Who has the pack now, who tries another parent, whom this machine has to send it to, and who ends."""
    parents = {child: parent for parent, children in drawn.items() for child in children}
    errors = {child: _error(answers.get(child)) for child in parents}
    journey.holders += [child for child, error in errors.items() if error is None]
    lost = {name for name in drawn if _error(answers.get(name)) is not None}
    journey.holders = [name for name in journey.holders if name not in lost]
    for child, error in errors.items():
        if error is None:
            continue
        if error.code not in _PEER:
            journey.errors[child] = error
        elif parents[child] in lost and child not in journey.again:
            journey.again.add(child)  # its parent had nothing to give: that says nothing of the way between them
            continue
        else:
            journey.sent.append(child)
    done = {*journey.holders, *journey.errors, *journey.sent}
    journey.waiting = [name for name in journey.waiting if name not in done]


def _error(answer: ContactResult | EnvbuildError | None) -> EnvbuildError | None:
    if answer is None or isinstance(answer, EnvbuildError):
        return answer
    try:
        answer.result()
    except EnvbuildError as error:
        return error
    return None
