"""Nodes of a real Slurm that have no Python: one is staged on the login host, and a second job asks them again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.job_world import by_node
from tests.slurm.test_node_local import LocalWorld

pytestmark = pytest.mark.slow
JOBS = ["envbuild-probe", "envbuild-probe", "envbuild-provision"]


@pytest.fixture
def world(cluster: Cluster, tmp_path: Path, standalone_python: Path) -> Iterator[LocalWorld]:
    """Its stack stands on a standalone Python."""
    for path in (path for name in cluster.names for path in cluster.disk(name).iterdir()):
        shutil.rmtree(path)
    made = LocalWorld(tmp_path, cluster)
    made.use_toolchain(standalone_python)
    made.tiny(interpreters=["standalone"])
    yield made
    cluster.show_python()


def test_nodes_without_any_python_get_one_through_the_shared_prefix(world: LocalWorld) -> None:
    world.cluster.hide_python("gpu1", "gpu2")
    world.target(placement="shared", prefix=str(world.shared), shared=None)
    dry = world.job("--dry-run")
    assert dry.rc == 7, dry.out[-3000:] + dry.err
    assert "gpu1 has no Python 3.6 or newer" in dry.out + dry.err
    assert not (world.shared / "tools").exists(), "a dry run brings nothing"
    done = world.job()
    assert done.rc == 0, done.out[-3000:] + done.err
    assert {node: found["status"] for node, found in by_node(done).items()} == {"gpu1": "ok", "gpu2": "ok"}
    assert [job["name"] for job in world.submitted()] == JOBS
    assert len(list((world.shared / "tools").iterdir())) == 3, "node program, uv and the Python are staged once"
    assert not (world.shared / "jobs").exists()
    again = world.job()
    assert (again.rc, world.submitted()) == (0, []), again.err
    assert world.job(verb="smoke").rc == 0


def test_a_node_without_python_beside_one_that_has_it_takes_the_pack_onto_its_own_disk(world: LocalWorld) -> None:
    world.cluster.hide_python("gpu2")
    done = world.job()
    nodes = by_node(done)
    assert done.rc == 0, done.out[-3000:] + done.err
    assert sorted(nodes) == ["gpu1", "gpu2"]
    assert len({node["root"] for node in nodes.values()}) == 1
    assert [job["name"] for job in world.submitted()] == JOBS
    # A disk that was wiped has no Python again; the shared folder has.
    shutil.rmtree(world.disk("gpu2"))
    assert world.job(verb="smoke").rc == 0
    # Nor does another environment rest on what one disk has and another has not.
    shutil.rmtree(world.disk("gpu2"))
    world.wheel("beta", "2.0")
    world.tiny(interpreters=["standalone"], packages=["beta==2.0"], imports=["beta"])
    changed = world.job()
    assert changed.rc == 0, changed.out[-3000:] + changed.err
    assert {node["status"] for node in by_node(changed).values()} == {"ok"}
