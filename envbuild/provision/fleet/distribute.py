"""Carry out a plan in which one node builds an environment and others take it over (`plan/distribution.py` decides).

Builders run first, with the nodes that nobody waits for. What a builder has finished is packed there, goes from node to
node along a tree (`node/packs/relay.py`), and is unpacked, tested and stamped by those who wait. A node that cannot
reach the one above it is sent the pack by this machine. Where a builder fails, the next one tries; what fails on two
nodes for a reason that is not the node's own is not tried on a third. Packs are removed from all nodes afterwards.
"""

from __future__ import annotations

import copy
import ipaddress
import posixpath
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.plan import NodePlan, Plan, SpreadClass
from envbuild.node import proc
from envbuild.node.paths import PACKS
from envbuild.plan.distribution import tree
from envbuild.plan.shared_builds import names_of
from envbuild.plan.source_builds import lacks_tools
from envbuild.provision.contact.first_contact import WORKERS, contact, node_request
from envbuild.provision.contact.receive import receive
from envbuild.provision.fleet.pack_routes import Journey, note, relays
from envbuild.provision.fleet.shared_builds import add_member, execute_once, not_built
from envbuild.provision.run.context import Work
from envbuild.provision.run.journal import EventKind
from envbuild.provision.run.outcome import NodeFiles, Outcome
from envbuild.provision.survey.plan_run import plan_of

Stage = Callable[[Work, Plan], tuple[Plan, dict[str, NodeFiles]]]
PACK_DEADLINE_S = 3600.0
# On every level of a tree a node waits, takes, checks and gives; slower than this many bytes a second is no network.
_LEAST_SPEED = 1e6
_LEVEL_S = 60.0
_TRIES = 2
_OF_THE_NODE = frozenset({ExitCode.UNREACHABLE, ExitCode.REFUSED, ExitCode.TRY_AGAIN, ExitCode.INTERRUPTED})


@dataclass
class _Group:
    """A class while its nodes are provisioned."""

    made: SpreadClass
    waiting: list[str]


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
        self.outcome.errors.update({name: self._ended(name, failed, error) for name in ended})
        waiting = [name for name in waiting if name not in ended]
        return self._plan_again(waiting) if waiting else []

    def _ended(self, node: str, builder: str, error: EnvbuildError) -> EnvbuildError:
        """Why a node ends that nobody builds for any more."""
        resolution, why = self.nodes[node].resolution, not_built(node, builder, error)
        return why if resolution.wheels_from is None else lacks_tools(resolution, str(why))

    def _plan_again(self, waiting: list[str]) -> list[str]:
        """Plan for nodes whose builder failed, without it; returns the new builders."""
        whole = plan_of(self.work)
        refused = {name: error for name, error in self.work.lacking.items() if name in waiting}
        self.outcome.errors.update(refused)
        waiting = [name for name in waiting if name not in refused]
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
        error = self.outcome.error_of(node)
        if error is not None:
            return error
        smoke = (self.outcome.responses.get(node, {}).get("smoke") or {}).get("result") or {}
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
            if isinstance(journey, Journey):
                ready += self._arrived(group, journey)
            else:
                assert journey is not None  # noqa: S101 - without a deadline every call is waited for
                ready += self._not_given(group, journey)
        return ready

    def _not_given(self, group: _Group, error: EnvbuildError) -> list[str]:
        """A finished builder could not pack what it has: that is not its own failure, and another one builds."""
        builder = group.made.builder
        why = ": ".join(filter(None, (error.what, error.why)))
        self.work.notes.append(f"the environment of {builder} could not be handed to {names_of(group.waiting)}: {why}")
        self.work.tried.add(builder)
        waiting, group.waiting = group.waiting, []
        return self._plan_again(waiting)

    def _arrived(self, group: _Group, journey: Journey) -> list[str]:
        """Complete the requests of those who have the pack or get it with the play."""
        pack = journey.pack
        ready = journey.arrives(group.waiting)
        for name in ready:
            self.nodes[name] = _with_pack(self.nodes[name], pack)
            if name in journey.sent:
                store = posixpath.dirname(pack["file"])
                self.files[name] = replace(self.files[name], artifacts=journey.archive, store=store)
        self.outcome.errors.update(journey.errors)
        group.waiting = journey.left
        return ready + (self._not_given(group, journey.why) if journey.why is not None else [])

    def _carry(self, group: _Group) -> Journey | EnvbuildError:
        """Pack on the builder and bring the pack to all who wait."""
        builder, began = group.made.builder, time.monotonic()
        try:
            self.work.progress.stage(f"{builder} hands its environment to {len(group.waiting)} more")
            pack = self._pack(group)
            journey = Journey(pack, [builder], list(group.waiting))
            try:
                self._along_trees(journey)
                self._fetch_for_rest(journey, builder)
            finally:
                self._remove(builder, pack)
            self.work.journal.append(
                EventKind.SPREAD, node=builder, to=journey.arrives(group.waiting),
                sent=journey.sent, bytes=pack["bytes"], format=pack["format"], root=pack["root"],
                seconds=round(time.monotonic() - began, 3),
            )  # fmt: skip
        except EnvbuildError as error:
            return error
        except Exception as error:  # noqa: BLE001 - in a thread; those who wait are given what another builds
            return self.work.run.unexpected("it was not carried", error)
        return journey

    def _ask(self, node: str, verb: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """One request to one node. Raises EnvbuildError."""
        request = node_request(verb, self._prefix(node), args, self.work.run.id)
        connection, deadline = self.work.prepared.target.connection, min(PACK_DEADLINE_S, self.work.settings.deadline)
        return contact([node], lambda _: request, connection, deadline, run=self.work.run)[node].result()

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

    def _along_trees(self, journey: Journey) -> None:
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
                for name, args in relays(drawn, addresses, journey.pack, deadline).items()
            }
            connection = self.work.prepared.target.connection
            answers = contact(requests, requests.__getitem__, connection, deadline + _LEVEL_S, run=self.work.run)
            note(journey, drawn, answers)

    def _address(self, node: str) -> str:
        """Where this machine has reached the node, if other nodes may reach it there too; else empty."""
        found = self.work.survey.contacts.get(node)
        words = found.findings.get("reached", "").split() if found is not None else []
        try:
            address = ipaddress.ip_address(words[2])
        except (IndexError, ValueError):
            return ""
        return "" if address.is_loopback or address.is_link_local or address.is_unspecified else str(address)

    def _fetch_for_rest(self, journey: Journey, builder: str) -> None:
        """Bring the pack here for the nodes that no other node could give it to; the play carries it to them.

        Where it does not come, those who have it already use it all the same.
        """
        if not journey.sent:
            return
        work, pack = self.work, journey.pack
        name = posixpath.basename(pack["file"])
        # Two builders may have packs of one name.
        here, archive = (work.run.staging / f"{kind}-{builder}-{name}" for kind in ("pack", "spread"))
        self.archives += [here, archive]
        connection = work.prepared.target.connection
        try:
            receive(builder, pack["file"], here, size=pack["bytes"], sha256=pack["sha256"], connection=connection)
            add_member(archive, name, here)
            here.unlink()
        except (EnvbuildError, OSError) as error:
            archive.unlink(missing_ok=True)  # it may end anywhere
            full = EnvbuildError("pack-not-written", f"the pack of {builder} cannot be kept here", why=str(error))
            journey.why = full if isinstance(error, OSError) else error
            journey.left, journey.sent = journey.sent, []
            return
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
