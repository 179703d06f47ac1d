"""`envbuild doctor --target`: the hosts of a target (of a job target: the login host), each asked once, all at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envbuild.catalog.indexes import load_indexes
from envbuild.doctor.controller import Diagnosis
from envbuild.doctor.node import diagnose_node, diagnose_without_python
from envbuild.errors import EnvbuildError
from envbuild.hostlist import expand_hosts
from envbuild.model.facts import NodeFacts
from envbuild.model.target import Target, as_login
from envbuild.provision.contact.first_contact import ContactResult, contact, node_request

DEADLINE = 30.0


@dataclass(frozen=True)
class Visit:
    """What doctor says of one host, or why there is nothing to say."""

    node: str
    lines: tuple[Diagnosis, ...] = ()
    error: EnvbuildError | None = None


def visit(target: Target) -> list[Visit]:
    """One round trip a host, `DEADLINE` seconds each. Changes nothing and submits nothing."""
    reached = as_login(target)
    nodes = expand_hosts(reached.hosts)
    # pip has the one address that the catalog leaves to the configuration of a machine.
    from pip._internal.models.index import PyPI

    reach = {name: each.url or PyPI.simple_url for name, each in load_indexes().items()}
    args: dict[str, Any] = {"reach": reach}
    if target.tmp:
        args["tmp"] = target.tmp
    tried = trial(target)
    if tried is not None:
        args["submit"] = tried

    def request_for(node: str) -> dict[str, Any]:
        return node_request("doctor", target.prefix, {"node": node, **args})

    answers = contact(nodes, request_for, reached.connection, DEADLINE)
    return [_visit(node, answers[node], target) for node in nodes]


def trial(target: Target) -> list[str] | None:
    """Arguments of sbatch for the smallest job that the target's would be refused with; None without a partition."""
    wanted, queue = target.scheduler, target.partition
    if wanted.kind != "slurm" or queue is None:
        return None
    named: Mapping[str, str | None] = {
        "nodes": str(wanted.nodes) if wanted.nodes else "1", "time": "1", "partition": queue,
        "account": wanted.account, "constraint": wanted.constraints,
    }  # fmt: skip
    return [f"--{name}={value}" for name, value in named.items() if value]


def _visit(node: str, answer: ContactResult, target: Target) -> Visit:
    if answer.bare:
        return Visit(node, tuple(diagnose_without_python(answer.findings, target)))
    try:
        result = answer.result()
    except EnvbuildError as error:
        return Visit(node, error=error)
    facts = NodeFacts.from_plain(result["facts"])
    return Visit(node, tuple(diagnose_node(facts, result["site"], target)))
