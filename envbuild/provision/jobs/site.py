"""Where the jobs of a target run: scheduler, pool of nodes, login host; a job is made, submitted and waited for."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envbuild.errors import EnvbuildError
from envbuild.model.common import mistakes
from envbuild.model.facts import NodeFacts
from envbuild.model.target import Target, proxies
from envbuild.node.redact import redact_text
from envbuild.provision.run.context import Run
from envbuild.provision.run.journal import EventKind
from envbuild.schedule.cluster import LIMIT, Runner, Scheduler, not_writable, submit_host
from envbuild.schedule.job import Job, JobState, Pool, Step, seconds_of
from envbuild.schedule.pbs import Offer, Pbs, Queues
from envbuild.schedule.script import log_name, status_name
from envbuild.schedule.slurm import Partition, Slurm
from envbuild.schedule.wait import wait_for
from envbuild.text import plural

PROBE_LIMIT = 600
_SCHEDULERS: dict[str, type[Scheduler]] = {"slurm": Slurm, "pbs": Pbs}

# What a script says of its job, where nobody was asked.
UNASKED = """\
# Made from the target and recorded facts: the scheduler was not asked. Not known: whether partition or queue, account
# and nodes are there, their limits, and the memory that nodes offer to jobs.
"""


def is_local(target: Target) -> bool:
    """Whether nodes are reached through jobs and each has a disk of its own for environments: at one path on all.

    One node builds what is compiled, and each installs from a bundle. What login host and nodes share (`shared` of the
    target) holds jobs, staged tools, bundles and built wheels, and says what nodes get: `node/env/published.py`.
    """
    return target.connection.kind == "job" and target.placement == "node-local"


@dataclass(frozen=True)
class JobSite:
    """One target's cluster. `asked`: whether `pool` is what the scheduler said.

    `gpus_on_node`: all GPUs of a node, as scheduler, facts, or target say; 0 where none does.
    """

    target: Target
    runner: Runner
    scheduler: Scheduler
    pool: Pool
    asked: bool = True
    gpus_on_node: int = 0

    @classmethod
    def of(cls, target: Target, pool: Pool | None = None) -> JobSite:
        """Ask the scheduler where the target's nodes come from, unless it has said so (`pool`).

        Raises EnvbuildError as its `pool` does.
        """
        runner = submit_host(target)
        scheduler = _SCHEDULERS[target.scheduler.kind](runner)
        pool = pool or scheduler.pool(target)
        there = pool.gpus_per_node or target.expects.gpus_per_node or 0
        return cls(target, runner, scheduler, pool, gpus_on_node=there)

    @classmethod
    def unasked(cls, target: Target, nodes: Iterable[NodeFacts] = (), gpus: int | None = None) -> JobSite:
        """The same for what is only printed: no program runs, and the pool is as facts of `nodes` and the target say.

        `gpus`: of a node, where nodes and target do not say.
        """
        runner, wanted = submit_host(target), target.scheduler
        offers = tuple(Offer(node.cpus or 0, len(node.gpus), 0) for node in nodes)
        most = max((offer.gpus for offer in offers), default=0)
        there = most or target.expects.gpus_per_node or 0
        if wanted.kind == "pbs":
            offers = offers or (Offer(0, there or gpus or 0, 0),)
            pool: Pool = Queues(wanted.limits, offers)
        else:
            pool = Partition(target.partition, 1, {}, {("gpu", None): most}, asked=False)
        return cls(target, runner, _SCHEDULERS[wanted.kind](runner), pool, asked=False, gpus_on_node=there)

    @property
    def not_asked(self) -> str:
        """What is said of a job where nobody was asked; the target may not say how many GPUs a node has."""
        says = "the scheduler was not asked: partition and paths are those of the target file"
        if self.target.expects.gpus_per_node is not None:
            return says
        gpus = self.pool.gpus_per_node
        number = f"the facts say {plural(gpus, 'GPU')} a node" if gpus else "how many GPUs a node has is not known"
        return f"{says}, which names no `gpus_per_node`: {number}"

    @property
    def login(self) -> str:
        """The host that jobs are submitted on, by the name it is reached with."""
        return self.runner.host

    @property
    def nodes(self) -> int:
        """How many nodes a job gets: as the target says, or all of the pool that take jobs."""
        return self.target.scheduler.nodes or self.pool.in_service()

    @property
    def start_deadline(self) -> float | None:
        """Seconds that a job may wait for its nodes; None: as long as it takes."""
        text = self.target.scheduler.start_deadline
        return float(seconds_of(text)) if text else None

    def limit(self, otherwise: int) -> int:
        """Seconds that a job may run: as the target says, else `otherwise`."""
        text = self.target.scheduler.time_limit
        return seconds_of(text) if text else otherwise

    def cost(self, job: Job) -> str:
        """What a job takes, in words; at each start, where Slurm may start it again."""
        again = ", at each start (`requeue`)" if job.requeue and self.scheduler.again else ""
        return f"{job.cost()}{again}"

    def job(self, name: str, steps: Sequence[Step], output: str, time_limit: int) -> Job:
        """A job on the target's nodes that runs at most `time_limit` seconds and prints into the folder `output`.

        Raises EnvbuildError `job-invalid` (exit 2).
        """
        wanted, expected, nodes = self.target.scheduler, self.target.expects.gpus_per_node, self.nodes
        gpus = self.pool.gpus_per_node if expected is None else expected
        share = self.pool.share(gpus, exclusive=wanted.exclusive)
        given: dict[str, Any] = {
            "name": name, "nodes": nodes, "steps": tuple(steps), "output": output,
            "gpus_per_node": gpus, "gpus_on_node": self.gpus_on_node,
            "cpus_per_node": wanted.cpus_per_node or share.cpus,
            "memory_gib": share.memory_gib,
            "gres": self.pool.gres(), "queue": self.pool.queue(nodes, time_limit), "account": wanted.account,
            "qos": wanted.qos, "exclusive": wanted.exclusive, "constraints": wanted.constraints,
            "time_limit": time_limit,
            "filesystems": wanted.filesystems, "resources": wanted.resources,
            "modules": wanted.modules, "requeue": wanted.requeue is not False,
            "variables": proxies(self.target.environment),
        }  # fmt: skip
        try:
            return Job(**given)
        except ValidationError as error:
            raise EnvbuildError(
                "job-invalid",
                "the job of the target is not valid",
                why="; ".join(mistakes(error)),
                hint="correct the target file",
            ) from error


def cpus_unknown(site: JobSite, job: Job) -> str:
    """What to say of a job of PBS that asks for no processors, as nobody said how many its nodes have; else empty."""
    if site.target.scheduler.kind != "pbs" or job.cpus_per_node:
        return ""
    return (
        "The job asks for no ncpus, as nobody asked the nodes of the target, and gets the site's default, often 1. "
        "Write `scheduler: {cpus_per_node: N}` in the target."
    )


def place(runner: Runner, folder: str, files: Mapping[str, bytes]) -> None:
    """Put small files below a folder on the login host, for this user alone.

    Raises EnvbuildError `not-writable` (exit 7).
    """
    import io  # a plan submits nothing
    import tarfile

    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            archive.addfile(member, io.BytesIO(content))
    code = 'umask 077; mkdir -p -- "$1" && cd -- "$1" && tar -xf -'
    done = runner.run(["/bin/sh", "-c", code, "sh", folder], stdin=data.getvalue())
    if not done.ok:
        raise not_writable(folder, runner.host, done)


LOG_LIMIT = LIMIT // 2  # bytes of a job's log that are brought here
# The first line of a log that had more.
CUT = f"envbuild: the first part of this log is left out, it has more than {LOG_LIMIT >> 20} MiB"


def submit(work: Run, site: JobSite, job: Job) -> str:
    """Tell what a job costs and submit it; its number. The script stays in the run directory, without secrets."""
    script = work.run.path / f"{job.name}.{site.scheduler.suffix}"
    script.write_text(redact_text(site.scheduler.render(job, "")))
    for warning in job.warnings():
        work.journal.stage(f"warning: {warning}")
    work.journal.stage(f"submitting {job.name}: {site.cost(job)}")
    number = site.scheduler.submit(job)
    work.journal.append(EventKind.JOB_SUBMITTED, job=number, name=job.name, nodes=job.nodes, output=job.output)
    return number


def run_to_end(
    work: Run, site: JobSite, job: Job, watch: Callable[[str], None] = lambda _: None,
    on_state: Callable[[JobState], None] = lambda _: None,
) -> tuple[str, JobState]:  # fmt: skip
    """Submit a job and wait until it has ended; its number and last state.

    `watch` gets the number once a second, `on_state` every new state.

    Raises EnvbuildError as submitting and waiting do; an interrupt leaves the job alone unless the run was told to
    cancel it.
    """
    number = submit(work, site, job)

    def cancelled() -> bool:
        watch(number)
        return work.settings.cancel()

    def changed(state: JobState) -> None:
        work.journal.append(EventKind.JOB_STATE, job=number, state=state.summary(), nodes=list(state.nodes))
        work.journal.stage(f"job {number}: {state.summary()}")
        on_state(state)

    # Looking costs nothing here.
    peek = Path(job.output, status_name(number)).exists if site.runner.connection is None else None
    try:
        state = wait_for(
            site.scheduler, job, number, start=site.start_deadline, on_change=changed,
            cancelled=cancelled, peek=peek,
        )  # fmt: skip
    except EnvbuildError as error:
        if error.code in ("job-not-started", "job-refused"):
            _remove(site, job.output)
        raise
    except KeyboardInterrupt:
        if work.settings.cancel_job:
            site.scheduler.cancel(number)
            _remove(site, job.output)
            work.journal.stage(f"job {number} is cancelled")
        else:
            work.journal.stage(f"job {number} goes on; `{site.scheduler.cancels} {number}` ends it")
        raise
    for node, reason in site.scheduler.bad_nodes(state.nodes).items():
        work.notes.append(f"{node} is drained after job {number}: {reason}")
    return number, state


def finish(work: Run, site: JobSite, job: Job, number: str, state: JobState, *, good: bool) -> None:
    """Bring the job's log into the run directory; what it was told and, where all is good, its folder are removed.

    Of a log with more than `LOG_LIMIT` bytes the end comes, after the line `CUT`.
    """
    text = site.scheduler.logs(job, number, LOG_LIMIT)
    if len(text.encode()) >= LOG_LIMIT:
        text = f"{CUT}\n{text}"
    (work.run.path / log_name(job, number)).write_text(redact_text(text))
    _remove(site, job.output if good and state.good else posixpath.join(job.output, "requests"))


def _remove(site: JobSite, folder: str) -> None:
    """A folder of a job, and the one above it once it is empty. What nodes were told may hold secrets."""
    site.runner.run(["rm", "-rf", "--", folder])
    site.runner.run(["rmdir", "--", posixpath.dirname(folder)])
