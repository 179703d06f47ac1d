"""`build: job`: an image that a node of a real Slurm builds from a definition, by a stand-in for Apptainer.

The stand-in has no network in any section, so that everything was fetched before. What Apptainer itself makes of the
definition is not shown.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.container.fake_apptainer import write_programs
from tests.container.storage import PYTHON, Storage, storage_in
from tests.node.forge import FILES, PATCH
from tests.slurm.cluster import Cluster
from tests.slurm.job_world import JobWorld, by_node
from tests.slurm.test_image_job import APPTAINER, LONG, section

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, run_folder: Path) -> Iterator[Storage]:
    """Where the base has a compiler."""
    with storage_in(tmp_path_factory.mktemp("images"), run_folder, compiler=True) as storage:
        yield storage


@pytest.fixture
def world(cluster: Cluster, tmp_path: Path, storage: Storage) -> Iterator[JobWorld]:
    """A wheel, and a patched source with an extension; Apptainer works in jobs alone."""
    world = JobWorld(tmp_path, cluster)
    programs = write_programs(cluster.top / "programs", APPTAINER)
    (programs / "jobs-alone").touch()
    storage.house(tmp_path)
    world.env |= {**storage.env, "PATH": f"{programs}:{world.env['PATH']}"}
    world.wheel("alpha", "1.0")
    _lock(world)
    tmp = tmp_path / "scratch"
    world.target(engine="container", placement="image", container=section(world, build="job"), tmp=str(tmp))
    yield world
    shutil.rmtree(programs)


def _lock(world: JobWorld, **more: Any) -> None:
    pin = world.repository("quick", {**FILES, "README": str(more)})
    source = {**pin, "ref": "main", "patches": [PATCH], "build": {"kind": "wheel", "extensions": ["quick._fast"]}}
    world.lock(world.stack(python=[PYTHON], sources=[source], **{"imports": ["quick._fast"], **more}))


def _programs(world: JobWorld) -> Path:
    return world.cluster.top / "programs"


def _builders(world: JobWorld) -> list[str]:
    """The nodes that built since the log was last looked at."""
    log = _programs(world) / "log"
    words = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    log.unlink(missing_ok=True)
    return [line[0] for line in words if line[1:2] == ["build"]]


def _jobs(world: JobWorld) -> list[tuple[str, int]]:
    return [(job["name"], job["nodes"]) for job in world.submitted()]


def _left(world: JobWorld) -> list[str]:
    """What is in the folder of images."""
    return sorted(path.name for path in (world.prefix / "images").iterdir())


def test_one_node_builds_and_all_nodes_test_and_what_fails_leaves_the_image_in_use(world: JobWorld) -> None:
    planned = world.job("--dry-run")
    assert planned.rc == 0, planned.err
    assert "build in a job" in json.dumps(planned.json["plan"])
    _a_build_that_is_killed(world)
    done = world.job(timeout=LONG)
    nodes = by_node(done)
    assert done.rc == 0, (done.err, nodes)
    assert {node["status"] for node in nodes.values()} == {"ok"} and sorted(nodes) == ["gpu1", "gpu2"]
    assert _jobs(world) == [("envbuild-probe", 2), ("envbuild-image", 1), ("envbuild-provision", 2)]
    assert len(_builders(world)) == 1
    (file,) = (world.prefix / "images").glob("*.sif")
    record = json.loads((world.prefix / "images" / "tiny.json").read_text())
    digest = subprocess.check_output(["sha256sum", file], text=True).split()[0]
    assert {node["image"]["id"] for node in nodes.values()} == {record["id"]} == {digest}
    assert len({node["root"] for node in nodes.values()}) == 1
    assert _left(world) == sorted([file.name, f"{file.name}.sha256", "tiny.json"])
    alone = _programs(world) / "jobs-alone"
    alone.unlink()
    code = "import alpha, quick._fast as fast; print(alpha.VERSION, fast.answer())"
    launcher = [str(world.prefix / "bin" / "tiny"), "python", "-c", code]
    assert subprocess.check_output(launcher, env=world.env, text=True) == "1.0 42\n"
    alone.touch()

    again = world.job(timeout=LONG)
    assert (again.rc, world.submitted(), again.json["steps_run"]) == (0, [], 0), again.err
    assert {node["status"] for node in by_node(again).values()} == {"unchanged"}
    _other_options_need_no_build(world)
    _a_build_that_fails(world, record["key"])
    _a_damaged_file_is_built_again(world, file)


def _a_build_that_is_killed(world: JobWorld) -> None:
    """Nothing of it is in the way of the next one."""
    (_programs(world) / "hold").touch()
    running = world.start("provision", "--target", "./cluster.yaml", "--json")
    try:
        number = world.wait_for_job("envbuild-image", 300)
        end = time.monotonic() + 120
        while not _builders(world):
            assert time.monotonic() < end, "nobody builds"
            time.sleep(0.05)
        world.cluster.run("scancel", number)
        _, said = running.communicate(timeout=LONG)
    finally:
        running.kill()
        (_programs(world) / "hold").unlink()
    assert running.returncode == 9, said
    assert not (world.prefix / "images" / "tiny.json").exists() and _left(world) == []


def _other_options_need_no_build(world: JobWorld) -> None:
    more = section(world, build="job", mounts=["/usr/share:/usr/share:ro"])
    world.target(engine="container", placement="image", container=more, tmp=str(world.top / "scratch"))
    done = world.job(timeout=LONG)
    assert done.rc == 0, done.err
    assert _jobs(world) == [("envbuild-provision", 2)] and _builders(world) == []


def _a_build_that_fails(world: JobWorld, key: str) -> None:
    """The error has the last lines of %post."""
    before = _left(world)
    stack, lock = (world.work / name for name in ("tiny.yaml", "tiny.lock.toml"))
    kept = stack.read_text(), lock.read_text()
    _lock(world, imports=["no_such_module"])
    failed = world.job(timeout=LONG)
    assert (failed.rc, failed.code) == (4, "image-build-failed"), failed.err
    assert "no_such_module" in failed.err and "FATAL" in failed.err
    assert len(_builders(world)) == 1
    assert _left(world) == before and list((world.top / "scratch").iterdir()) == []
    assert json.loads((world.prefix / "images" / "tiny.json").read_text())["key"] == key
    stack.write_text(kept[0])
    lock.write_text(kept[1])


def _a_damaged_file_is_built_again(world: JobWorld, file: Path) -> None:
    with file.open("r+b") as stream:
        stream.write(b"damaged")
    verified = world.job(verb="verify", timeout=LONG)
    assert (verified.rc, _jobs(world)) == (1, [("envbuild-verify", 2)]), verified.err
    repaired = world.job("--repair", timeout=LONG)
    assert repaired.rc == 0, repaired.err
    assert _jobs(world) == [("envbuild-probe", 2), ("envbuild-image", 1), ("envbuild-provision", 2)]
    assert len(_builders(world)) == 1 and list((world.top / "scratch").iterdir()) == []
    assert world.job(verb="verify", timeout=LONG).rc == 0
