"""Slurm: jobs through sbatch, scontrol, sacct and scancel, as of 20.11 and later."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from envbuild.errors import EnvbuildError
from envbuild.model.target import Target
from envbuild.schedule import script, slurm_answers
from envbuild.schedule.cluster import TIMEOUT, Scheduler, failure_text
from envbuild.schedule.job import (
    Failure,
    Gres,
    Job,
    JobState,
    JobText,
    Phase,
    SchedulerUnavailableError,
    Step,
)

_EVERYWHERE = '--nodes="$NNODES" --ntasks="$NNODES" --ntasks-per-node=1'
_STEP = "--kill-on-bad-exit=0 --wait=0 --cpu-bind=none"
_FOR_OWN_SRUN = [
    "# An srun of the run itself: tasks and their processors are as it says, not the job's one task a node.",
    "unset SLURM_NTASKS_PER_NODE SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK",
]
_NODES = '< <(scontrol show hostnames "$SLURM_JOB_NODELIST")'


def gres_text(gres: Gres, count: int) -> str:
    """`gpu:a100:8`, as `--gres` takes it."""
    return ":".join(filter(None, (gres.name, gres.type, str(count))))


def time_text(seconds: int) -> str:
    """`D-HH:MM:SS`, or `HH:MM:SS` for less than a day."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def render(job: Job) -> str:
    """The sbatch file of a job. Raises EnvbuildError `job-path-unusable` (exit 2)."""
    body = [*script.preamble(job, '"$SLURM_JOB_ID"'), *_FOR_OWN_SRUN]
    body += ["", *script.master(_NODES, "SLURM_JOB_ID", '"$SLURM_PROCID"', '"$SLURM_JOB_NUM_NODES"')]
    for step in job.steps:
        body += ["", *_step(step, job)]
    return "\n".join([*script.head(job, _directives(job)), *body, ""])


def render_body(job: Job, text: str) -> str:
    """The sbatch file that runs the bash script `text` on the first node of a job; it prints where it was submitted."""
    return script.around(job, _directives(job, here=True), "sbatch", text)


def _directives(job: Job, *, here: bool = False) -> list[str]:
    """`here`: the log goes where the file is submitted."""
    options = [f"--job-name={job.name}", f"--nodes={job.nodes}", "--ntasks-per-node=1"]
    if job.whole_nodes:
        # Exclusive nodes come with all processors, but with the default share of memory.
        options += ["--exclusive", "--mem=0"]
    elif job.cpus_per_node:
        options.append(f"--cpus-per-task={job.cpus_per_node}")
    if job.gpus_per_node and job.gres is not None:
        options.append(f"--gres={gres_text(job.gres, job.gpus_per_node)}")
    if job.time_limit:
        options.append(f"--time={time_text(job.time_limit)}")
    named = {"partition": job.queue, "account": job.account, "constraint": job.constraints}
    named["nodelist"] = job.builder
    options += [f"--{name}={_plain(value)}" for name, value in named.items() if value]
    if here:
        return [f"#SBATCH {option}" for option in (*options, "--output=%x-%j.log")]
    # The second run of a requeued job writes below the first.
    log = _path(f"{job.output}/{script.log_name(job, '%j')}", job.output)
    options += ["--requeue", "--open-mode=append", f"--output={log}", f"--chdir={_path(job.output, '')}"]
    return [f"#SBATCH {option}" for option in options]


def _plain(value: str) -> str:
    """sbatch reads `&`, `|`, parentheses and the like as they are inside quotes."""
    return f'"{value}"' if any(char in value for char in "&|()*[]") else value


def _path(path: str, folder: str) -> str:
    """A path in a directive: quoted where it has spaces; `%` is doubled in the folder, `%j` is the job id."""
    if any(char in path for char in '"\\#'):
        raise EnvbuildError(
            "job-path-unusable",
            f"a Slurm job cannot write its log to {path!r}",
            why="sbatch has no way to write a double quote, a backslash or # in a directive",
            hint="choose another `prefix`",
        )
    path = folder.replace("%", "%%") + path[len(folder) :]
    return f'"{path}"' if shlex.quote(path) != path else path


def _step(step: Step, job: Job) -> list[str]:
    if isinstance(step, JobText):
        return script.piece(step, f"srun {_EVERYWHERE} --kill-on-bad-exit=1 --wait=0 --cpu-bind=none")
    if step.each == "node":
        comment = "# Once on every node; a node that fails does not stop the others."
        where = _EVERYWHERE
    elif job.builder:
        comment = "# Once, on the node that can build."
        where = f"--nodes=1 --ntasks=1 --nodelist={shlex.quote(job.builder)}"
    else:
        comment = "# Once, on the first node."
        where = "--nodes=1 --ntasks=1 --relative=0"
    return [comment, f"srun {where} {_STEP} \\", '  bash -c "$with_rank" step \\', f"  {script.words(step.argv)}"]


class Slurm(Scheduler):
    """The programs of one cluster of Slurm."""

    name, suffix, submits, cancels = "Slurm", "sbatch", ("sbatch", "--parsable"), "scancel"
    away = re.compile(
        r"unable to contact slurm controller|socket timed out|connection refused|slurm backup controller"
        r"|zero bytes were|could not establish a configuration source",
        re.IGNORECASE,
    )
    mine = "squeue --me"
    limits = "the partition's limits: `scontrol show partition`; account, time and nodes are in the target file"
    render = staticmethod(render)
    render_body = staticmethod(render_body)
    unknown_job = staticmethod(slurm_answers.unknown_job)

    def attempt(self, state: JobState) -> int:
        """SLURM_RESTART_COUNT of the job's last run."""
        return state.restarts

    def poll(self, job: Job, number: str) -> JobState:
        """What Slurm says; once it has forgotten the job, what accounting or the job's own status file say.

        Raises SchedulerUnavailableError when slurmctld does not answer now.
        """
        done = self.runner.run(["scontrol", "show", "job", "--oneliner", number], timeout=TIMEOUT)
        state = slurm_answers.parse_job(done.out) if done.ok else None
        if state is not None:
            return self._by_steps(number, state) if state.phase is Phase.DONE and not state.good else state
        if not self.unknown_job(done.err + done.out):
            raise SchedulerUnavailableError(failure_text(done))
        return self._accounted(number) or self.by_status_file(job, number)

    def _by_steps(self, number: str, state: JobState) -> JobState:
        """A job that failed, with what accounting knows of its steps: one may have been killed for memory."""
        done = self.runner.run(["sacct", "-n", "-P", "-j", number, "-o", "State"], timeout=TIMEOUT)
        if "OUT_OF_MEMORY" not in done.out.split():
            return state
        return replace(state, phase=Phase.FAILED, failure=Failure.OUT_OF_MEMORY)

    def _accounted(self, number: str) -> JobState | None:
        """What slurmdbd has; None where there is none."""
        columns = "State,ExitCode,NodeList,Reason"
        done = self.runner.run(["sacct", "-X", "-n", "-P", "-j", number, "-o", columns], timeout=TIMEOUT)
        state = slurm_answers.parse_sacct(done.out) if done.ok else None
        # Accounting lags: it may still say that a job runs which slurmctld has forgotten already.
        return state if state is not None and state.ended else None

    def pool(self, target: Target) -> slurm_answers.Partition:
        """The partition that a target's hosts, or else its queue, name. Raises EnvbuildError as `partition` does."""
        assert target.partition is not None  # noqa: S101 - see provision/survey/supported.py
        return self.partition(target.partition)

    def partition(self, name: str) -> slurm_answers.Partition:
        """What a partition has. Raises EnvbuildError `partition-unknown` (exit 2), `scheduler-unreachable` (exit 3)."""
        shown = self.asked("scontrol", "show", "partition", "--oneliner", name)
        nodes = self.asked("sinfo", "-h", "-p", name, "-o", slurm_answers.PARTITION_FORMAT)
        config = self.asked("scontrol", "show", "config")
        partition = slurm_answers.parse_partition(name, shown, nodes, config)
        if partition is None or not partition.nodes:
            others = sorted(set(self.asked("sinfo", "-h", "-o", "%R").split()))
            raise EnvbuildError(
                "partition-unknown",
                f"there is no partition {name} on this cluster"
                if partition is None
                else f"partition {name} has no nodes",
                why=f"`sinfo` on {self.runner.host} lists: {', '.join(others) or 'nothing'}",
                hint="name one of them: `hosts: {slurm: NAME}`; FUTURE nodes appear only once autoscaling is on",
            )
        return partition

    def bad_nodes(self, nodes: tuple[str, ...]) -> dict[str, str]:
        """Those of `nodes` that take no jobs now, with the reason: an epilog may have drained them after ours."""
        if not nodes:
            return {}
        command = ["sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", slurm_answers.NODE_FORMAT]
        return slurm_answers.parse_bad_nodes(self.runner.run(command, timeout=TIMEOUT).out)
