"""Where `bench` runs a stack's own command: on this machine, on nodes over SSH, or as jobs of a scheduler."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from envbuild.errors import EnvbuildError
from envbuild.hostlist import expand_hosts
from envbuild.launch.job_steps import LATE
from envbuild.launch.recipes import launch
from envbuild.launch.topology import Place
from envbuild.model.evidence import NodeEvidence
from envbuild.model.facts import NodeFacts
from envbuild.model.launch import Launch
from envbuild.model.reference import Bench
from envbuild.provision.jobs.facts_cache import facts_file, read_facts
from envbuild.provision.jobs.launch import Asked, end_of_job, make_job
from envbuild.provision.jobs.site import JobSite
from envbuild.provision.own_run import Log, OwnRun, carry_out, facts_of, shows
from envbuild.provision.run.context import Work
from envbuild.provision.run.findings import Prepared
from envbuild.schedule.job import Job


@dataclass(frozen=True, slots=True)
class Way:
    """The launch at its place, what is known of a node that runs it, and what runs it once under a name.

    Which nodes a job runs on is known once it has run: the log of each has their facts.
    """

    launch: Launch
    facts: NodeFacts | None
    run: Callable[[str], Log]


def narrowed(prepared: Prepared, nodes: int) -> Prepared:
    """The first nodes of a target that names them. Raises EnvbuildError `launch-does-not-fit` (exit 7)."""
    if prepared.target.connection.kind == "job":
        return prepared
    hosts = expand_hosts(prepared.target.hosts)
    if nodes > len(hosts):
        raise EnvbuildError(
            "launch-does-not-fit",
            f"{nodes} nodes were asked for, and {prepared.target.name} has {len(hosts)}",
            hint=f"--nodes {len(hosts)}",
        )
    return prepared._replace(target=prepared.target.model_copy(update={"hosts": tuple(hosts[:nodes])}))


def way(work: Work, told: Bench, asked: Asked, place: Place | None, nodes: Sequence[NodeEvidence]) -> Way:
    """How the target runs what is `asked`. `nodes` have the environment; `place`: None for a job, which says it.

    Raises EnvbuildError as the recipe and `make_job` do, and `environments-differ` (exit 7).
    """
    prepared, connection = work.prepared, work.prepared.target.connection
    if place is None:
        site, job, made = make_job(prepared.target, prepared.stack, prepared.profile, asked, work.run.id)
        return Way(made, None, partial(_in_job, work, told, site, job, asked.deadline or 0.0))
    hosts = tuple(node.node for node in nodes) if connection.kind == "ssh" else ()
    if hosts:
        place = _there(work, place, asked, nodes)
    made = launch(prepared.stack, prepared.profile, asked.values, place)
    # A single command starts the other nodes itself.
    activate = f"{place.environment}/.envbuild/activate.sh"
    run = OwnRun(made, activate, place.output, asked.deadline or 0.0, hosts[: len(made.commands)])
    return Way(made, facts_of(work, nodes[0].node), partial(carry_out, work, told, run))


def _there(work: Work, place: Place, asked: Asked, nodes: Sequence[NodeEvidence]) -> Place:
    environments = {node.environment: node.node for node in nodes}
    if len(environments) > 1:
        raise EnvbuildError(
            "environments-differ",
            "the nodes have different environments in use",
            why=", ".join(f"{node}: {path}" for path, node in environments.items()),
            hint="`--limit HOSTS` takes nodes of one kind",
        )
    (environment,) = environments
    top = posixpath.dirname(posixpath.dirname(str(environment)))
    output = posixpath.join(top, "launches", f"{work.prepared.stack.name}-{work.run.id}")
    first = work.prepared.target.connection.reaches(nodes[0].node)[0]
    told = {"environment": environment, "output": asked.output or output, "master": place.master or first}
    return place.model_copy(update=told)


def _in_job(work: Work, told: Bench, site: JobSite, job: Job, deadline: float, name: str) -> Log:
    """One job, with a folder of its own."""
    show = shows(work, told, name)

    def say(text: str) -> None:
        for line in text.splitlines():
            show(line)

    job = job.model_copy(update={"output": f"{job.output}-{name.replace(' ', '-')}"})
    state, path, ended = end_of_job(work, site, job, say)
    known = read_facts(facts_file(work.prepared.target, site.login))
    log = Log(path, facts=next((known[node] for node in state.nodes if node in known), None))
    if isinstance(ended, EnvbuildError):
        log.failure = ended.what
    elif ended:
        log.late = LATE in path.read_text(encoding="utf-8", errors="replace")
        log.failure = f"timed out after {deadline:g} s" if log.late else f"it ended with exit code {ended}"
    return log
