"""`envbuild doctor --target`: the hosts of a target (of a job target: the login node), each asked once, all at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from envbuild.catalog.indexes import load_indexes
from envbuild.catalog.loader import LoadedStack, lock_path
from envbuild.doctor.controller import Diagnosis
from envbuild.doctor.node import diagnose_node, diagnose_without_python
from envbuild.errors import EnvbuildError
from envbuild.explain.view import Candidates, fitting, offered, outline
from envbuild.hostlist import expand_hosts
from envbuild.lock.files import read_lock
from envbuild.model.facts import NodeFacts
from envbuild.model.target import Target, as_login
from envbuild.provision.contact.first_contact import ContactResult, contact, node_request
from envbuild.provision.survey.ask import index_addresses, rules
from envbuild.resolve.compat import rows_like
from envbuild.resolve.estimate import sources_needed

DEADLINE = 30.0


class Wanted(NamedTuple):
    """A stack and its profile, and the target as commands name it."""

    loaded: LoadedStack
    profile: str
    target: str


@dataclass(frozen=True)
class Visit:
    """What doctor says of one host, or why there is nothing to say."""

    node: str
    lines: tuple[Diagnosis, ...] = ()
    error: EnvbuildError | None = None


def visit(target: Target, stack: Wanted | None = None) -> list[Visit]:
    """One round trip a host, `DEADLINE` seconds each. Changes nothing and submits nothing.

    With a stack, what it needs is looked at, and only the addresses that it fetches from are asked.
    """
    reached = as_login(target)
    nodes = expand_hosts(reached.hosts)
    # pip has the one address that the catalog leaves to the configuration of a machine.
    from pip._internal.models.index import PyPI

    if stack is None:
        args: dict[str, Any] = {"reach": {name: index.url or PyPI.simple_url for name, index in load_indexes().items()}}
    else:
        path = lock_path(stack.loaded, stack.profile)
        lock = read_lock(path) if path.is_file() else outline(stack.loaded.stack, stack.profile)
        args = {"reach": index_addresses(lock), "repositories": sources_needed(lock)}
    if target.tmp:
        args["tmp"] = target.tmp
    if loads := target.scheduler.modules:
        args |= {"modules": [*loads.load], "modules_in": [*loads.use]}
    tried = trial(target)
    if tried is not None:
        args["submit"] = tried

    requests = {node: node_request("doctor", target.prefix, {"node": node, **args}) for node in nodes}
    answers = contact(requests, reached.connection, DEADLINE)
    return [_visit(node, answers[node], target, stack) for node in nodes]


def trial(target: Target) -> list[str] | None:
    """Arguments of sbatch for the smallest job that the target's would be refused with; None without a partition."""
    wanted, queue = target.scheduler, target.partition
    if wanted.kind != "slurm" or queue is None:
        return None
    named: Mapping[str, str | None] = {
        "nodes": str(wanted.nodes) if wanted.nodes else "1", "time": "1", "partition": queue,
        "account": wanted.account, "qos": wanted.qos, "constraint": wanted.constraints,
    }  # fmt: skip
    return [f"--{name}={value}" for name, value in named.items() if value]


def _visit(node: str, answer: ContactResult, target: Target, stack: Wanted | None) -> Visit:
    if answer.bare:
        return Visit(node, tuple(diagnose_without_python(answer.findings, target)))
    try:
        result = answer.result()
    except EnvbuildError as error:
        return Visit(node, error=error)
    facts = NodeFacts.from_plain(result["facts"])
    needs = [] if stack is None else [_needs(stack, facts, target)]
    return Visit(node, (*diagnose_node(facts, result["site"], target), *needs))


def _needs(stack: Wanted, facts: NodeFacts, target: Target) -> Diagnosis:
    """Whether the stack fits this host; where jobs run on others, their GPUs, which are all that is known of them."""
    name, profile = stack.loaded.stack.name, stack.profile
    job = target.connection.kind == "job" and not facts.scheduler.job
    judged = Candidates(stack.loaded, {} if job else {facts.node: facts}, target, rules()).fits()
    plan = f"`envbuild plan {stack.loaded.ref} --target {stack.target}`"
    asks = f"{plan} asks the nodes for driver, nvcc and Python, by a short job"
    if judged[profile].fits and job and not rows_like(target.expects.gpu, rules()):
        return Diagnosis("stack", "warning", f"{name} ({profile})", "", "the target does not say which GPUs nodes have",
                         f"`expects: {{gpu: MODEL}}` in the target file; {asks}")  # fmt: skip
    if judged[profile].fits:
        fits = (
            f"it fits the nodes' GPUs, {target.expects.gpu}; nothing else of them is known yet"
            if job
            else "driver, nvcc, Python and system fit it"
        )
        return Diagnosis("stack", "ok", f"{name} ({profile})", "", fits, asks if job else "")
    other = fitting(stack.loaded, judged)
    return Diagnosis("stack", "missing", f"{name} ({profile})", "", judged[profile].why,
                     offered(stack.loaded.stack, other) if other else f"no other profile of {name} fits")  # fmt: skip
