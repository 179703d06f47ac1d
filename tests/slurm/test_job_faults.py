"""What can go wrong with a job and its nodes while envbuild waits, each on a real Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.node.lease import STALE_AFTER
from tests.e2e.world import Done
from tests.slurm.cluster import NODES
from tests.slurm.job_world import JobWorld, by_node
from tests.support.wheels import PACK

pytestmark = pytest.mark.slow

# A build and a smoke test that wait, on the nodes whose gate is there.
_WAIT = (
    "import os, socket, time\ngate = {gate!r} + socket.gethostname()\nopen(gate + '.seen', 'a').close()\n"
    "while os.path.exists(gate): time.sleep(0.05)\n"
)
_BACKEND = (
    PACK
    + """
exec(open("wait.py").read())

def get_requires_for_build_wheel(settings=None):
    return []

def build_wheel(folder, settings=None, metadata=None):
    return write_wheel(Path(folder), "lib", "1.0", {"lib.py": "VALUE = 41\\n"}).name
"""
)


class Gates:
    """Programs on a node wait while its gate is there: `build` while a source is built, `test` in the smoke test."""

    def __init__(self, world: JobWorld) -> None:
        self.world = world
        self.folder = world.cluster.shared / f"gates of {world.top.name}"
        self.folder.mkdir()

    def stack(self) -> None:
        """A stack whose source and whose module wait for their gates."""
        world = self.world
        project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        files = {
            "pyproject.toml": project + '[project]\nname = "lib"\nversion = "1.0"\n',
            "backend.py": _BACKEND,
            "wait.py": _WAIT.format(gate=f"{self.folder}/build-"),
        }
        built = {**world.repository("lib", files), "install": "wheel"}
        tested = {**world.repository("slow", {"slow.py": _WAIT.format(gate=f"{self.folder}/test-")}), "install": "path"}
        world.tiny(sources=[built, tested], imports=["alpha", "lib", "slow"])

    def shut(self, what: str, node: str) -> Path:
        """What `node` reaches when it waits there."""
        (self.folder / f"{what}-{node}").touch()
        return self.folder / f"{what}-{node}.seen"

    def open(self) -> None:
        """Let everything go on."""
        for path in self.folder.iterdir():
            path.unlink()


def until(done: Callable[[], object], what: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def finished(process: subprocess.Popen[str], seconds: float = 250) -> Done:
    out, err = process.communicate(timeout=seconds)
    return Done(process.returncode, out, err)


@pytest.fixture
def gates(world: JobWorld) -> Gates:
    made = Gates(world)
    made.stack()
    # So that its nodes are known, and a run submits one job alone.
    assert world.job("--dry-run").rc == 0
    return made


def test_drained_nodes_are_not_asked_for_and_a_partition_of_them_is_out_of_service(world: JobWorld) -> None:
    world.tiny()
    world.target(scheduler={"nodes": None})
    world.cluster.run("scontrol", "update", "nodename=gpu[1,3]", "state=drain", "reason=broken fan")
    done = world.job()
    assert done.rc == 0, done.err
    assert sorted(by_node(done)) == ["gpu2", "gpu4"]
    world.cluster.run("scontrol", "update", f"nodename=gpu[1-{NODES}]", "state=drain", "reason=broken fan")
    world.target(scheduler={"nodes": None}, prefix=f"{world.prefix}-2")
    done = world.job()
    assert (done.rc, done.code) == (75, "partition-out-of-service")
    assert f"{NODES} drained" in done.err


def test_a_node_that_an_epilog_drains_after_the_job_is_noted_and_its_answer_counts(world: JobWorld) -> None:
    world.tiny()
    assert world.job("--dry-run").rc == 0
    world.cluster.fails_its_health_check("gpu2", "health check: NVLink")
    done = world.job()
    assert done.rc == 0, done.err
    assert by_node(done)["gpu2"]["status"] == "ok"
    (note,) = [text for text in done.json["warnings"] if "gpu2 is drained after job" in text]
    assert "health check: NVLink" in note


def test_a_job_cancelled_while_it_builds_leaves_nothing_in_use_and_the_same_command_does_it(
    world: JobWorld, gates: Gates
) -> None:
    seen = gates.shut("build", "gpu1")
    process = world.start("provision", "--target", "./cluster.yaml", "--json")
    until(seen.exists, "the build did not begin")
    world.cluster.run("scancel", world.wait_for_job("envbuild-provision"))
    done = finished(process)
    assert done.rc == 9, done.err
    assert "error[job-cancelled]" in done.err
    assert not (world.prefix / "current" / "tiny").exists()
    gates.open()
    again = world.job()
    assert again.rc == 0, again.err
    assert {node["status"] for node in by_node(again).values()} == {"ok"}


def test_slurmctld_may_be_restarted_while_its_job_is_waited_for(world: JobWorld, gates: Gates) -> None:
    # In the last step: for the next one, srun of 22.05 waits two minutes after a restart.
    seen = gates.shut("test", "gpu2")
    process = world.start("provision", "--target", "./cluster.yaml", "--json")
    until(seen.exists, "the smoke test of gpu2 did not begin")
    world.cluster.stop("slurmctld")
    world.cluster.start_controller()
    gates.open()
    done = finished(process)
    assert done.rc == 0, done.err
    assert len(by_node(done)) == 2


def test_a_node_that_dies_in_its_test_is_named_with_its_phase_and_the_good_one_stays_good(
    world: JobWorld, gates: Gates
) -> None:
    seen = gates.shut("test", "gpu2")
    process = world.start("provision", "--target", "./cluster.yaml", "--json")
    until(seen.exists, "the smoke test of gpu2 did not begin")
    number = world.wait_for_job("envbuild-provision")
    answers = world.prefix / "jobs" / max(path.name for path in world.runs.iterdir() if path.is_dir())
    until(lambda: list(answers.glob("answers-0/gpu1/verify.json")), "gpu1 did not finish")
    world.cluster.run("scontrol", "update", f"jobid={number}", "requeue=0")
    world.cluster.pull_the_plug("gpu2")
    gates.open()
    done = finished(process)
    nodes = by_node(done)
    assert {name: node["status"] for name, node in nodes.items()} == {"gpu1": "ok", "gpu2": "failed"}
    assert nodes["gpu2"]["error"]["code"] == "job-node-fail"
    assert "smoke" in nodes["gpu2"]["error"]["what"]
    assert done.rc == 9
    assert any("pulled the plug" in text for text in done.json["warnings"])
    # The other node has what it tested, and the same command with nodes that live has little to do.
    again = world.job()
    assert again.rc == 0, again.err
    assert "gpu2" not in by_node(again)


def test_a_job_that_slurm_requeues_after_a_node_has_died_ends_on_other_nodes(world: JobWorld, gates: Gates) -> None:
    seen = gates.shut("build", "gpu1")
    process = world.start("provision", "--target", "./cluster.yaml", "--json")
    until(seen.exists, "the build did not begin")
    number = world.wait_for_job("envbuild-provision")
    world.cluster.pull_the_plug("gpu1")
    # Another node would wait for two minutes without a heartbeat, for the prefix and then for the wheel.
    for lease in (world.prefix / "lease.json", *world.prefix.rglob("leases/*.json")):
        os.utime(lease, (0, lease.stat().st_mtime - STALE_AFTER))
    gates.open()
    world.wait_for_state(number, "PENDING")
    # Slurm would wait two minutes.
    time.sleep(1)
    world.cluster.run("scontrol", "update", f"jobid={number}", "starttime=now")
    done = finished(process)
    assert done.rc == 0, done.err
    assert sorted(by_node(done)) == ["gpu2", "gpu3"]


def test_a_preempted_job_is_tried_again_by_the_same_command(world: JobWorld, gates: Gates) -> None:
    world.target(hosts={"slurm": "low"}, scheduler={"nodes": NODES})
    assert world.job("--dry-run").rc == 0
    seen = gates.shut("build", "gpu1")
    process = world.start("provision", "--target", "./cluster.yaml", "--json")
    until(seen.exists, "the build did not begin")
    world.cluster.run(
        "sbatch", "--partition=gpu", f"--nodes={NODES}", "--exclusive", "--output=/dev/null", "--wrap=true"
    )
    done = finished(process)
    assert done.rc == 75, done.err
    assert "job-preempted" in done.out + done.err
    gates.open()
    assert world.job().rc == 0


def test_two_controllers_at_once_on_one_prefix_make_one_environment(world: JobWorld, gates: Gates) -> None:
    seen = gates.shut("build", "gpu1")
    first = world.start("provision", "--target", "./cluster.yaml", "--json")
    until(seen.exists, "the build did not begin")
    second = world.start("provision", "--target", "./cluster.yaml", "--json")
    until(lambda: len(list(world.runs.glob("*/journal.jsonl"))) == 2, "the second run did not begin")
    world.wait_for_state(world.wait_for_job("envbuild-provision"), "RUNNING")
    time.sleep(2)
    gates.open()
    done, other = finished(first), finished(second)
    assert done.rc == other.rc == 0, done.err + other.err
    assert sorted([*by_node(done), *by_node(other)]) == ["gpu1", "gpu2", "gpu3", "gpu4"]
    assert len({node["root"] for each in (done, other) for node in by_node(each).values()}) == 1
    assert len(list((world.prefix / "envs").iterdir())) == 1


def test_the_same_command_after_a_killed_controller_is_told_of_the_job_that_still_builds_or_waits_for_it(
    world: JobWorld, gates: Gates
) -> None:
    seen = gates.shut("build", "gpu1")
    process = world.start("provision", "--target", "./cluster.yaml")
    until(seen.exists, "the build did not begin")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    told = world.job("--wait", "1s")
    assert (told.rc, "prefix-busy" in told.out + told.err) == (75, True), told.err
    threading.Timer(8.0, gates.open).start()
    done = world.job()
    assert done.rc == 0, done.err
    assert len(list((world.prefix / "envs").iterdir())) == 1
