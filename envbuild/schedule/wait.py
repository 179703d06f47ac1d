"""Wait for a job: ask often at first, then once a minute, to spare the scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain, repeat

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.schedule.cluster import Scheduler
from envbuild.schedule.job import Job, JobState, Phase, SchedulerUnavailableError

PAUSES: tuple[float, ...] = (0.0, 2.0, 4.0, 8.0)
LONG_PAUSE = 60.0
# While waiting for the next question, a look at the status file on a shared disk costs the scheduler nothing.
PEEK = 1.0
# The script has ended; the scheduler will say so within seconds.
SOON = 1.0
# How often a scheduler that does not answer is asked, for the first minutes: one that is restarted is back soon.
AGAIN = (*PAUSES[1:], *repeat(PAUSES[-1], 20))
# A slurmctld that is restarted or fails over is back within minutes, a login host or the way to it too.
PATIENCE = 1800.0
# Slurm's reasons for which a job waits that asks for more than it may have, where the site has these taken at first:
# no waiting changes that. PartitionNodeLimit is none of them, as it also says that nodes are down or drained.
_NEVER = {
    "PartitionTimeLimit": "its partition gives less time than it asks for",
    "AssocMaxWallDurationPerJobLimit": "its account may run no job for so long",
    "QOSMaxWallDurationPerJobLimit": "its quality of service allows no job for so long",
}


def wait_for(
    scheduler: Scheduler,
    job: Job,
    number: str,
    *,
    start: float | None = None,
    on_change: Callable[[JobState], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
    peek: Callable[[], bool] | None = None,
) -> JobState:
    """The state in which a job ended; `on_change` sees every new one. `peek` says cheaply whether it may have ended.

    `start`: the seconds that it may take to begin (None: no limit).
    Raises EnvbuildError `job-not-started` (exit 75) and `job-refused` (exit 7), where the job is cancelled,
    `scheduler-silent` (exit 75; it is not), and KeyboardInterrupt when `cancelled` says so.
    """
    begun = heard = time.monotonic()
    restarts, silent = 0, False
    last: JobState | None = None
    steps = chain(PAUSES, repeat(LONG_PAUSE))
    while True:
        pause = next(steps)
        if start is not None and (last is None or last.waiting):
            pause = max(0.0, min(pause, begun + start - time.monotonic()))
        if _pause(pause, cancelled, peek):
            peek, steps = None, chain((SOON, *PAUSES[1:]), repeat(LONG_PAUSE))
        try:
            state = _poll(scheduler, job, number)
        except SchedulerUnavailableError as error:
            if time.monotonic() - heard > PATIENCE:
                raise _silent(number, str(error), time.monotonic() - heard) from error
            steps, silent = steps if silent else chain(AGAIN, repeat(LONG_PAUSE)), True
            continue
        steps, silent = chain(PAUSES[1:], repeat(LONG_PAUSE)) if silent else steps, False
        heard = time.monotonic()
        if state.restarts != restarts:
            # It was requeued, and waits anew.
            begun, restarts = heard, state.restarts
        if state != last:
            on_change(state)
            if last is not None and (state.phase, state.restarts) != (last.phase, last.restarts):
                # Something happens: the next change may be near.
                steps = chain(PAUSES[1:], repeat(LONG_PAUSE))
            last = state
        if state.ended:
            return state
        if state.waiting and state.reason in _NEVER:
            scheduler.cancel(number)
            raise _refused(number, state.reason)
        if state.waiting and start is not None and time.monotonic() - begun >= start:
            scheduler.cancel(number)
            raise _not_started(number, state, start)


def _poll(scheduler: Scheduler, job: Job, number: str) -> JobState:
    """What the scheduler says; one whose host is out of reach does not answer now either."""
    try:
        return scheduler.poll(job, number)
    except EnvbuildError as error:
        if error.exit_code is not ExitCode.UNREACHABLE:
            raise
        raise SchedulerUnavailableError(": ".join(filter(None, (error.what, error.why)))) from error


def _pause(seconds: float, cancelled: Callable[[], bool], peek: Callable[[], bool] | None) -> bool:
    """Wait, at most until `peek` says that something has happened; whether it did."""
    end = time.monotonic() + seconds
    while True:
        if cancelled():
            raise KeyboardInterrupt
        left = end - time.monotonic()
        if left <= 0:
            return False
        if peek is not None and peek():
            return True
        time.sleep(min(PEEK, left))


def _not_started(number: str, state: JobState, limit: float) -> EnvbuildError:
    waits = "its nodes were still being started" if state.phase is Phase.CONFIGURING else "it was still in the queue"
    return EnvbuildError(
        "job-not-started",
        f"job {number} did not start within {limit:g} s, and envbuild cancelled it",
        why=f"{waits}: {state.reason or state.word}",
        hint="ask for fewer nodes or less time, or wait longer: `scheduler: {start_deadline: 2h}`",
        details={"job": number, "reason": state.reason},
    )


def _refused(number: str, reason: str) -> EnvbuildError:
    return EnvbuildError(
        "job-refused",
        f"job {number} can never start, and envbuild cancelled it",
        why=f"{_NEVER[reason]} ({reason})",
        hint="ask for less: `scheduler: {time_limit: 1h, nodes: 1}`, or less --time-limit (`bench`: --run-timeout)",
        details={"job": number, "reason": reason},
    )


def _silent(number: str, why: str, seconds: float) -> EnvbuildError:
    return EnvbuildError(
        "scheduler-silent",
        f"the scheduler has not answered for {seconds:.0f} s; job {number} may be running",
        why=why,
        hint="run the same command later: it collects what the job has done",
        details={"job": number},
    )
