"""PBS Professional: jobs through qsub, qstat and qdel.

It was not run on a real PBS: the tests use small programs that print what the manual pages and two issues of openpbs
say, broken JSON among it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from envbuild.model.target import QueueLimits, Target
from envbuild.schedule import files, pbs_answers, pbs_nodes, pbs_script
from envbuild.schedule.cluster import TIMEOUT, Scheduler, said
from envbuild.schedule.job import Job, JobState, Phase, SchedulerUnavailableError
from envbuild.schedule.runner import Runner


class Pbs(Scheduler):
    """The programs of one server of PBS."""

    name, suffix, submits, cancels = "PBS", "qsub", ("qsub",), "qdel"
    away = re.compile(r"cannot connect|connection (refused|reset)|timed out|end of file|communication failure", re.I)
    mine = "qstat -u $USER"
    limits = "the queue's limits: `qstat -Qf QUEUE`; queue, account, time and file systems are in the target file"
    render = staticmethod(pbs_script.render)
    render_body = staticmethod(pbs_script.render_body)
    unknown_job = staticmethod(pbs_answers.unknown_job)

    def __init__(self, runner: Runner) -> None:
        """Nothing is asked yet."""
        super().__init__(runner)
        # Whether this server's JSON could be read so far; a job with variables that break it is not asked for twice.
        self._json = True

    def attempt(self, state: JobState) -> int:
        """Its jobs are not rerun (`-r n`); PBS may count one up all the same that did not come to start."""
        return 0

    def pool(self, target: Target) -> pbs_nodes.Queues:
        """The queues that jobs of a target may go to, and what their nodes offer.

        Raises EnvbuildError `queue-unknown` (exit 2), `queue-closed` (exit 75), `scheduler-missing`,
        `scheduler-unreachable`.
        """
        wanted = target.scheduler
        limits = (QueueLimits(name=wanted.queue),) if wanted.queue else wanted.queues
        queues = {}
        if limits:
            there = pbs_nodes.parse_queues(self.asked("qstat", "-Q", "-f"))
            pbs_nodes.check_queues(limits, there, self.runner.host)
            queues = {limit.name: there.get(limit.name, {}) for limit in limits}
        nodes = pbs_nodes.parse_nodes(self.asked("pbsnodes", "-a"))
        return pbs_nodes.Queues(limits, pbs_nodes.offers(nodes, wanted.constraints or "", queues))

    def bad_nodes(self, nodes: tuple[str, ...]) -> dict[str, str]:
        """Those of `nodes` that take no jobs now, with the reason: a hook may have taken them out after ours."""
        if not nodes:
            return {}
        found = pbs_nodes.parse_nodes(self.runner.run(["pbsnodes", *nodes], timeout=TIMEOUT).out)
        return pbs_nodes.bad_nodes(found)

    def poll(self, job: Job, number: str) -> JobState:
        """What PBS says, its history included; once it has forgotten the job, what the job's own status file says.

        Raises SchedulerUnavailableError when the server does not answer now.
        """
        if self._json:
            done = self.runner.run(["qstat", "-x", "-f", "-F", "json", number], timeout=TIMEOUT)
            state = pbs_answers.parse_json(done.out, number)
            if state is not None:
                return self._sure(job, number, state)
            self._json = not done.ok
        done = self.runner.run(["qstat", "-x", "-f", number], timeout=TIMEOUT)
        state = pbs_answers.parse_text(done.out, number)
        if state is not None:
            return self._sure(job, number, state)
        if not self.unknown_job(done.err + done.out):
            raise SchedulerUnavailableError(said(done))
        return self.by_status_file(job, number)

    def _sure(self, job: Job, number: str, state: JobState) -> JobState:
        """A finished job without an exit status may still have left its own: then it was not deleted in the queue."""
        if state.ended and state.exit is None:
            code = files.read_status(self.runner, job, number)
            if code is not None:
                return replace(state, phase=Phase.DONE, exit=code, failure=None)
        return state
