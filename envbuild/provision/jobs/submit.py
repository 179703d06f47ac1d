"""Submit a job of a run, wait for it, tell how it goes, and clean up after it."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.node.redact import redact_text
from envbuild.provision.jobs.site import JobSite
from envbuild.provision.run.context import Run, Work
from envbuild.provision.run.journal import EventKind
from envbuild.schedule.cluster import LIMIT, Here
from envbuild.schedule.job import Job, JobState
from envbuild.schedule.script import log_name, status_name
from envbuild.schedule.wait import Limits, wait_for

LOG_LIMIT = LIMIT // 2  # bytes of a job's log that are brought here
# The first line of a log that had more.
CUT = f"envbuild: the first part of this log is left out, it has more than {LOG_LIMIT >> 20} MiB"


def submit(work: Work | Run, site: JobSite, job: Job) -> str:
    """Tell what a job costs and submit it; its number. The script stays in the run directory."""
    script = work.run.path / f"{job.name}.{site.scheduler.suffix}"
    script.write_text(site.scheduler.render(job))
    for warning in job.warnings():
        work.journal.stage(f"warning: {warning}")
    work.journal.stage(f"submitting {job.name}: {job.cost()}")
    number = site.scheduler.submit(job)
    work.journal.append(EventKind.JOB_SUBMITTED, job=number, name=job.name, nodes=job.nodes, output=job.output)
    return number


def run_to_end(
    work: Work | Run, site: JobSite, job: Job, watch: Callable[[str], None] = lambda _: None,
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

    def told(state: JobState) -> None:
        work.journal.append(EventKind.JOB_STATE, job=number, state=state.told(), nodes=list(state.nodes))
        work.journal.stage(f"job {number}: {state.told()}")
        on_state(state)

    try:
        state = wait_for(
            site.scheduler, job, number, limits=Limits(start=site.start_deadline), on_change=told,
            cancelled=cancelled, peek=_peek(site, job, number),
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


def _peek(site: JobSite, job: Job, number: str) -> Callable[[], bool] | None:
    """Whether the status file is there, where looking costs nothing."""
    if not isinstance(site.runner, Here):
        return None
    return Path(job.output, status_name(number)).exists


def finish(work: Work | Run, site: JobSite, job: Job, number: str, state: JobState, *, good: bool) -> None:
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
