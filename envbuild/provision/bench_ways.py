"""Where `bench` runs a stack's own command: on this machine, on nodes over SSH, or as jobs of a scheduler."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from envbuild.errors import EnvbuildError
from envbuild.hostlist import expand_hosts
from envbuild.launch.recipes import launch
from envbuild.launch.request import Place
from envbuild.launch.shell import LATE
from envbuild.model.evidence import NodeEvidence
from envbuild.model.facts import NodeFacts
from envbuild.model.launch import Launch
from envbuild.model.reference import Bench
from envbuild.provision import own_run
from envbuild.provision.jobs.launch import Asked, end_of_job, make_jobs, taken_by
from envbuild.provision.jobs.site import JobSite
from envbuild.provision.jobs.survey import facts_file, read_facts
from envbuild.provision.own_run import Log, OwnRun, carry_out, facts_of, of_trial, shows
from envbuild.provision.run.context import Work
from envbuild.provision.run.findings import Prepared
from envbuild.schedule.job import Job


@dataclass(frozen=True, slots=True)
class Trial:
    """A launch, made for the folder that it writes into, and what runs it under a name."""

    launch: Launch
    run: Callable[[str], Log]


@dataclass(frozen=True, slots=True)
class Way:
    """The trials, one at least, and what is known of a node that runs them.

    Which nodes a job runs on is known once it has run: the log of each has their facts.
    """

    trials: Sequence[Trial]
    facts: NodeFacts | None = None


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


def way(
    work: Work, told: Bench, asked: Asked, place: Place | None, nodes: Sequence[NodeEvidence], trials: Iterable[int]
) -> Way:
    """How the target runs what is `asked`. `nodes` have the environment; `place`: None for a job, which says it.

    Raises EnvbuildError as the recipe and `make_jobs` do, and `nodes-differ` (exit 7).
    """
    prepared, connection = work.prepared, work.prepared.target.connection
    if place is None:
        site, place, make = make_jobs(prepared.target, prepared.stack, prepared.profile, asked, work.run, watched=True)

        def as_job(where: Place) -> Trial:
            job, made = make(where, posixpath.basename(where.output))
            return Trial(made, partial(_in_job, work, told, site, job, where.output, asked.deadline or 0.0))

        return Way([as_job(of_trial(work, place, number)) for number in trials])
    hosts = tuple(node.node for node in nodes) if connection.kind == "ssh" else ()
    if hosts:
        place = _there(work, place, asked, nodes)
    activate = f"{place.environment}/.envbuild/activate.sh"

    def as_run(where: Place) -> Trial:
        made = launch(prepared.stack, prepared.profile, asked.values, where)
        # A single command starts the other nodes itself.
        run = OwnRun(made, activate, where.output, asked.deadline or 0.0, hosts[: len(made.commands)])
        return Trial(made, partial(carry_out, work, told, run))

    made = [as_run(of_trial(work, place, number)) for number in trials]
    return Way(made, facts_of(work, nodes[0].node))


def _there(work: Work, place: Place, asked: Asked, nodes: Sequence[NodeEvidence]) -> Place:
    environments = {node.environment: node.node for node in nodes}
    if len(environments) > 1:
        raise EnvbuildError(
            "nodes-differ",
            "the nodes have different environments in use",
            why=", ".join(f"{node}: {path}" for path, node in environments.items()),
            hint="`--limit HOSTS` takes nodes of one kind",
        )
    (environment,) = environments
    top = posixpath.dirname(posixpath.dirname(str(environment)))
    first = work.prepared.target.connection.reaches(nodes[0].node)[0]
    told = {"environment": environment, "output": asked.output or f"{top}/launches", "master": place.master or first}
    return place.model_copy(update=told)


def _in_job(work: Work, told: Bench, site: JobSite, job: Job, output: str, deadline: float, name: str) -> Log:
    show = shows(work, told, name)

    def say(text: str) -> None:
        for line in text.splitlines():
            show(line)

    # Its home is the nodes' too, mostly.
    locks = site.runner.run(["/bin/sh", "-s"], stdin=own_run.ASK.encode()).out
    before = [f"{site.login}: {each}" for each in own_run.in_words(locks)]
    state, path, ended = end_of_job(work, site, job, say)
    known = read_facts(facts_file(work.prepared.target, site.login))
    facts = next((known[node] for node in state.nodes if node in known), None)
    had = taken_by(site, output)
    work.notes += [each for each in (*before, *had.others) if each not in work.notes]
    log = Log(path, facts=facts, gpus=tuple(had.names), taken=had.taken)
    if isinstance(ended, EnvbuildError):
        log.failure = ended.what
    elif ended:
        log.late = LATE in path.read_text(encoding="utf-8", errors="replace")
        log.failure = f"timed out after {deadline:g} s" if log.late else f"it ended with exit code {ended}"
    return log
