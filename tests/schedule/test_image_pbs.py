"""Images through jobs of the fake PBS: built here, in a job, and by the printed file. A stand-in for Apptainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.container.fake_apptainer import write_programs
from tests.container.storage import PYTHON, Storage
from tests.e2e.world import Done
from tests.schedule.fake_pbs import has_hosts
from tests.schedule.test_provision_pbs import PbsWorld
from tests.slurm.test_image_job import APPTAINER, LONG, section, storage
from tests.support.programs import completed

__all__ = ["storage"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not has_hosts(), reason="nodes with names of their own need UTS namespaces (root)"),
]


@pytest.fixture
def world(tmp_path: Path, storage: Storage) -> PbsWorld:
    """A stack of one wheel on the Python of the base; Apptainer is on PATH, here and in jobs."""
    world = PbsWorld(tmp_path)
    programs = write_programs(tmp_path / "programs", APPTAINER)
    storage.house(tmp_path)
    world.env |= {**storage.env, "PATH": f"{programs}:{world.env['PATH']}"}
    world.wheel("alpha", "1.0")
    world.lock(world.stack(python=[PYTHON], imports=["alpha"]))
    return world


def _target(world: PbsWorld, *, scheduler: dict[str, Any] | None = None, **container: Any) -> None:
    world.target(**scheduler or {})
    path = world.work / "cluster.yaml"
    more = {"engine": "container", "placement": "image", "tmp": str(world.top / "scratch")}
    given = {**yaml.safe_load(path.read_text()), **more, "container": section(world, **container)}
    path.write_text(yaml.safe_dump(given))


def _provision(world: PbsWorld) -> Done:
    return world.run("provision", "--target", "./cluster.yaml", "--json", timeout=LONG)


def _good(done: Done) -> dict[str, Any]:
    assert done.rc == 0, done.err
    nodes = {node["node"]: node for node in done.json["nodes"]}
    assert sorted(nodes) == ["x3001", "x3002"]
    assert {node["status"] for node in nodes.values()} == {"ok"}
    assert len({node["image"]["id"] for node in nodes.values()}) == 1
    return nodes


def test_one_image_is_tested_on_every_node_of_a_pbs_job_and_again_needs_none(world: PbsWorld, storage: Storage) -> None:
    _target(world)
    nodes = _good(_provision(world))
    assert world.submitted() == ["envbuild-probe", "envbuild-provision"]
    again = world.job()
    assert (again.rc, world.submitted()) == (0, []), again.err
    assert {node["status"] for node in again.json["nodes"]} == {"unchanged"}
    _the_printed_file(world, storage, nodes["x3001"]["image"]["name"])


def _the_printed_file(world: PbsWorld, storage: Storage, image: str) -> None:
    """One file does the same without envbuild: the image comes from a registry, and every node tests inside."""
    _target(world, registry="registry.example.org/team/tiny")
    printed = world.run("provision", "--target", "./cluster.yaml", "--print-script")
    assert printed.rc == 0, printed.err
    storage.buildah("push", "-q", image, f"docker-archive:{world.top}/programs/registry.tar")
    world.fake.stop("background")
    for file in (world.prefix / "images").glob("*.sif"):
        file.unlink()
    log = _submit(world, printed.out)
    answers = [line.split(": ", 1) for line in log.splitlines() if ': {"' in line]
    assert sorted(node for node, _ in answers) == ["x3001", "x3001", "x3002", "x3002"]
    for _, text in answers:
        answer = json.loads(text)
        assert answer["ok"] and answer["result"]["ok"], text
    assert len({json.loads(text)["result"].get("root") for _, text in answers} - {None}) == 1
    (file,) = (world.prefix / "images").glob("*.sif")
    assert [path.name for path in file.parent.glob(f"{file.name}.*")] == []
    # What a node finds wrong is the exit code of the job.
    with file.open("r+b") as stream:
        stream.write(b"damaged")
    _submit(world, printed.out, good=False)


def _submit(world: PbsWorld, text: str, *, good: bool = True) -> str:
    """Submit the printed file; what it printed, which the fake PBS keeps nowhere."""
    log = world.top / "log"
    script = world.work / "image.qsub"
    script.write_text(text.replace("set -euo pipefail\n", f"exec > {log} 2>&1\nset -euo pipefail\n", 1))
    done = completed(["qsub", script], env=world.env, cwd=world.work, check=True)
    number = done.stdout.strip().partition(".")[0]
    state = json.loads((world.fake.top / f"{number}.json").read_text())
    assert (state["Exit_status"] == 0) is good, log.read_text()[-3000:]
    return log.read_text()


def test_a_job_of_one_node_builds_and_the_next_tests(world: PbsWorld) -> None:
    _target(world, scheduler={"resources": ["singularity_fakeroot=true"]}, build="job")
    nodes = _good(_provision(world))
    assert world.submitted() == ["envbuild-probe", "envbuild-image", "envbuild-provision"]
    last = max(path for path in world.runs.iterdir() if path.is_dir())
    script = (last / "envbuild-image.qsub").read_text()
    whole = "ncpus=64:ngpus=4:mem=503gb"
    assert f"#PBS -l select=1:{whole}\n" in script and "#PBS -l singularity_fakeroot=true\n" in script
    assert f"#PBS -l select=2:{whole}\n" in (last / "envbuild-provision.qsub").read_text()
    assert len({node["root"] for node in nodes.values()}) == 1
    again = world.job()
    assert (again.rc, world.submitted()) == (0, []), again.err
