"""`doctor`, `--facts-out` and `smoke` where only a job of a real Slurm reaches the nodes."""

from __future__ import annotations

import os

import pytest

from tests.e2e.world import snapshot
from tests.slurm.job_world import JobWorld, by_node
from tests.support.programs import executable

pytestmark = pytest.mark.slow


def test_probe_asks_the_nodes_of_one_short_job_and_leaves_nothing(world: JobWorld) -> None:
    world.target()
    toolkits = [world.cluster.shared / name for name in ("cuda-on-path", "cuda-by-variable")]
    for toolkit in toolkits:
        executable(toolkit / "bin" / "nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 11.3, V11.3.109'\n")
    path = os.pathsep.join((str(toolkits[0] / "bin"), world.env["PATH"]))
    world.env |= {"PATH": path, "CUDA_HOME": str(toolkits[1])}
    done = world.job("--facts-out", "facts.json", verb="doctor")
    assert done.rc == 0, done.err
    assert len(done.json["facts"]) == 2
    assert all(facts["scheduler"]["job"] for facts in done.json["facts"].values())
    # Of the shell's variables, PATH goes along: the toolkit of a user who has no modules.
    found = [[nvcc["path"] for nvcc in facts["nvcc"]] for facts in done.json["facts"].values()]
    assert all(str(toolkits[0] / "bin" / "nvcc") in paths for paths in found), found
    assert not any(str(toolkits[1]) in path for paths in found for path in paths), found
    assert [job["name"] for job in world.submitted()] == ["envbuild-probe"]
    assert snapshot(world.prefix) == {}
    late = world.job("--facts-out", "facts.json", "--node-timeout", "5s", verb="doctor")
    assert (late.rc, late.code) == (2, "usage")
    table = world.run("doctor", "--facts-out", "facts.json", "--target", "./cluster.yaml")
    assert table.rc == 0, table.err
    assert "gpu1" in table.out or "gpu[" in table.out, table.out


def test_smoke_tests_the_environment_in_use_on_every_node_of_one_job(world: JobWorld) -> None:
    world.tiny(imports=["alpha"])
    none = world.job(verb="smoke")
    assert (none.rc, none.code) == (1, "environment-unknown")
    assert world.submitted() == []
    assert world.job().rc == 0
    before = snapshot(world.prefix)
    done = world.job(verb="smoke")
    nodes = by_node(done)
    assert done.rc == 0, done.err
    assert len(nodes) == 2
    assert all([check["name"] for check in node["checks"]] == ["smoke/sound"] for node in nodes.values())
    assert [job["name"] for job in world.submitted()] == ["envbuild-smoke"]
    assert snapshot(world.prefix) == before
    (module,) = (world.prefix / "envs").glob("tiny-*/lib/python*/site-packages/alpha/__init__.py")
    module.write_text("raise RuntimeError('broken')\n")
    broken = world.job(verb="smoke")
    assert broken.rc == 1
    assert {node["status"] for node in by_node(broken).values()} == {"failed"}


def test_a_smoke_test_of_a_folder_of_code_reads_every_file_too(world: JobWorld) -> None:
    (world.work / "mine.py").write_text("X = 1\n")
    world.tiny(sources=[{"name": "mine", "path": "./", "install": "path"}], imports=["mine"])
    built = world.job()
    assert built.rc == 0, built.err
    root = {node["root"] for node in by_node(built).values()}
    (world.work / "mine.py").write_text("X = 2\n")
    done = world.job(verb="smoke")
    assert done.rc == 0, done.err
    assert {(node["root"], node["root_level"]) for node in by_node(done).values()} == {(*root, "measured")}
    assert all("is a working tree" in text and "changed" not in text for text in done.json["deviations"])


def test_doctor_says_how_gpus_are_asked_for_and_whether_a_job_would_be_accepted(world: JobWorld) -> None:
    done = world.job(verb="doctor")
    assert done.out.startswith("{"), done.err
    (host,) = done.json["hosts"]
    lines = {line["name"]: line for line in host["checks"]}
    assert lines["scheduler"]["level"] == "ok", lines
    assert lines["rights"]["found"].startswith("a job on gpu would be accepted"), lines["rights"]
    assert lines["gpus in jobs of gpu"]["consequence"].startswith("asked for with --gres=gpu:")
    assert not world.runs.exists() or not list(world.runs.iterdir())

    world.target(scheduler={"nodes": 500})
    done = world.job(verb="doctor")
    refused = {line["name"]: line for line in done.json["hosts"][0]["checks"]}["rights"]
    assert (done.rc, refused["level"]) == (1, "missing")
