"""The job's folder, seen from where jobs are submitted: its log and its status file."""

from __future__ import annotations

import posixpath

from envbuild.errors import EnvbuildError
from envbuild.node.read_text import integer
from envbuild.schedule import script
from envbuild.schedule.job import Job, SchedulerUnavailableError
from envbuild.schedule.runner import Runner


def make_folder(runner: Runner, folder: str) -> None:
    """Make a folder for this user alone. Raises EnvbuildError `job-folder-unwritable` (exit 7)."""
    done = runner.run(["mkdir", "-p", "-m", "0700", "--", folder])
    if not done.ok:
        raise EnvbuildError(
            "job-folder-unwritable",
            f"{folder} cannot be made on {runner.host}",
            why=done.err.strip()[-300:],
            hint="the prefix must be writable where jobs are submitted, and the same folder on the nodes",
        )


def read_status(runner: Runner, job: Job, number: str) -> int | None:
    """The exit code that the script left; None while it has left none.

    Raises SchedulerUnavailableError where nobody could look.
    """
    done = runner.run(["cat", "--", posixpath.join(job.output, script.status_name(number))])
    if done.rc is None:
        raise SchedulerUnavailableError(f"{runner.host} does not answer")
    text = done.out.strip()
    return integer(text) if done.ok else None


def tail(runner: Runner, path: str, limit: int) -> str:
    """The last `limit` bytes of a file; empty when it is not there."""
    done = runner.run(["tail", "-c", str(limit), "--", path])
    return done.out if done.ok else ""
