"""`base: system` through a job: what the nodes' interpreter provides is asked there and stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_bases import locked, system_python
from tests.slurm.cluster import Cluster
from tests.slurm.job_world import JobWorld, by_node

__all__ = ["system_python"]
pytestmark = pytest.mark.slow


def test_an_environment_stands_on_the_interpreter_of_the_nodes(
    cluster: Cluster, tmp_path: Path, system_python: Path
) -> None:
    world = JobWorld(tmp_path, cluster)
    world.target(base="system", base_python=str(system_python))
    locked(world, system_python)
    done = world.job()
    assert done.rc == 0, done.err
    nodes = by_node(done)
    # The node that built tells what it stands on; the others tested it.
    assert [node["base_packages"]["beta"] for node in nodes.values() if node["base_packages"]] == ["1.5"]
    assert len({node["root"] for node in nodes.values()}) == 1
    current = world.prefix / "current" / "tiny"
    assert world.python("import alpha, beta; print(alpha.VERSION, beta.VERSION)", current) == "1.0 1.5"
    # What the base has now is asked again; nothing else has to be done.
    again = world.job()
    assert again.rc == 0, again.err
    assert [job["name"] for job in world.submitted()] == ["envbuild-probe"]
    assert {node["status"] for node in by_node(again).values()} == {"unchanged"}
