"""Slurm: jobs through sbatch, scontrol, sacct and scancel, as of 20.11 and later."""

from __future__ import annotations

import re
from dataclasses import replace

from envbuild.errors import EnvbuildError
from envbuild.model.target import Target
from envbuild.schedule import slurm_answers, slurm_script
from envbuild.schedule.cluster import TIMEOUT, Scheduler, said
from envbuild.schedule.job import Failure, Job, JobState, Phase, SchedulerUnavailableError


class Slurm(Scheduler):
    """The programs of one cluster of Slurm."""

    name, suffix, submits, cancels = "Slurm", "sbatch", ("sbatch", "--parsable"), "scancel"
    away = re.compile(
        r"unable to contact slurm controller|socket timed out|connection refused|slurm backup controller"
        r"|zero bytes were",
        re.IGNORECASE,
    )
    mine = "squeue --me"
    limits = "the partition's limits: `scontrol show partition`; account, time and nodes are in the target file"
    render = staticmethod(slurm_script.render)
    render_body = staticmethod(slurm_script.render_body)
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
            raise SchedulerUnavailableError(said(done))
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
        found = slurm_answers.parse_partition(name, shown, nodes, config)
        if found is None or not found.nodes:
            others = sorted(set(self.asked("sinfo", "-h", "-o", "%R").split()))
            raise EnvbuildError(
                "partition-unknown",
                f"there is no partition {name} on this cluster" if found is None else f"partition {name} has no nodes",
                why=f"`sinfo` on {self.runner.host} lists: {', '.join(others) or 'nothing'}",
                hint="name one of them: `hosts: {slurm: NAME}`; FUTURE nodes appear only once autoscaling is on",
            )
        return found

    def bad_nodes(self, nodes: tuple[str, ...]) -> dict[str, str]:
        """Those of `nodes` that take no jobs now, with the reason: an epilog may have drained them after ours."""
        if not nodes:
            return {}
        command = ["sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", slurm_answers.NODE_FORMAT]
        return slurm_answers.parse_bad_nodes(self.runner.run(command, timeout=TIMEOUT).out)
