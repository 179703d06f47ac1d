"""The joint smoke test: which nodes meet and what each is asked (pure), and asking all of them at once over SSH.

Nodes with the same environment meet once all of them have activated it. In a job the script's own variables say who a
node is, see `provision/jobs/provision.py`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from envbuild.errors import EnvbuildError
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Variant
from envbuild.model.target import Connection, Target
from envbuild.node.smoke.rendezvous import PORTS
from envbuild.plan.node_steps import smoke_items, uses_cuda
from envbuild.plan.sharing import stamp_of_environment
from envbuild.provision.contact.first_contact import WORKERS, ContactResult, contact, node_request
from envbuild.provision.run.context import Outcome, Work
from envbuild.provision.run.evidence import all_well
from envbuild.provision.survey.ask import Current, matching_variant
from envbuild.resolve.request import visible_gpus
from envbuild.schedule.script import PORT_BASE, PORT_RANGE
from envbuild.text import grouped

VERB = "meet"
# Nodes are asked within a second of each other over SSH; a job starts them within some.
WAIT = 60.0
RANKS_WITHOUT_GPUS = 2
_SLACK = 60.0
_FIRST_TORCHRUN = Version("1.9")
_MOST_ADDRESSES = 6
_NOWHERE = ("127.", "169.254.", "::1", "fe80", "localhost")


@dataclass(frozen=True)
class Member:
    """A node that may take part: the addresses of its own, and its GPUs (0: the processors do it)."""

    node: str
    environment: str
    variant: Variant
    addresses: tuple[str, ...] = ()
    gpus: int = 0


def wants_to_meet(variant: Variant, target: Target) -> bool:
    """Whether a joint test is meant: the stack tests machines, its torch has torchrun, the target does not say no."""
    torch = variant.torch or variant.provided.get("torch")
    tested = any(item.name == "machine" for item in variant.smoke)
    return target.smoke_nodes != 0 and tested and torch is not None and Version(torch) >= _FIRST_TORCHRUN


def groups(members: Sequence[Member], target: Target) -> list[tuple[Member, ...]]:
    """Who meets whom: nodes with one environment, whichever generation; two at least, at most as the target says."""
    wanting = [member for member in members if wants_to_meet(member.variant, target)]
    alike = grouped(wanting, lambda member: member.variant.digest)
    return [tuple(names[: target.smoke_nodes]) for names in alike.values() if len(names) > 1]


def meet_args(variant: Variant, target: Target, environment: str, gpus: int) -> dict[str, Any]:
    """The arguments of `meet` that are the same on all nodes; `gpus` of the node that has the fewest.

    A node that sees fewer then says so when they meet.
    """
    machine = next(item for item in variant.smoke if item.name == "machine")
    return {
        "environment": environment,
        "cuda": gpus > 0,
        "ranks": gpus or RANKS_WITHOUT_GPUS,
        "variables": variant.variables(target.environment),
        "floors": target.joint_floors,
        "deadline": machine.deadline,
        "wait": WAIT,
        "token": secrets.token_hex(16),
    }


def requests(group: Sequence[Member], target: Target, run: str, number: int = 0) -> dict[str, dict[str, Any]]:
    """The request of each node of a group; its first node is the one that the others come to."""
    first = group[0]
    args = meet_args(first.variant, target, first.environment, min(member.gpus for member in group))
    seed = int(hashlib.sha256(f"{run} {number}".encode()).hexdigest()[:8], 16)
    ports = [PORT_BASE + (seed + index) % PORT_RANGE for index in range(PORTS)]
    where = reached_at(first.node, first.addresses, target.connection)
    place = {"nodes": len(group), "addresses": where, "ports": ports}
    names = [member.node for member in group]
    return {
        member.node: node_request(
            VERB,
            target.prefix,
            {**args, "environment": member.environment, "place": {**place, "rank": rank, "names": names}},
            run,
        )
        for rank, member in enumerate(group)
    }


def job_request(
    target: Target, run: str, variant: Variant, environment: str, gpus: int, nodes: int
) -> dict[str, dict[str, Any]]:
    """By its verb the request of every node of a job, whose script says which rank it is; none where no test is meant.

    `gpus`: as of `meet_args`.
    """
    if nodes < 2 or not wants_to_meet(variant, target):
        return {}
    args = meet_args(variant, target, environment, gpus) | {"most": target.smoke_nodes}
    return {VERB: node_request(VERB, target.prefix, args, run)}


def reached_at(node: str, own: Sequence[str], connection: Connection) -> list[str]:
    """Where other nodes may reach a node: the address that we reach it by, then its own."""
    addresses = dict.fromkeys([connection.reaches(node)[0], *own])
    return [address for address in addresses if not address.startswith(_NOWHERE)][:_MOST_ADDRESSES]


def meet_members(work: Work, members: Sequence[Member], outcome: Outcome, changed: Set[str] | None = None) -> None:
    """The joint tests over SSH of those who may take part; where `changed` is given, of groups with a node in it."""
    target = work.prepared.target
    chosen = groups(members, target)
    if changed is not None:
        chosen = [group for group in chosen if changed & {member.node for member in group}]
    for number, group in enumerate(chosen):
        with work.phase("together", f"joint smoke test of {len(group)} nodes"):
            if len(group) > WORKERS:
                first = f"the joint smoke test took the first {WORKERS} of {len(group)} nodes"
                work.notes.append(f"{first}: more are not asked at once over SSH")
            asked = requests(group[:WORKERS], target, work.run.id, number)
            deadline = float(next(iter(asked.values()))["args"]["deadline"]) + WAIT + _SLACK
            for node, answer in contact(asked, target.connection, deadline, run=work.run).items():
                outcome.take(node, VERB, answer)
    note_floors(work, outcome)


def member_of(work: Work, node: str, environment: str) -> Member | None:
    """A node that may take part by its facts, None where the run knows no variant of it."""
    facts, variant = work.survey.facts.get(node), work.survey.variants.get(node)
    if facts is None:
        return None
    if variant is None:  # nothing had to be done there
        stamp = stamp_of_environment(facts, environment)
        variant = matching_variant(work.prepared.lock, stamp.stamp) if stamp and stamp.stamp else None
    if variant is None:
        return None
    own = tuple(address for nic in facts.nics for address in nic.addresses)
    return Member(node, environment, variant, own, gpus_of(variant, facts, work.prepared.target))


def gpus_of(variant: Variant, facts: NodeFacts, target: Target) -> int:
    """How many GPUs the ranks of a node see; 0 where its torch or its driver use none."""
    seen = facts.shown(variant.variables(target.environment))
    return visible_gpus(seen) if uses_cuda(variant, seen) else 0


def note_floors(work: Work, outcome: Outcome) -> None:
    """A floor that nothing was measured against is not one that was met."""
    target = work.prepared.target
    results = [answers[VERB].get("result") or {} for answers in outcome.responses.values() if VERB in answers]
    measured = any(check.get("metrics") for result in results for check in result.get("checks") or ())
    if target.joint_floors and not measured and target.smoke_nodes != 0:
        names = ", ".join(target.joint_floors)
        images = target.engine == "container"
        why = "inside images there is none" if images else "it takes two good nodes with one environment"
        work.notes.append(f"not measured: {names}, as the joint smoke test did not run: {why}")


def gpus_of_stamp(variant: Variant, stamp: Mapping[str, Any]) -> int:
    """How many GPUs an environment was chosen for, seen or not; 0 where its torch uses none."""
    hardware = (stamp.get("evidence") or {}).get("hardware") or {}
    return len(hardware.get("gpus") or ()) if hardware.get("driver") and variant.uses_cuda else 0


def smoke_args(variant: Variant, stamp: Mapping[str, Any], target: Target) -> dict[str, Any]:
    """The arguments of `smoke` for the environment in use, all but its path."""
    cuda = gpus_of_stamp(variant, stamp) > 0
    return {"variant": variant.to_json_dict(), "items": smoke_items(variant, target), "cuda": cuda}


def meet_in_use(
    work: Work, current: Mapping[str, Current | EnvbuildError], answers: Mapping[str, ContactResult]
) -> Outcome:
    """The joint test of nodes whose own smoke test went well, over SSH."""
    outcome, members = Outcome(), []
    if len(answers) < 2:
        return outcome
    for node, in_use in current.items():
        answer = answers.get(node)
        if isinstance(in_use, EnvbuildError) or answer is None or answer.response is None:
            continue
        environment, variant, stamp = in_use
        if all_well({"smoke": answer.response}):
            own = tuple(answer.response.get("result", {}).get("addresses") or ())
            members.append(Member(node, environment, variant, own, gpus_of_stamp(variant, stamp)))
    meet_members(work, members, outcome)
    return outcome
