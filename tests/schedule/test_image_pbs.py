"""`provision` with `engine: container` through a job of the fake PBS: a real image, and a stand-in for Apptainer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.container.storage import PYTHON, Storage
from tests.schedule.fake_pbs import has_hosts
from tests.schedule.test_provision_pbs import PbsWorld
from tests.slurm.test_image_job import APPTAINER, LONG, section, storage

__all__ = ["storage"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not has_hosts(), reason="nodes with names of their own need UTS namespaces (root)"),
]


def test_one_image_is_tested_on_every_node_of_a_pbs_job_and_again_needs_none(tmp_path: Path, storage: Storage) -> None:
    world = PbsWorld(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "apptainer").write_text(APPTAINER.format(top=programs))
    (programs / "apptainer").chmod(0o755)
    world.env |= {**storage.env, "PATH": os.pathsep.join((str(programs), world.env["PATH"]))}
    world.wheel("alpha", "1.0")
    world.lock(world.stack(python=[PYTHON], imports=["alpha"]))
    path = world.work / "cluster.yaml"
    more = {"engine": "container", "placement": "image", "container": section(world)}
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **more}))
    done = world.run("provision", "--target", "./cluster.yaml", "--json", timeout=LONG)
    assert done.rc == 0, done.err
    nodes = {node["node"]: node for node in done.json["nodes"]}
    assert sorted(nodes) == ["x3001", "x3002"]
    assert {node["status"] for node in nodes.values()} == {"ok"}
    assert len({node["image"]["id"] for node in nodes.values()}) == 1
    assert world.submitted() == ["envbuild-probe", "envbuild-provision"]
    again = world.job()
    assert (again.rc, world.submitted()) == (0, []), again.err
    assert {node["status"] for node in again.json["nodes"]} == {"unchanged"}
