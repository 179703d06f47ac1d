"""A user's world whose target is a real Slurm, with the prefix on a folder that all of its nodes share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.world import Done, World
from tests.slurm.cluster import Cluster
from tests.support.often import OFTEN
from tests.support.patience import until
from tests.support.programs import executable
from tests.transport.sshd import Server, make_key, require_sshd, user

JOINT = "smoke/nodes/all-reduce"


class JobWorld(World):
    """`work/cluster.yaml` is the target; its prefix is `shared/envbuild` of the cluster."""

    def __init__(self, top: Path, cluster: Cluster) -> None:
        """Nothing is on the prefix yet."""
        super().__init__(top)
        self.cluster = cluster
        del self.env["ENVBUILD_PREFIX"]
        self.prefix = cluster.shared / f"envbuild of {top.name}"
        self.env |= {name: cluster.env[name] for name in ("SLURM_CONF", "PATH")}
        self.target()

    def target(self, **more: Any) -> None:
        """Write the target; `scheduler` is merged, everything else replaced."""
        scheduler = {"kind": "slurm", "nodes": 2, "exclusive": True, "time_limit": "10m"} | more.pop("scheduler", {})
        given = {"name": "cluster", "extends": "slurm", "hosts": {"slurm": "gpu"}, "prefix": str(self.prefix)}
        path = self.work / "cluster.yaml"
        path.write_text(yaml.safe_dump({**given, "stack": "./tiny.yaml", "scheduler": scheduler, **more}))

    def run(self, *args: str, **more: Any) -> Done:
        """As for any world, but for the pauses in waiting for a job."""
        return super().run(*args, **{"before": OFTEN, **more})

    def job(self, *args: str, verb: str = "provision", **more: Any) -> Done:
        """`envbuild VERB --target ./cluster.yaml --json ARGS`."""
        return self.run(verb, "--target", "./cluster.yaml", "--json", *args, **more)

    def nothing_to_do(self, *jobs: str) -> Done:
        """A provision that finds all in place, and needs no other jobs to see that."""
        done = self.job(rc=0)
        assert ({*done.statuses.values()}, self.submitted(), done.json["steps_run"]) == ({"unchanged"}, [*jobs], 0)
        return done

    def number(self, name: str) -> str:
        """The number of the last job of that name that the newest run has submitted; empty while there is none."""
        return next((job["job"] for job in reversed(self.jobs()) if job["name"] == name), "")

    def wait_for_job(self, name: str) -> str:
        """The number of a job of that name that a run in the background has submitted."""
        return until(lambda: self.number(name))

    def wait_for_state(self, number: str, *wanted: str) -> str:
        """One of these states of a job, in Slurm's words, as soon as it is there."""

        def state() -> str:
            text = self.cluster.run("scontrol", "show", "job", "--oneliner", number)
            now = text.split("JobState=")[1].split()[0]
            return now if now in wanted else ""

        return until(state)


def joint(done: Done) -> dict[str, dict[str, Any]]:
    """The check of the joint test by node."""
    return {name: check for name, node in done.nodes.items() for check in node["checks"] if check["name"] == JOINT}


@contextmanager
def through_login(world: JobWorld, folder: Path) -> Iterator[tuple[Server, Path]]:
    """A login host that alone knows of Slurm, and the file with its key; the target leads to it."""
    require_sshd()
    shell = executable(
        folder / "shell",
        f"#!/bin/sh\necho 'Welcome to the login node'\nSLURM_CONF={world.cluster.conf}; export SLURM_CONF\n"
        'exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n',
    )
    key, known = make_key(folder / "id"), folder / "known_hosts"
    server = Server(folder / "login", "127.0.0.9", key, force=str(shell)).start()
    try:
        known.write_text(server.known)
        login = {"host": server.address, "user": user(), "port": server.port}
        world.target(connection={"kind": "job", "login": login, "identity": str(key), "known_hosts": str(known)})
        del world.env["SLURM_CONF"]
        yield server, known
    finally:
        server.stop()
