"""The joint smoke test of `provision/fleet/multi_node_smoke.py` inside images: each node's part runs in a container."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envbuild.model.lock import Variant
from envbuild.model.plan import Plan
from envbuild.provision.contact.first_contact import ContactResult, node_request
from envbuild.provision.fleet import multi_node_smoke
from envbuild.provision.fleet.multi_node_smoke import VERB, Member
from envbuild.provision.images.obtain import wanted
from envbuild.provision.images.plan import NodeImage, most_common
from envbuild.provision.run.context import Work
from envbuild.provision.run.evidence import all_well
from envbuild.provision.run.outcome import Outcome

# What of an install says which image a job tests and how: its record is written after that.
_TESTED = ("command", "inside", "id", "file", "environment")


def meet_images(work: Work, plan: Plan, nodes: Mapping[str, NodeImage], variant: Variant, outcome: Outcome) -> None:
    """The joint test of a run over SSH that brought an image to a node; answers and errors go into the outcome."""
    members = []
    for each in plan.nodes:
        node, facts = each.node, work.survey.facts[each.node]
        if outcome.well(node):
            where = multi_node_smoke.addresses(
                node, multi_node_smoke.own_addresses(facts), work.prepared.target.connection
            )
            members.append(Member(node, each.environment, variant, where, nodes[node].gpus))
    multi_node_smoke.meet_members(work, members, outcome, changed={each.node for each in plan.nodes if each.steps})


def meet_asked(work: Work, answers: Mapping[str, ContactResult]) -> Outcome:
    """The joint test of nodes whose own smoke test went well in the image that most of them have, over SSH."""
    outcome, variant = Outcome(), wanted(work.prepared).variant
    good = {
        node: answer.response["result"]
        for node, answer in answers.items()
        if answer.response and all_well({"smoke": answer.response})
    }
    image = most_common([str(result["record"]["id"]) for result in good.values()])
    members = []
    for node, result in good.items():
        record = result["record"]
        gpus = int(record.get("gpus") or 0)
        # A record that does not say how many GPUs there are is of an earlier version.
        if record["id"] == image and bool(gpus) == bool(record.get("cuda")):
            where = multi_node_smoke.addresses(node, result.get("addresses") or (), work.prepared.target.connection)
            members.append(Member(node, record["environment"], variant, where, gpus))
    multi_node_smoke.meet_members(work, members, outcome)
    return outcome


def in_job(work: Work, nodes: int, variant: Variant, image: Mapping[str, Any], *, recorded: bool) -> dict[str, Any]:
    """By its verb, the request of every node of a job; nothing where no joint test is meant.

    `image`: the record of the image in use (`recorded`), or the arguments of the install that is tested.
    """
    target = work.prepared.target
    gpus = int(image.get("gpus") or 0)
    if nodes < 2 or not multi_node_smoke.wants_to_meet(variant, target) or bool(gpus) != bool(image.get("cuda")):
        return {}
    args = multi_node_smoke.meet_args(variant, target, image["environment"], gpus) | {"most": target.smoke_nodes}
    request = node_request(VERB, target.prefix, args, work.run.id)
    tested = {} if recorded else {key: image[key] for key in _TESTED}
    return {VERB: multi_node_smoke.in_image(request, work.prepared.stack.name, **tested)}


def of_job(work: Work, answers: Mapping[str, Mapping[str, ContactResult]], outcome: Outcome) -> Outcome:
    """What the nodes of a job answered to that, put into the outcome."""
    for node, each in answers.items():
        if VERB in each:
            outcome.take(node, VERB, each[VERB])
    multi_node_smoke.note_floors(work, outcome)
    return outcome
