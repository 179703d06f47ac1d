"""Where the jobs of a target run: its scheduler, pool of nodes and login host, and a job as the target asks for it."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from envbuild.errors import EnvbuildError
from envbuild.model.common import mistakes
from envbuild.model.target import Connection, Target
from envbuild.schedule.cluster import Runner, Scheduler, login_connection, submit_host
from envbuild.schedule.job import Job, Pool, Step, seconds_of
from envbuild.schedule.pbs import Pbs
from envbuild.schedule.slurm import Slurm

PROBE_LIMIT = 600
_SCHEDULERS: dict[str, type[Scheduler]] = {"slurm": Slurm, "pbs": Pbs}
# What programs of a job need to get out of a compute node, under the names that they read.
_PROXY = re.compile(r"\A(https?|ftp|all|no)_proxy\Z", re.IGNORECASE)


@dataclass(frozen=True)
class JobSite:
    """One target's cluster. `connection` is how the login host is reached (`local`: jobs are submitted here)."""

    target: Target
    runner: Runner
    scheduler: Scheduler
    pool: Pool
    connection: Connection

    @classmethod
    def of(cls, target: Target) -> JobSite:
        """Ask the scheduler where the target's nodes come from. Raises EnvbuildError as its `pool` does."""
        runner = submit_host(target)
        scheduler = _SCHEDULERS[target.scheduler.kind](runner)
        connection = login_connection(target) or Connection(kind="local")
        return cls(target, runner, scheduler, scheduler.pool(target), connection)

    @property
    def login(self) -> str:
        """The host that jobs are submitted on, by the name it is reached with."""
        return self.runner.host

    @property
    def nodes(self) -> int:
        """How many nodes a job gets: as the target says, or all of the pool that take jobs."""
        return self.target.scheduler.nodes or self.pool.in_service()

    @property
    def start_deadline(self) -> float | None:
        """Seconds that a job may wait for its nodes; None: as long as it takes."""
        told = self.target.scheduler.start_deadline
        return float(seconds_of(told)) if told else None

    def limit(self, otherwise: int) -> int:
        """Seconds that a job may run: as the target says, else `otherwise`."""
        told = self.target.scheduler.time_limit
        return seconds_of(told) if told else otherwise

    def job(self, name: str, steps: Sequence[Step], output: str, time_limit: int, *, builder: str | None = None) -> Job:
        """A job on the target's nodes that runs at most `time_limit` seconds and prints into the folder `output`.

        `builder`: a node that it must have, on which steps run that run once.

        Raises EnvbuildError `job-invalid` (exit 2).
        """
        wanted, expected, nodes = self.target.scheduler, self.target.expects.gpus_per_node, self.nodes
        gpus = self.pool.gpus_per_node if expected is None else expected
        share = self.pool.share(gpus, exclusive=wanted.exclusive)
        given: dict[str, Any] = {
            "name": name, "nodes": nodes, "steps": tuple(steps), "output": output,
            "gpus_per_node": gpus, "cpus_per_node": wanted.cpus_per_node or share.cpus,
            "memory_gib": share.memory_gib,
            "gres": self.pool.gres(), "queue": self.pool.queue(nodes, time_limit), "account": wanted.account,
            "exclusive": wanted.exclusive, "constraints": wanted.constraints, "time_limit": time_limit,
            "builder": builder,
            "filesystems": wanted.filesystems, "resources": wanted.resources,
            "modules": wanted.modules,
            "variables": proxies(self.target),
        }  # fmt: skip
        try:
            return Job(**given)
        except ValidationError as error:
            raise EnvbuildError(
                "job-invalid",
                "the target's job cannot be written down",
                why="; ".join(mistakes(error)),
                hint="correct the target file",
            ) from error


def proxies(target: Target) -> dict[str, str]:
    """The variables of a target that programs of a job need to get out of a compute node."""
    return {key: value for key, value in target.environment.items() if _PROXY.match(key) and isinstance(value, str)}


def place(runner: Runner, folder: str, files: Mapping[str, bytes]) -> None:
    """Put small files below a folder on the login host, for this user alone.

    Raises EnvbuildError `not-writable` (exit 7).
    """
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            archive.addfile(member, io.BytesIO(content))
    code = 'umask 077; mkdir -p -- "$1" && cd -- "$1" && tar -xf -'
    done = runner.run(["/bin/sh", "-c", code, "sh", folder], stdin=data.getvalue())
    if not done.ok:
        raise EnvbuildError(
            "not-writable",
            f"{folder} cannot be written on {runner.host}",
            why=done.err.strip()[-300:] or "no answer in time",
            hint="the prefix must be writable where jobs are submitted, and the same folder on the nodes",
        )
