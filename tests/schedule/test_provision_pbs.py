"""`provision`, `launch` and `bench` through jobs of a small fake PBS that really runs them. No real PBS."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.world import Done, World, lines_until
from tests.node.test_git_source import PROJECT
from tests.schedule.fake_pbs import FakePbs, has_hosts
from tests.support.often import OFTEN
from tests.support.programs import executable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_hosts(), reason="nodes with names of their own need UTS namespaces (root)"),
]


class PbsWorld(World):
    """`work/cluster.yaml` is the target; its nodes are this machine under other names, so any folder is shared."""

    def __init__(self, top: Path) -> None:
        """A server that runs jobs beside qsub, as a real one does."""
        super().__init__(top)
        self.fake = FakePbs(top, sys.executable)
        self.fake.say("background")
        self.env["PATH"] = f"{self.fake.bin}{os.pathsep}{os.environ['PATH']}"
        del self.env["ENVBUILD_PREFIX"]
        self.target()

    def target(self, **scheduler: Any) -> None:
        """Write the target."""
        asked = {
            "nodes": 2, "exclusive": True, "account": "proj-1", "queue": None, "time_limit": "10m",
            "queues": [{"name": "debug", "max_nodes": 2}, {"name": "prod", "min_nodes": 3}],
        }  # fmt: skip
        given = {
            "name": "cluster", "extends": "pbs", "prefix": str(self.prefix), "delivery": "controller",
            "environment": {"https_proxy": "http://proxy.example.org:3128"}, "stack": "./tiny.yaml",
            "scheduler": asked | scheduler,
        }  # fmt: skip
        (self.work / "cluster.yaml").write_text(yaml.safe_dump(given))

    def run(self, *args: str, **more: Any) -> Done:
        """As for any world, but for the pauses in waiting for a job."""
        return super().run(*args, **{"before": OFTEN, **more})

    def job(self, *args: str, verb: str = "provision", json: bool = True) -> Done:
        """`envbuild VERB --target ./cluster.yaml ARGS`."""
        return self.run(verb, "--target", "./cluster.yaml", *(["--json"] if json else []), *args)

    def submitted(self) -> list[str]:
        """Names of the jobs of the newest run."""
        last = max(path for path in self.runs.iterdir() if path.is_dir())
        events = [json.loads(line) for line in (last / "journal.jsonl").read_text().splitlines()]
        return [event["data"]["name"] for event in events if event["kind"] == "job-submitted"]


@pytest.fixture
def world(tmp_path: Path) -> PbsWorld:
    return PbsWorld(tmp_path)


def test_one_command_builds_once_tests_on_every_node_and_again_needs_no_job(world: PbsWorld) -> None:
    world.fake.say("offline-x3002")
    world.tiny(sources=[{**world.repository("lib", PROJECT), "install": "wheel"}], imports=["alpha", "lib"])
    world.target(nodes=3)
    file = world.work / "cluster.yaml"
    file.write_text(file.read_text().replace("http://proxy", "http://me:s3cret-word@proxy"))
    planned = world.job(verb="plan")
    done = world.job("--repair")
    assert done.rc == 0, done.err
    nodes = {node["node"]: node for node in done.json["nodes"]}
    assert sorted(nodes) == ["x3001", "x3002", "x3003"]
    assert ({node["status"] for node in nodes.values()}, len({node["root"] for node in nodes.values()})) == ({"ok"}, 1)
    # One node has built, all have tested and verified.
    names = [[check["name"] for check in node["checks"]] for node in nodes.values()]
    assert sum("record" in each for each in names) == 1
    assert all({"stamp", "smoke/sound"} <= set(each) for each in names), names
    assert world.submitted() == ["envbuild-probe", "envbuild-provision"]
    last = max(path for path in world.runs.iterdir() if path.is_dir())
    # What the plan shows is what was submitted.
    for name, shown in planned.json["jobs"].items():
        assert (last / f"{name}.qsub").read_text().replace(last.name, "RUN") == shown
    script = (last / "envbuild-provision.qsub").read_text()
    for line in ("#PBS -q prod", "#PBS -A proj-1", "export https_proxy=http://***@proxy.example.org:3128"):
        assert line in script
    assert "3 nodes of prod for at most 0:10:00" in done.err
    assert not (world.prefix / "jobs").exists()
    drained = [text for text in done.json["warnings"] if "x3002 is drained after job" in text]
    assert drained, "it was taken out after the job, and its answer counts"
    world.fake.stop("offline-x3002")
    again = world.job()
    assert again.rc == 0, again.err
    assert ({node["status"] for node in again.json["nodes"]}, world.submitted()) == ({"unchanged"}, [])
    nodes_are_asked_and_tested_through_jobs(world)


def nodes_are_asked_and_tested_through_jobs(world: PbsWorld) -> None:
    world.target()
    probed = world.job("--facts-out", "facts.json", verb="doctor")
    assert probed.rc == 0, probed.err
    assert sorted(probed.json["facts"]) == ["x3001", "x3002"]
    shown = world.job("--dry-run", verb="smoke").json
    tested = world.job(verb="smoke")
    kept = max(path for path in world.runs.iterdir() if path.is_dir())
    submitted = (kept / "envbuild-smoke.qsub").read_text().replace(kept.name, "RUN")
    asked_for = re.compile("^(#PBS -l select|#PBS -q|# ).*\n", re.MULTILINE)  # which only the scheduler says
    assert asked_for.sub("", submitted) == asked_for.sub("", shown["jobs"]["envbuild-smoke"])
    assert tested.rc == 0, tested.err
    assert [node["node"] for node in tested.json["nodes"]] == ["x3001", "x3002"]
    assert world.submitted() == ["envbuild-smoke"]


def test_a_job_that_outlives_its_time_says_so_and_the_same_command_with_more_time_ends_well_and_tells_what_it_does(
    world: PbsWorld,
) -> None:
    gate = world.top / "gate"
    gate.touch()
    code = f"import os, time\nwhile os.path.exists({str(gate)!r}): time.sleep(0.05)\n"
    world.tiny(sources=[{**world.repository("slow", {"slow.py": code}), "install": "path"}], imports=["slow"])
    world.target(time_limit="8s")
    done = world.job()
    assert (done.rc, "job-timeout" in done.out + done.err) == (9, True), done.err
    assert not (world.prefix / "current" / "tiny").exists()
    world.target()
    process = world.start("provision", "--target", "./cluster.yaml")
    lines_until(process, lambda line: line.startswith("x3001: smoke test – check: sound ("))
    gate.unlink()
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err


def stand_in(world: PbsWorld, last: str) -> Path:
    """An environment of opt-175b whose program says its words and a last line, and ends with 0 as the real one does."""
    built = world.top / "env"
    for folder in ("bin", ".envbuild"):
        (built / folder).mkdir(parents=True, exist_ok=True)
    (built / ".envbuild" / "activate.sh").write_text("")
    executable(built / "bin" / "opt-baselines", f'#!/bin/sh\necho "$@"\necho "{last}"\n')
    return built


@pytest.mark.parametrize(("last", "code"), [("done training in 3 s", 0), ("CUDA out of memory", 1)])
def test_a_launched_job_ends_as_its_log_proves(world: PbsWorld, last: str, code: int) -> None:
    given = ("--set", "model_size=8m", "--time-limit", "5m", "--environment", str(stand_in(world, last)))
    command = ("launch", "opt-175b", "--target", "./cluster.yaml", "--submit", "--nodes", "1", *given)
    printed = world.run(*command, "--print-script")
    assert printed.rc == 0, printed.err
    assert "#PBS -l select=1:ncpus=64:ngpus=4:mem=503gb\n" in printed.out and "opt-baselines" in printed.out
    done = world.run(*command)
    assert done.rc == code, done.err
    assert last in done.err
    assert world.submitted() == ["launch-opt-175b"]


# It goes on from a checkpoint in its folder, whose iterations it does not tell again.
PRINTS = """
import glob, os, sys, time, types
folder = os.path.dirname(sys.argv[-1])
until = time.monotonic() + 60
while not any(map(os.path.getsize, glob.glob(folder + "/.gpus/nvidia-smi.*"))) and time.monotonic() < until:
    time.sleep(0.02)
one, peak = (lambda: 1), (lambda device: 3 << 30)
cuda = types.SimpleNamespace(is_initialized=one, device_count=one, max_memory_allocated=peak, max_memory_reserved=peak)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
checkpoint = os.path.join(folder, "checkpoint")
for step in range(6 if os.path.exists(checkpoint) else 1, 6):
    print(f" iteration {step}/ 5 | elapsed time per iteration (ms): {100 + step} |")
open(checkpoint, "w").close()
"""


SMI = """#!/bin/sh
case "$*" in
*-lms*) echo 5120, Disabled, 47, 1980, 310.02; exec sleep 600 ;;
*--query-gpu=index*) echo 0, GPU-a, 1810, 100, Disabled, NVIDIA A100-SXM4-80GB ;;
*--query-compute-apps=*) echo GPU-a, 7, 9, vi ;;
esac
"""


REFERENCE = {
    "models": [{"name": "gpt-small", "layers": 8, "hidden": 64, "heads": 4, "sequence": 64}],
    "bench": {"log": "megatron", "metric": "elapsed time per iteration (ms)", "unit": "ms", "warmup": 1},
    "launch": {
        "recipe": "alpa", "source": "app", "arguments": ["train.py", "{case}", "{results}"],
        "defaults": {"model": "gpt-small"},
    },
    "manual": [{"gpus": 1, "model": "gpt-small", "cases": [[8, 1, 1, 1, 1]]}],
}  # fmt: skip


def test_a_run_is_measured_through_a_job(world: PbsWorld) -> None:
    app = {**world.repository("app", {"train.py": PRINTS}), "install": "path"}
    path = world.tiny(sources=[app], imports=["alpha"])
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"reference": REFERENCE}))
    assert world.job().rc == 0
    executable(world.fake.bin / "nvidia-smi", SMI)
    given = ("--nodes", "1", "--gpus-per-node", "1", "--set", "row=1", "--trials", "2")
    done = world.job("./tiny.yaml", *given, verb="bench")
    assert done.rc == 0, (done.out[-2000:], done.err)
    check = done.json["nodes"][0]["checks"][-1]
    assert (check["metrics"][0]["n"], check["metrics"][0]["median"]) == (8, 103.5), "the first of each is left out"
    assert (check["comparison"]["verdict"], world.submitted()) == ("no-claim", ["bench-tiny"] * 2)
    folders = [str(world.prefix / "launches" / f"tiny-{done.json['run']}-{number}") for number in (1, 2)]
    assert sorted(map(str, (world.prefix / "launches").iterdir())) == folders
    assert check["comparison"]["gpu"] == "NVIDIA A100-SXM4-80GB", "no probe of its node was needed"
    (command,) = check["details"]["launch"]["commands"]
    assert command["argv"][-1].startswith(f"{folders[1]}/"), "what is told is what was run"
    assert "PYTHONPATH" not in command["environment"], "but for what looks on"
    assert not check["details"]["launch"]["files"]
    assert check["says"].endswith(
        "measured 3.0 GiB in tensors, 3.0 GiB reserved, 5.0 GiB used; GPUs 47 % busy at 1,980 MHz and 310 W"
    )
    assert not list(Path(folders[1]).glob(".gpus"))
    said = "GPU 0 is in use by other processes: pid 7 (vi, 9 MiB); figures may be lower than what it can do"
    late, in_use = done.json["warnings"]
    assert late.startswith("a run may take 1:00:00 (`--run-timeout`), and its job 0:10:00 (`time_limit` of the target)")
    assert in_use == f"x3001: {said}"
