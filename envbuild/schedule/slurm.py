"""Slurm: jobs through sbatch, scontrol, sacct and scancel, as of 20.11 and later."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.target import HostSource, Target
from envbuild.node.proc import Finished
from envbuild.schedule import files, script, slurm_answers, slurm_script
from envbuild.schedule.job import Failure, Job, JobState, Phase, SchedulerUnavailableError
from envbuild.schedule.runner import Runner

# slurmctld that is busy answers late; its own programs give up after MessageTimeout (10 s by default) and try again.
_TIMEOUT = 60.0
_AWAY = re.compile(
    r"unable to contact slurm controller|socket timed out|connection refused|slurm backup controller|zero bytes were",
    re.IGNORECASE,
)


class Slurm:
    """The adapter of one cluster. `runner` runs Slurm's programs where jobs are submitted."""

    kind, suffix, cancels = "slurm", "sbatch", "scancel"

    def __init__(self, runner: Runner) -> None:
        """Nothing is asked yet."""
        self.runner = runner

    def render(self, job: Job) -> str:
        """The sbatch file; see `slurm_script.render`."""
        return slurm_script.render(job)

    def render_body(self, job: Job, text: str) -> str:
        """The sbatch file around a bash script; see `slurm_script.render_body`."""
        return slurm_script.render_body(job, text)

    def attempt(self, state: JobState) -> int:
        """SLURM_RESTART_COUNT of the job's last run."""
        return state.restarts

    def submit(self, job: Job) -> str:
        """Submit it; the job id. Raises EnvbuildError `job-refused` (exit 7) or `scheduler-unreachable` (exit 3)."""
        files.make_folder(self.runner, job.output)
        done = self.runner.run(["sbatch", "--parsable"], stdin=self.render(job).encode(), timeout=_TIMEOUT)
        # `--parsable` prints `ID` or `ID;CLUSTER`; a site's plugin may print before it.
        found = re.search(r"^([0-9]+)(?:;\S*)?\s*\Z", done.out.strip(), re.MULTILINE)
        if done.ok and found:
            return found[1]
        raise self._refused("sbatch", done)

    def poll(self, job: Job, number: str) -> JobState:
        """What Slurm says; once it has forgotten the job, what accounting or the job's own status file say.

        Raises SchedulerUnavailableError when slurmctld does not answer now.
        """
        done = self.runner.run(["scontrol", "show", "job", "--oneliner", number], timeout=_TIMEOUT)
        state = slurm_answers.parse_job(done.out) if done.ok else None
        if state is not None:
            return self._by_steps(number, state) if state.phase is Phase.DONE and not state.good else state
        if not slurm_answers.unknown_job(done.err + done.out):
            raise SchedulerUnavailableError(said(done))
        accounted = self._accounted(number)
        if accounted is not None:
            return accounted
        code = files.read_status(self.runner, job, number)
        if code is not None:
            return JobState(Phase.DONE, exit=code, word="forgotten by Slurm")
        return JobState(Phase.LOST, reason="Slurm has forgotten it, and it left no status file", word="unknown")

    def _by_steps(self, number: str, state: JobState) -> JobState:
        """A job that failed, with what accounting knows of its steps: one may have been killed for memory."""
        done = self.runner.run(["sacct", "-n", "-P", "-j", number, "-o", "State"], timeout=_TIMEOUT)
        if "OUT_OF_MEMORY" not in done.out.split():
            return state
        return replace(state, phase=Phase.FAILED, failure=Failure.OUT_OF_MEMORY)

    def _accounted(self, number: str) -> JobState | None:
        """What slurmdbd has; None where there is none."""
        columns = "State,ExitCode,NodeList,Reason"
        done = self.runner.run(["sacct", "-X", "-n", "-P", "-j", number, "-o", columns], timeout=_TIMEOUT)
        state = slurm_answers.parse_sacct(done.out) if done.ok else None
        # Accounting lags: it may still say that a job runs which slurmctld has forgotten already.
        return state if state is not None and state.ended else None

    def cancel(self, number: str) -> None:
        """End a job; one that has ended already is no error. Raises EnvbuildError `job-not-cancelled` (exit 9)."""
        done = self.runner.run(["scancel", "--", number], timeout=_TIMEOUT)
        if not done.ok and not slurm_answers.unknown_job(done.err):
            raise EnvbuildError(
                "job-not-cancelled",
                f"job {number} could not be cancelled",
                why=said(done),
                hint=f"`scancel {number}` on {self.runner.host}",
                exit_code=ExitCode.JOB_FAILED,
            )

    def logs(self, job: Job, number: str, limit: int = 65536) -> str:
        """The end of the job's log, at most `limit` bytes; empty while there is none."""
        return files.tail(self.runner, posixpath.join(job.output, script.log_name(job, number)), limit)

    def pool(self, target: Target) -> slurm_answers.Partition:
        """The partition that a target's hosts, or else its queue, name. Raises EnvbuildError as `partition` does."""
        hosts = target.hosts
        named = hosts.slurm if isinstance(hosts, HostSource) else target.scheduler.queue
        assert named is not None  # noqa: S101 - see provision/survey/supported.py
        return self.partition(named)

    def partition(self, name: str) -> slurm_answers.Partition:
        """What a partition has. Raises EnvbuildError `partition-unknown` (exit 2), `scheduler-unreachable` (exit 3)."""
        shown = self._asked("scontrol", "show", "partition", "--oneliner", name)
        nodes = self._asked("sinfo", "-h", "-p", name, "-o", slurm_answers.PARTITION_FORMAT)
        config = self._asked("scontrol", "show", "config")
        found = slurm_answers.parse_partition(name, shown, nodes, config)
        if found is None or not found.nodes:
            others = sorted(set(self._asked("sinfo", "-h", "-o", "%R").split()))
            raise EnvbuildError(
                "partition-unknown",
                f"there is no partition {name} on this cluster" if found is None else f"partition {name} has no nodes",
                why=f"`sinfo` on {self.runner.host} lists: {', '.join(others) or 'nothing'}",
                hint="name one of them: `hosts: {slurm: NAME}`; FUTURE nodes appear only once autoscaling is on",
            )
        return found

    def _asked(self, *command: str) -> str:
        done = self.runner.run(command, timeout=_TIMEOUT)
        if done.missing or done.timed_out or done.rc is None or _AWAY.search(done.err):
            raise self._refused(command[0], done)
        return done.out

    def bad_nodes(self, nodes: tuple[str, ...]) -> dict[str, str]:
        """Those of `nodes` that take no jobs now, with the reason: an epilog may have drained them after ours."""
        if not nodes:
            return {}
        command = ["sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", slurm_answers.NODE_FORMAT]
        return slurm_answers.parse_bad_nodes(self.runner.run(command, timeout=_TIMEOUT).out)

    def _refused(self, program: str, done: Finished) -> EnvbuildError:
        host = self.runner.host
        if done.missing:
            return EnvbuildError(
                "scheduler-missing",
                f"there is no `{program}` on {host}",
                hint="run envbuild on a login node, or name one: `connection: {login: {host: ...}}`",
                exit_code=ExitCode.REFUSED,
            )
        if done.timed_out or done.rc is None or _AWAY.search(done.err):
            return EnvbuildError(
                "scheduler-unreachable",
                f"Slurm does not answer on {host}",
                why=said(done),
                hint=f"try `{program}` there; a job may have been submitted all the same: `squeue --me`",
                exit_code=ExitCode.UNREACHABLE,
            )
        return EnvbuildError(
            "job-refused",
            f"Slurm refused the job ({program} on {host})",
            why=said(done),
            hint="the partition's limits: `scontrol show partition`; account, time and nodes are in the target file",
            exit_code=ExitCode.REFUSED,
        )


def said(done: Finished) -> str:
    """The end of what a program said, for people."""
    if done.timed_out:
        return "no answer in time"
    lines = [line.strip() for line in (done.err or done.out).splitlines() if line.strip()]
    return "; ".join(lines[-4:])[-500:] or f"exit {done.rc}"
