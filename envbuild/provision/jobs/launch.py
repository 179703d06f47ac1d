"""A stack's own run as a job: where it runs and what it may ask for, its job, and waiting for it."""

from __future__ import annotations

import codecs
import math
import posixpath
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.launch.recipes import launch
from envbuild.launch.request import Place
from envbuild.launch.shell import bounded, job_steps
from envbuild.model.facts import NodeFacts
from envbuild.model.launch import Launch
from envbuild.model.stack import Stack
from envbuild.model.target import Target
from envbuild.provision import gpu_use
from envbuild.provision.gpu_use import OfJob
from envbuild.provision.jobs.site import JobSite, finish, is_local, run_to_end
from envbuild.provision.jobs.survey import login_facts
from envbuild.provision.run.context import Run
from envbuild.provision.run.run_dir import RunDir
from envbuild.schedule.job import Job, JobState, JobStep, Phase, Step, job_error, seconds_of
from envbuild.schedule.script import ensure_file, log_name

# Seconds of a job beside a run with a deadline: an environment may have to be unpacked on its nodes.
_AROUND = 600


@dataclass(frozen=True)
class Asked:
    """What a user asked for. Absent: the target's, else what the scheduler says; `time_limit` as `2h`.

    `deadline`: seconds after which the run itself is ended; where nobody says the job's time, it follows from it.
    `where`: stack and target as commands name them.
    """

    values: Mapping[str, str]
    nodes: int | None = None
    gpus_per_node: int | None = None
    environment: str | None = None
    image: str | None = None
    output: str | None = None
    port: int | None = None
    time_limit: str | None = None
    deadline: float | None = None
    where: str = ""


def make_job(
    target: Target, stack: Stack, profile: str, asked: Asked, run: RunDir | None = None, *, prefix: str | None = None
) -> tuple[JobSite, Job, Launch]:
    """The job of a launch, under the name of its run, else of the time. Raises EnvbuildError as `make_jobs` does."""
    site, place, make = make_jobs(target, stack, profile, asked, run, prefix=prefix)
    name = run.id if run else time.strftime("%Y%m%d-%H%M%S")
    if not asked.output:
        place = place.below(f"{stack.name}-{name}")
    return site, *make(place, name)


def make_jobs(
    target: Target,
    stack: Stack,
    profile: str,
    asked: Asked,
    run: RunDir | None,
    *,
    watched: bool = False,
    prefix: str | None = None,
) -> tuple[JobSite, Place, Callable[[Place, str], tuple[Job, Launch]]]:
    """Where jobs of a launch run, and what makes one for a place, under a name that no other has.

    The place writes into what was asked for, else into the folder of all launches; of `watched` ones `taken_by` tells
    afterwards what they took of the GPUs. The login host and the scheduler are asked, nothing is submitted. With
    `prefix` neither is asked: the environment is the one that is in use there.

    Raises EnvbuildError: `option-does-not-fit` (exit 2), `launch-parameter` (exit 2), `environment-unknown` (exit 1),
    `launch-does-not-fit` (exit 7), and those of the recipe, the login host and the scheduler.
    """
    if target.connection.kind != "job":
        raise EnvbuildError(
            "option-does-not-fit",
            f"the target {target.name} has no scheduler that takes a job",
            why=f"its connection is {target.connection.kind}",
            hint="remove --submit to print the commands, or use --run for the command of one node here",
        )
    limit = asked.time_limit or target.scheduler.time_limit
    if limit is None and asked.deadline is not None:
        limit = f"{math.ceil(asked.deadline) + _AROUND}s"
    if limit is None:
        raise EnvbuildError(
            "launch-parameter",
            "the run has no time limit",
            hint="add --time-limit 2h, or `scheduler: {time_limit: 2h}` in the target",
        )
    site = JobSite.unasked(target, gpus=asked.gpus_per_node) if prefix else JobSite.of(target)
    site = _bounded(site, asked, unasked=prefix is not None)
    if prefix:
        top, environment = prefix, asked.environment or f"{prefix}/current/{stack.name}"
    else:
        facts = login_facts(target, stack.name, run)
        top, environment = facts.prefix.path, asked.environment or _environment(facts, stack.name, asked.where)
    place = Place(
        nodes=site.nodes,
        gpus_per_node=site.target.expects.gpus_per_node or 1,
        environment=environment,
        output=asked.output or posixpath.join(top, "launches"),
        image=asked.image,
        direct=not target.scheduler.starts_tasks,
        gres=site.pool.gres() is not None,
        gpu=target.expects.gpu,
    )
    activate = None if asked.image else f"{environment}/.envbuild/activate.sh"
    seconds = seconds_of(limit)

    def make(place: Place, name: str) -> tuple[Job, Launch]:
        seen = gpu_use.below(place.output)
        made, texts = job_steps(
            lambda where: launch(stack, profile, asked.values, where),
            place,
            activate,
            port=asked.port,
            # An image may have a PYTHONPATH of its own.
            around=partial(gpu_use.probed, folder=seen) if watched and not asked.image else None,
        )
        if watched:
            last = texts[-1].model_copy(update={"text": gpu_use.watched_in_job(seen) + texts[-1].text})
            texts = (*texts[:-1], last)
        steps: list[Step] = list(texts)
        if asked.deadline is not None:
            steps[-1] = bounded(texts[-1], asked.deadline)
        if is_local(target) and not asked.environment:
            # A node may have lost its disk's contents since; this costs nothing where all is there.
            steps.insert(0, JobStep(argv=("/bin/sh", ensure_file(top, stack.name))))
        folder = posixpath.join(top, "jobs", name)
        verb = "launch" if asked.deadline is None else "bench"  # only `bench` ends a run itself
        return site.job(f"{verb}-{stack.name}"[:63], steps, folder, seconds), made

    return site, place, make


def taken_by(site: JobSite, output: str) -> OfJob:
    """What a watched job took of the GPUs, who else used them when it began and which they are, by its own folder.

    Of a node's own disk the login host says nothing.
    """
    try:
        done = site.runner.run(["/bin/sh", "-s"], stdin=gpu_use.ask_job(gpu_use.below(output)).encode())
    except EnvbuildError:
        return gpu_use.of_job("")  # the job has ended, and its log is here
    return gpu_use.of_job(done.out)


def _bounded(site: JobSite, asked: Asked, *, unasked: bool = False) -> JobSite:
    """The site for so many nodes and GPUs as were asked for. Raises EnvbuildError `launch-does-not-fit` (exit 7)."""
    target = site.target
    nodes = asked.nodes or target.scheduler.nodes or 1
    gpus = asked.gpus_per_node or target.expects.gpus_per_node or site.pool.gpus_per_node
    there = site.pool.gpus_per_node
    if not gpus:
        raise gpus_unsaid("" if unasked else f"{site.pool.label} has no GPUs that the scheduler knows of")
    if there and gpus > there:
        raise _does_not_fit(
            f"{gpus} GPUs a node were asked for, and a node of {site.pool.label} has {there}",
            f"--gpus-per-node {there}",
        )
    most = site.pool.most()
    if most is not None and nodes > most:
        raise _does_not_fit(
            f"{nodes} nodes were asked for, and {site.pool.label} has {most} that take jobs", f"--nodes {most}"
        )
    scheduler = target.scheduler.model_copy(update={"nodes": nodes})
    expects = target.expects.model_copy(update={"gpus_per_node": gpus})
    return replace(site, target=target.model_copy(update={"scheduler": scheduler, "expects": expects}))


def gpus_unsaid(what: str = "") -> EnvbuildError:
    """The error `launch-does-not-fit` (exit 7) where nobody says how many GPUs a node has; `what`: who should have."""
    return _does_not_fit(
        what or "the target does not say how many GPUs a node has",
        "`expects: {gpus_per_node: N}` in the target, or `--gpus-per-node N`, N being the number that a node has",
    )


def _does_not_fit(what: str, hint: str) -> EnvbuildError:
    return EnvbuildError("launch-does-not-fit", what, hint=hint)


def _environment(facts: NodeFacts, stack: str, where: str) -> str:
    """The environment in use, by the path that it has on the nodes."""
    for stamp in facts.environments:
        if stamp.stack == stack and stamp.current:
            return stamp.path
    raise EnvbuildError(
        "environment-unknown",
        f"no environment of {stack} is in use under {facts.prefix.path}",
        hint=f"build it: `envbuild provision {where}`; or name one: `--environment DIR`",
        exit_code=ExitCode.CHECK_FAILED,
    )


def run_job(work: Run, site: JobSite, job: Job, say: Callable[[str], None]) -> int:
    """Submit, follow its log where it can be read here, and wait; the exit code of what the job ran.

    The log is kept in the run directory. Raises EnvbuildError `job-…` where the job was ended by somebody or something.
    """
    _, _, ended = end_of_job(work, site, job, say)
    if isinstance(ended, EnvbuildError):
        raise ended
    return ended


def end_of_job(
    work: Run, site: JobSite, job: Job, say: Callable[[str], None]
) -> tuple[JobState, Path, int | EnvbuildError]:
    """The same: its last state, where its log lies, and the exit code or the error."""
    follow = _Follow(site, job, say)
    number, state = run_to_end(work, site, job, follow)
    follow(number)
    if not follow.local:
        say(site.scheduler.logs(job, number))
    last = site.scheduler.logs(job, number, 4096)
    finish(work, site, job, number, state, good=state.good)
    for note in work.notes:
        work.journal.stage(f"warning: {note}")
    log = work.run.path / log_name(job, number)
    # A job that is lost, or that something ended, has no exit code of its own.
    if state.failure is not None or state.phase is Phase.LOST or state.exit is None:
        return state, log, job_error(number, state, last)
    return state, log, state.exit


class _Follow:
    """Says what a job has printed since it was asked last, where its log lies on this machine and is begun."""

    def __init__(self, site: JobSite, job: Job, say: Callable[[str], None]) -> None:
        self.local = site.runner.connection is None
        self._job = job
        self._say = say
        self._read = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, number: str) -> None:
        while self.local and (data := self._more(number)):
            self._read += len(data)
            self._say(self._decoder.decode(data))

    def _more(self, number: str) -> bytes:
        with suppress(OSError), Path(self._job.output, log_name(self._job, number)).open("rb") as log:
            log.seek(self._read)
            return log.read(1 << 20)
        return b""
