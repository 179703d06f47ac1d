"""PBS Professional: jobs through qsub, qstat and qdel.

It was not run on a real PBS: the tests use small programs that print what the manual pages and two issues of openpbs
say, broken JSON among it.
"""

from __future__ import annotations

import posixpath
import re

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.target import QueueLimits, Target
from envbuild.node.proc import Finished
from envbuild.schedule import files, pbs_answers, pbs_nodes, pbs_script, script
from envbuild.schedule.job import Job, JobState, Phase, SchedulerUnavailableError
from envbuild.schedule.runner import Runner
from envbuild.schedule.slurm import said

_TIMEOUT = 60.0
_AWAY = re.compile(r"cannot connect|connection (refused|reset)|timed out|end of file|communication failure", re.I)


class Pbs:
    """The adapter of one server. `runner` runs PBS's programs where jobs are submitted."""

    kind, suffix, cancels = "pbs", "qsub", "qdel"

    def __init__(self, runner: Runner) -> None:
        """Nothing is asked yet."""
        self.runner = runner
        # Whether this server's JSON could be read so far; a job with variables that break it is not asked for twice.
        self._json = True

    def render(self, job: Job) -> str:
        """The qsub file; see `pbs_script.render`."""
        return pbs_script.render(job)

    def render_body(self, job: Job, text: str) -> str:
        """The qsub file around a bash script; see `pbs_script.render_body`."""
        return pbs_script.render_body(job, text)

    def attempt(self, state: JobState) -> int:
        """Its jobs are not rerun (`-r n`); PBS may count one up all the same that did not come to start."""
        return 0

    def pool(self, target: Target) -> pbs_nodes.Queues:
        """The queues that jobs of a target may go to, and how their nodes call GPUs.

        Raises EnvbuildError `queue-unknown` (exit 2), `queue-closed` (exit 75), `scheduler-missing`,
        `scheduler-unreachable`.
        """
        wanted = target.scheduler
        limits = (QueueLimits(name=wanted.queue),) if wanted.queue else wanted.queues
        if limits:
            there = pbs_nodes.parse_queues(self._asked("qstat", "-Q", "-f"))
            pbs_nodes.check_queues(limits, there, self.runner.host)
        gpus = 0
        if not wanted.exclusive:
            # Whole nodes come with their GPUs; only a part of one has to be asked for by number.
            gpus = pbs_nodes.most_gpus(pbs_nodes.parse_nodes(self._asked("pbsnodes", "-a")), wanted.constraints or "")
        return pbs_nodes.Queues(limits, gpus)

    def bad_nodes(self, nodes: tuple[str, ...]) -> dict[str, str]:
        """Those of `nodes` that take no jobs now, with the reason: a hook may have taken them out after ours."""
        if not nodes:
            return {}
        found = pbs_nodes.parse_nodes(self.runner.run(["pbsnodes", *nodes], timeout=_TIMEOUT).out)
        return pbs_nodes.bad_nodes(found)

    def _asked(self, *command: str) -> str:
        done = self.runner.run(command, timeout=_TIMEOUT)
        if done.missing or done.timed_out or done.rc is None or _AWAY.search(done.err):
            raise self._refused(done, command[0])
        return done.out

    def submit(self, job: Job) -> str:
        """Submit it; the number of the job without its server.

        Raises EnvbuildError `job-refused`, `scheduler-missing` (exit 7) or `scheduler-unreachable` (exit 3).
        """
        files.make_folder(self.runner, job.output)
        done = self.runner.run(["qsub"], stdin=self.render(job).encode(), timeout=_TIMEOUT)
        found = re.search(r"^([0-9]+)(?:\.\S+)?\s*\Z", done.out.strip(), re.MULTILINE)
        if done.ok and found:
            return found[1]
        raise self._refused(done)

    def poll(self, job: Job, number: str) -> JobState:
        """What PBS says, its history included; once it has forgotten the job, what the job's own status file says.

        Raises SchedulerUnavailableError when the server does not answer now.
        """
        if self._json:
            done = self.runner.run(["qstat", "-x", "-f", "-F", "json", number], timeout=_TIMEOUT)
            state = pbs_answers.parse_json(done.out, number)
            if state is not None:
                return self._sure(job, number, state)
            self._json = not done.ok
        done = self.runner.run(["qstat", "-x", "-f", number], timeout=_TIMEOUT)
        state = pbs_answers.parse_text(done.out, number)
        if state is not None:
            return self._sure(job, number, state)
        if not pbs_answers.unknown_job(done.err + done.out):
            raise SchedulerUnavailableError(said(done))
        code = files.read_status(self.runner, job, number)
        if code is not None:
            return JobState(Phase.DONE, exit=code, word="forgotten by PBS")
        return JobState(Phase.LOST, reason="PBS has forgotten it, and it left no status file", word="unknown")

    def _sure(self, job: Job, number: str, state: JobState) -> JobState:
        """A finished job without an exit status may still have left its own: then it was not deleted in the queue."""
        if state.ended and state.exit is None:
            code = files.read_status(self.runner, job, number)
            if code is not None:
                return JobState(Phase.DONE, exit=code, nodes=state.nodes, reason=state.reason, word=state.word)
        return state

    def cancel(self, number: str) -> None:
        """End a job; one that has ended already is no error. Raises EnvbuildError `job-not-cancelled` (exit 9)."""
        done = self.runner.run(["qdel", number], timeout=_TIMEOUT)
        if not done.ok and not pbs_answers.unknown_job(done.err):
            raise EnvbuildError(
                "job-not-cancelled",
                f"job {number} could not be cancelled",
                why=said(done),
                hint=f"`qdel {number}` on {self.runner.host}",
                exit_code=ExitCode.JOB_FAILED,
            )

    def logs(self, job: Job, number: str, limit: int = 65536) -> str:
        """The end of the job's log, at most `limit` bytes; empty while there is none."""
        return files.tail(self.runner, posixpath.join(job.output, script.log_name(job, number)), limit)

    def _refused(self, done: Finished, program: str = "qsub") -> EnvbuildError:
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
                f"PBS does not answer on {host}",
                why=said(done),
                hint="try `qsub` there; a job may have been submitted all the same: `qstat -u $USER`",
                exit_code=ExitCode.UNREACHABLE,
            )
        return EnvbuildError(
            "job-refused",
            f"PBS refused the job (qsub on {host})",
            why=said(done),
            hint="the queue's limits: `qstat -Qf QUEUE`; queue, account, time and file systems are in the target file",
            exit_code=ExitCode.REFUSED,
        )
