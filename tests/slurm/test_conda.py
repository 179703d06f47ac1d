"""The engine conda through a job of a real Slurm: one node builds, all test, and again nothing is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.node.test_git_source import PROJECT
from tests.slurm.cluster import Cluster
from tests.slurm.job_world import JobWorld, by_node
from tests.support.conda import Channel, fill

pytestmark = pytest.mark.slow


def test_one_node_of_a_job_builds_the_conda_environment_and_a_changed_file_is_named(
    cluster: Cluster, tmp_path: Path, conda_python: Path, world: JobWorld
) -> None:
    channel = fill(Channel(cluster.shared / f"forge of {tmp_path.name}", "forge"), conda_python)
    section: dict[str, Any] = {"channels": [{"name": "forge", "url": channel.url}], "packages": ["tool", "pure"]}
    built = {**world.repository("lib", PROJECT), "install": "wheel"}
    world.wheel()
    world.lock(world.stack("own", conda=section, sources=[built], imports=["alpha", "lib", "pure"]))
    world.target(stack="./own.yaml", engine="conda")
    done = world.job()
    nodes = by_node(done)
    assert done.rc == 0, done.err
    assert {node["status"] for node in nodes.values()} == {"ok"}
    assert len({node["root"] for node in nodes.values()}) == 1 < len(nodes)
    again = world.job()
    assert (again.rc, world.submitted(), again.json["steps_run"]) == (0, [], 0), again.err
    (library,) = (world.prefix / "envs").glob("own-*/lib/libtool.so")
    library.write_bytes(library.read_bytes() + b"x")
    deep = world.job(verb="verify")
    said = {"path": "lib/libtool.so", "kind": "changed", "package": "tool 2.0 h1_3"}
    assert (deep.rc, deep.node["drift"]) == (1, [said]), deep.err
