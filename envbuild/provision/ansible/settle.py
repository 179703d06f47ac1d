"""Put nodes in order whose environment was to be built again, and where no step came to its end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.model.target import Connection
from envbuild.provision.contact.first_contact import contact, node_request
from envbuild.provision.run.context import Work
from envbuild.provision.run.evidence import all_well
from envbuild.provision.run.outcome import Outcome

# An earlier step may have to be ended first.
ASK_SECONDS = 60.0
Requests = Mapping[str, Mapping[str, dict[str, Any]]]


def settle_play(requests: Requests, running: Collection[str], outcome: Outcome, work: Work) -> None:
    """After a play: of nodes that repair and had begun. Those whose step failed have put everything back themselves."""
    unfinished = {}
    for node, verbs in requests.items():
        answers = outcome.responses.get(node, {})
        repairs = any(told["args"].get("repair") for told in verbs.values())
        begun = node in running or not answers.keys().isdisjoint(("install", "unpack"))
        if repairs and begun and "activate" in verbs and "activate" not in answers and all_well(answers):
            unfinished[node] = verbs["activate"]
    settle(unfinished, work.prepared.target.connection, work)


def settle(activations: Mapping[str, dict[str, Any]], connection: Connection, work: Work) -> None:
    """End the run's steps on nodes, by node its request of `activate`; what was set aside for a repair comes back."""

    def request_for(node: str) -> dict[str, Any]:
        told = activations[node]
        args = {key: told["args"][key] for key in ("environment", "controller") if key in told["args"]}
        return node_request("settle", told["prefix"], args, work.run.id)

    limit = connection.model_copy(update={"connect_timeout": min(connection.connect_timeout, ASK_SECONDS)})
    for node, answer in contact(activations, request_for, limit, ASK_SECONDS, run=work.run).items():
        try:
            if not answer.result()["put_back"]:
                continue
            told = f"{node}: the environment that was to be repaired is back in its place"
        except EnvbuildError as error:
            told = f"{node}: what was set aside for the repair is put back by the next run, for {error.what}"
        work.notes.append(told)
        work.progress.stage(told)
