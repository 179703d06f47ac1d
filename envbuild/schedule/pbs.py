"""PBS Professional: jobs through qsub, qstat and qdel.

It was not run on a real PBS: the tests use small programs that print what the manual pages say.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from envbuild.errors import EnvbuildError
from envbuild.model.target import QueueLimits, Target
from envbuild.schedule import pbs_answers, script
from envbuild.schedule.cluster import TIMEOUT, Scheduler, failure_text
from envbuild.schedule.job import (
    Job,
    JobState,
    JobStep,
    JobText,
    Phase,
    SchedulerUnavailableError,
    clock_text,
)

# PALS tells a rank its number as PALS_RANKID and PMI_RANK; Open MPI's mpiexec has a name of its own.
_RANK = '"${PALS_RANKID:-${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-0}}}"'


def render(job: Job) -> str:
    """The qsub file of a job. Raises EnvbuildError `job-path-unusable` (exit 2)."""
    # The job id is `123.server`, of an array `123[4].server`.
    body = script.preamble(job, '"${PBS_JOBID%%.*}"')
    body += [
        "",
        "# PBS puts the job's output into place only after it has ended.",
        f'exec >> "$output/{script.log_name(job, "$JOB_ID")}" 2>&1',
    ]
    body += ["", *script.master('< "$PBS_NODEFILE"', "${JOB_ID%%[!0-9]*}", _RANK, str(job.nodes))]
    for step in job.steps:
        if isinstance(step, JobText):
            # mpiexec ends all ranks when one fails.
            body += ["", *script.piece(step, mpiexec('"$NNODES"'))]
        else:
            body += ["", *_step(step)]
    return "\n".join([*script.head(job, [*_directives(job), f"#PBS -o {_path(job.output)}"]), *body, ""])


def render_body(job: Job, text: str) -> str:
    """The qsub file that runs the bash script `text` on the first node of a job; it prints where it was submitted."""
    return script.around(job, _directives(job), "qsub", text)


def _directives(job: Job) -> list[str]:
    gpus = {job.gres.name: job.gpus_per_node} if job.gres is not None else {}
    chunk = {"ncpus": job.cpus_per_node, **gpus, "mem": f"{job.memory_gib}gb" if job.memory_gib else None}
    # What the target's own words ask for stands.
    named = pbs_answers.asks_for(job.constraints or "")
    select = [f"select={job.nodes}", *(f"{key}={value}" for key, value in chunk.items() if value and key not in named)]
    if job.constraints:
        select.append(job.constraints)
    # `excl` gives a vnode, and a host may be several.
    resources = [":".join(select), f"place=scatter{':exclhost' if job.whole_nodes else ''}"]
    if job.time_limit:
        resources.append(f"walltime={clock_text(job.time_limit)}")
    if job.filesystems:
        resources.append(f"filesystems={':'.join(job.filesystems)}")
    resources += job.resources
    # PBS allows 15 characters for a name in its older versions.
    # Without -S it is the user's login shell that reads the script, whatever its first line says.
    options = [f"-N {job.name[:15]}", "-S /bin/bash", *(f"-l {resource}" for resource in resources)]
    options += [f"-{letter} {value}" for letter, value in (("q", job.queue), ("A", job.account)) if value]
    # -V is never given: qstat then prints JSON that is none (openpbs issue 2541), and a login node's variables mislead.
    # -r n: PBS tells a script nothing of how often it ran, and the same command of envbuild submits a lost job again.
    return [f"#PBS {option}" for option in (*options, "-r n", "-j oe")]


def _path(folder: str) -> str:
    """PBS reads the rest of the line as a path and knows no quotes; `:` would part a host name from it."""
    if shlex.quote(folder) != folder or any(char in folder for char in ":^%"):
        raise EnvbuildError(
            "job-path-unusable",
            f"a PBS job cannot write its log to {folder!r}",
            why="PBS directives have no quotes",
            hint="choose another `prefix`",
        )
    return f"{folder}/"


def _step(step: JobStep) -> list[str]:
    if step.each == "node":
        comment, count = "# Once on every node.", '"$NNODES"'
    else:
        comment, count = "# Once, on the first node.", "1"
    return [comment, f"{mpiexec(count)} \\", '  bash -c "$with_rank" step \\', f"  {script.words(step.argv)}"]


def mpiexec(count: str) -> str:
    """PALS's mpiexec for `count` processes (a word of the shell), one a node."""
    return f'mpiexec --envall -n {count} --ppn 1 --hostfile "$PBS_NODEFILE" --cpu-bind none'


class Pbs(Scheduler):
    """The programs of one server of PBS."""

    name, suffix, submits, cancels = "PBS", "qsub", ("qsub",), "qdel"
    away = re.compile(r"cannot connect|connection (refused|reset)|timed out|end of file|communication failure", re.I)
    mine = "qstat -u $USER"
    limits = "the queue's limits: `qstat -Qf QUEUE`; queue, account, time and file systems are in the target file"
    render = staticmethod(render)
    render_body = staticmethod(render_body)
    unknown_job = staticmethod(pbs_answers.unknown_job)

    def attempt(self, state: JobState) -> int:
        """Its jobs are not rerun (`-r n`); PBS may count one up all the same that did not come to start."""
        return 0

    def pool(self, target: Target) -> pbs_answers.Queues:
        """The queues that jobs of a target may go to, and what their nodes offer.

        Raises EnvbuildError `partition-unknown` (exit 2), `partition-out-of-service` (exit 75), `scheduler-missing`,
        `scheduler-unreachable`.
        """
        wanted = target.scheduler
        limits = (QueueLimits(name=wanted.queue),) if wanted.queue else wanted.queues
        queues = {}
        if limits:
            offered = pbs_answers.parse_queues(self.asked("qstat", "-Q", "-f"))
            pbs_answers.check_queues(limits, offered, self.runner.host)
            queues = {limit.name: offered.get(limit.name, {}) for limit in limits}
        nodes = pbs_answers.parse_nodes(self.asked("pbsnodes", "-a"))
        return pbs_answers.Queues(limits, pbs_answers.offers(nodes, wanted.constraints or "", queues))

    def bad_nodes(self, nodes: tuple[str, ...]) -> dict[str, str]:
        """Those of `nodes` that take no jobs now, with the reason: a hook may have taken them out after ours."""
        if not nodes:
            return {}
        states = pbs_answers.parse_nodes(self.runner.run(["pbsnodes", *nodes], timeout=TIMEOUT).out)
        return pbs_answers.bad_nodes(states)

    def poll(self, job: Job, number: str) -> JobState:
        """What PBS says, its history included; once it has forgotten the job, what the job's own status file says.

        Raises SchedulerUnavailableError when the server does not answer now.
        """
        done = self.runner.run(["qstat", "-x", "-f", number], timeout=TIMEOUT)
        state = pbs_answers.parse_job(done.out, number)
        if state is not None:
            return self._sure(job, number, state)
        if not self.unknown_job(done.err + done.out):
            raise SchedulerUnavailableError(failure_text(done))
        return self.by_status_file(job, number)

    def _sure(self, job: Job, number: str, state: JobState) -> JobState:
        """A finished job without an exit status may still have left its own: then it was not deleted in the queue."""
        if state.ended and state.exit is None:
            code = self.left(job, number)
            if code is not None:
                return replace(state, phase=Phase.DONE, exit=code, failure=None)
        return state
