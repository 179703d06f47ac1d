"""Nodes that have not ended when the time of a play is over: each is told with its step and the last it wrote down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.model.target import Connection
from envbuild.provision.contact.first_contact import contact, node_request
from envbuild.provision.run.context import Work
from envbuild.provision.run.evidence import first_error
from envbuild.provision.run.journal import EventKind
from envbuild.provision.run.outcome import Outcome
from envbuild.provision.run.run_dir import RunDir

LAST_LINES = 10
# A node that hangs may not answer this either.
ASK_SECONDS = 15.0


def end_overdue(
    requests: Mapping[str, Mapping[str, dict[str, Any]]], running: Mapping[str, str], outcome: Outcome, work: Work
) -> None:
    """Give every node that is not done an error. `running`: the steps that had begun; the play has been stopped."""
    late = [node for node, verbs in requests.items() if node in running or not _done(node, verbs, outcome)]
    prefixes = {node: str(next(iter(requests[node].values()))["prefix"]) for node in late if requests[node]}
    lines = last_lines(prefixes, work.run, work.prepared.target.connection)
    for node in late:
        step = running.get(node)
        where = f"the step `{step}` did" if step else "the next step did"
        outcome.errors[node] = EnvbuildError(
            "step-overdue",
            f"{node}: {where} not end within {work.settings.deadline:g} s, and was stopped",
            why=lines.get(node, ""),
            hint="see what hangs there; the same command continues, with `--deadline` it waits longer",
            details={"node": node, "step": step},
        )
        work.journal.append(
            EventKind.STEP_FINISHED, node=node, step=step, status="overdue", seconds=None,
            text="not done within the deadline",
        )  # fmt: skip


def _done(node: str, verbs: Mapping[str, Any], outcome: Outcome) -> bool:
    """The node has answered to everything, or has ended with an error."""
    answers = outcome.responses.get(node, {})
    if node in outcome.errors or first_error(answers.values()) is not None:
        return True
    return bool(answers) and set(verbs) <= set(answers)


def last_lines(prefixes: Mapping[str, str], run: RunDir, connection: Connection) -> dict[str, str]:
    """By node the end of its log of a run, or that it does not answer."""

    def request_for(node: str) -> dict[str, Any]:
        return node_request("log", prefixes[node], {"log_of": run.id, "lines": LAST_LINES}, run.id)

    limit = connection.model_copy(update={"connect_timeout": min(connection.connect_timeout, ASK_SECONDS)})
    found = {}
    for node, answer in contact(prefixes, request_for, limit, ASK_SECONDS, run=run).items():
        try:
            found[node] = "the last lines of its log: " + "; ".join(answer.result()["lines"])
        except EnvbuildError as error:
            found[node] = f"its log cannot be read: {error.what}"
    return found
