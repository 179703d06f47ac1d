"""`envbuild provision` through jobs of a real Slurm, on a prefix that its nodes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.job_world import JobWorld, by_node

pytestmark = pytest.mark.slow


@pytest.fixture
def world(cluster: Cluster, tmp_path: Path) -> JobWorld:
    return JobWorld(tmp_path, cluster)


def test_one_command_builds_once_and_tests_on_every_node_and_again_does_nothing(world: JobWorld) -> None:
    world.tiny()
    done = world.job()
    nodes = by_node(done)
    assert done.rc == 0, done.err
    assert len(nodes) == 2
    assert {node["status"] for node in nodes.values()} == {"ok"}
    assert len({node["root"] for node in nodes.values()}) == 1
    again = world.job()
    assert again.rc == 0, again.err
    assert {node["status"] for node in by_node(again).values()} == {"unchanged"}
    assert world.submitted() == []
