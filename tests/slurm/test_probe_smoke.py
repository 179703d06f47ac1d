"""`doctor`, `--facts-out` and `smoke` where only a job of a real Slurm reaches the nodes."""

from __future__ import annotations

import os

import pytest

from tests.e2e.world import snapshot
from tests.slurm.job_world import JobWorld
from tests.support.programs import executable

pytestmark = pytest.mark.slow


def test_doctor_says_whether_a_job_would_be_accepted_or_asks_its_nodes(world: JobWorld) -> None:
    done = world.job(verb="doctor")
    assert done.out.startswith("{"), done.err
    (host,) = done.json["hosts"]
    lines = {line["name"]: line for line in host["checks"]}
    assert lines["scheduler"]["level"] == "ok", lines
    assert lines["rights"]["found"].startswith("a job on gpu would be accepted"), lines["rights"]
    assert lines["gpus in jobs of gpu"]["consequence"].startswith("asked for with --gres=gpu:")
    assert not world.runs.exists() or not list(world.runs.iterdir())
    world.target(scheduler={"nodes": 500})
    done = world.job(verb="doctor", rc=1)
    refused = {line["name"]: line for line in done.json["hosts"][0]["checks"]}["rights"]
    assert refused["level"] == "missing"

    world.target()
    toolkits = [world.cluster.shared / name for name in ("cuda-on-path", "cuda-by-variable")]
    for toolkit in toolkits:
        executable(toolkit / "bin" / "nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 11.3, V11.3.109'\n")
    path = os.pathsep.join((str(toolkits[0] / "bin"), world.env["PATH"]))
    world.env |= {"PATH": path, "CUDA_HOME": str(toolkits[1])}
    done = world.job("--facts-out", "facts.json", verb="doctor", rc=0)
    assert len(done.json["facts"]) == 2
    assert all(facts["scheduler"]["job"] for facts in done.json["facts"].values())
    # Of the shell's variables, PATH goes along: the toolkit of a user who has no modules.
    found = [[nvcc["path"] for nvcc in facts["nvcc"]] for facts in done.json["facts"].values()]
    assert all(str(toolkits[0] / "bin" / "nvcc") in paths for paths in found), found
    assert not any(str(toolkits[1]) in path for paths in found for path in paths), found
    assert world.submitted() == ["envbuild-probe"]
    assert snapshot(world.prefix) == {}
    ask = ("doctor", "--facts-out", "facts.json", "--target", "./cluster.yaml")
    world.refused(2, "usage", *ask, "--node-timeout", "5s", "--json")
    table = world.good(*ask).out
    assert "gpu1" in table or "gpu[" in table, table


def test_smoke_tests_the_environment_in_use_on_every_node_of_one_job(world: JobWorld) -> None:
    world.tiny(imports=["alpha"])
    world.refused(1, "environment-unknown", "smoke", "--target", "./cluster.yaml", "--json")
    assert world.submitted() == []
    world.job(rc=0)
    before = snapshot(world.prefix)
    nodes = world.job(verb="smoke", rc=0).nodes
    assert len(nodes) == 2
    assert all([check["name"] for check in node["checks"]] == ["smoke/sound"] for node in nodes.values())
    assert world.submitted() == ["envbuild-smoke"]
    assert snapshot(world.prefix) == before
    (module,) = (world.prefix / "envs").glob("tiny-*/lib/python*/site-packages/alpha/__init__.py")
    module.write_text("raise RuntimeError('broken')\n")
    assert {*world.job(verb="smoke", rc=1).statuses.values()} == {"failed"}


def test_a_smoke_test_of_a_folder_of_code_reads_every_file_too(world: JobWorld) -> None:
    (world.work / "mine.py").write_text("X = 1\n")
    world.tiny(sources=[{"name": "mine", "path": "./", "install": "path"}], imports=["mine"])
    root = {node["root"] for node in world.job(rc=0).nodes.values()}
    (world.work / "mine.py").write_text("X = 2\n")
    done = world.job(verb="smoke", rc=0)
    assert {(node["root"], node["root_level"]) for node in done.nodes.values()} == {(*root, "measured")}
    assert all("is a working tree" in text and "changed" not in text for text in done.json["deviations"])
