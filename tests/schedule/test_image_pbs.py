"""Images through jobs of the fake PBS. A stand-in for Apptainer."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.container.storage import PYTHON, Storage
from tests.e2e.world import Done
from tests.schedule.fake_pbs import has_hosts
from tests.schedule.test_provision_pbs import PbsWorld
from tests.slurm.test_image_job import APPTAINER, LONG, section
from tests.support.programs import executable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not has_hosts(), reason="nodes with names of their own need UTS namespaces (root)"),
]


@pytest.fixture
def world(tmp_path: Path, storage: Storage) -> PbsWorld:
    """A stack of one wheel on the Python of the base; Apptainer is on PATH, here and in jobs."""
    world = PbsWorld(tmp_path)
    programs = tmp_path / "programs"
    executable(programs / "apptainer", APPTAINER.format(top=programs))
    storage.house(tmp_path)
    world.env |= {**storage.env, "PATH": f"{programs}:{world.env['PATH']}"}
    world.wheel("alpha", "1.0")
    world.lock(world.stack(python=[PYTHON], imports=["alpha"]))
    return world


def _target(world: PbsWorld) -> None:
    world.target()
    path = world.work / "cluster.yaml"
    more = {"engine": "container", "placement": "image", "tmp": str(world.top / "scratch")}
    given = {**yaml.safe_load(path.read_text()), **more, "container": section(world)}
    path.write_text(yaml.safe_dump(given))


def _provision(world: PbsWorld) -> Done:
    return world.run("provision", "--target", "./cluster.yaml", "--json", timeout=LONG)


def _good(done: Done) -> None:
    assert done.rc == 0, done.err
    nodes = {node["node"]: node for node in done.json["nodes"]}
    assert sorted(nodes) == ["x3001", "x3002"]
    assert {node["status"] for node in nodes.values()} == {"ok"}
    assert len({node["image"]["id"] for node in nodes.values()}) == 1


def test_one_image_is_tested_on_every_node_of_a_pbs_job_and_again_needs_none(world: PbsWorld) -> None:
    _target(world)
    _good(_provision(world))
    assert world.submitted() == ["envbuild-probe", "envbuild-provision"]
    again = world.job()
    assert (again.rc, world.submitted()) == (0, []), again.err
    assert {node["status"] for node in again.json["nodes"]} == {"unchanged"}
