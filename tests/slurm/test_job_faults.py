"""What can go wrong with a job and its nodes while envbuild waits, each on a real Slurm."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.node.lease import STALE_AFTER
from tests.e2e.world import ended
from tests.slurm.cluster import NODES, Cluster
from tests.slurm.job_world import JobWorld
from tests.support.patience import until
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


class GatedWorld(JobWorld):
    """Programs on a node wait while its gate is there: `build` while a source is built, `test` in the smoke test."""

    def __init__(self, top: Path, cluster: Cluster) -> None:
        """Lock a stack whose source and whose module wait for their gates."""
        super().__init__(top, cluster)
        self.gates = cluster.shared / f"gates of {top.name}"
        self.gates.mkdir()
        project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        files = {
            "pyproject.toml": project + '[project]\nname = "lib"\nversion = "1.0"\n',
            "backend.py": _BACKEND,
            "wait.py": _WAIT.format(gate=f"{self.gates}/build-"),
        }
        tested = {"slow.py": _WAIT.format(gate=f"{self.gates}/test-")}
        sources = [{**self.repository("lib", files), "install": "wheel"}]
        sources.append({**self.repository("slow", tested), "install": "path"})
        self.tiny(sources=sources, imports=["alpha", "lib", "slow"])

    def provision_held(self, what: str, node: str) -> subprocess.Popen[str]:
        """A provision in the background, for which `node` waits at its gate."""
        gate = self.gates / f"{what}-{node}"
        gate.touch()
        process = self.start("provision", "--target", "./cluster.yaml", "--json")
        until(gate.with_name(f"{gate.name}.seen").exists)
        return process

    def open(self) -> None:
        """Let everything go on."""
        for path in self.gates.iterdir():
            path.unlink()


@pytest.fixture(scope="module")
def one_world(_one_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> GatedWorld:
    """Its nodes are known, so that a run submits one job alone."""
    world = GatedWorld(tmp_path_factory.mktemp("faults"), _one_cluster)
    world.job("--dry-run", rc=0)
    return world


@pytest.fixture
def gated(cluster: Cluster, one_world: GatedWorld) -> Iterator[GatedWorld]:
    """The same for each test, with nothing built."""
    one_world.target()
    yield one_world
    one_world.open()
    cluster.reset()
    for folder in (one_world.prefix, one_world.runs):
        shutil.rmtree(folder, ignore_errors=True)


def test_drained_nodes_are_not_asked_for_and_one_that_is_drained_later_is_noted(world: JobWorld) -> None:
    world.tiny()
    world.target(scheduler={"nodes": None})
    world.cluster.run("scontrol", "update", "nodename=gpu[1,3]", "state=drain", "reason=broken fan")
    world.job("--dry-run", rc=0)
    world.cluster.fails_its_health_check("gpu2", "health check: NVLink")
    done = world.job(rc=0)
    assert sorted(done.nodes) == ["gpu2", "gpu4"]
    assert done.statuses["gpu2"] == "ok"
    (note,) = [text for text in done.json["warnings"] if "gpu2 is drained after job" in text]
    assert "health check: NVLink" in note
    world.cluster.run("scontrol", "update", f"nodename=gpu[1-{NODES}]", "state=drain", "reason=broken fan")
    world.target(scheduler={"nodes": None}, prefix=f"{world.prefix}-2")
    done = world.refused(75, "partition-out-of-service", "provision", "--target", "./cluster.yaml")
    assert f"{NODES} drained" in done.err


def test_a_job_cancelled_while_it_builds_leaves_nothing_in_use_and_a_rerun_does_it(gated: GatedWorld) -> None:
    process = gated.provision_held("build", "gpu1")
    gated.cluster.run("scancel", gated.wait_for_job("envbuild-provision"))
    done = ended(process)
    assert done.rc == 9, done.err
    assert "error[job-cancelled]" in done.err
    assert not (gated.prefix / "current" / "tiny").exists()
    gated.open()
    assert {*gated.job(rc=0).statuses.values()} == {"ok"}


def test_slurmctld_may_be_restarted_while_its_job_is_waited_for(gated: GatedWorld) -> None:
    # In the last step: for the next one, srun of 22.05 waits two minutes after a restart.
    process = gated.provision_held("test", "gpu2")
    gated.cluster.stop("slurmctld")
    gated.cluster.start_controller()
    gated.open()
    done = ended(process)
    assert done.rc == 0, done.err
    assert len(done.nodes) == 2


def test_a_node_that_dies_in_its_test_is_named_with_its_phase_and_the_other_stays(gated: GatedWorld) -> None:
    process = gated.provision_held("test", "gpu2")
    number = gated.wait_for_job("envbuild-provision")
    answers = gated.prefix / "jobs" / gated.last_run.name
    until(lambda: list(answers.glob("answers-0/gpu1/verify.json")))
    gated.cluster.run("scontrol", "update", f"jobid={number}", "requeue=0")
    gated.cluster.pull_the_plug("gpu2")
    gated.open()
    done = ended(process)
    assert done.statuses == {"gpu1": "ok", "gpu2": "failed"}
    error = done.nodes["gpu2"]["error"]
    assert error["code"] == "job-node-fail"
    assert "smoke" in error["what"]
    assert done.rc == 9
    assert any("pulled the plug" in text for text in done.json["warnings"])
    # The other node has what it tested, and the same command with nodes that live has little to do.
    assert "gpu2" not in gated.job(rc=0).nodes


def test_a_job_that_slurm_requeues_after_a_node_has_died_ends_on_other_nodes(gated: GatedWorld) -> None:
    process = gated.provision_held("build", "gpu1")
    number = gated.wait_for_job("envbuild-provision")
    gated.cluster.pull_the_plug("gpu1")
    # Another node would wait for two minutes without a heartbeat, for the prefix and then for the wheel.
    for lease in (gated.prefix / "lease.json", *gated.prefix.rglob("leases/*.json")):
        os.utime(lease, (0, lease.stat().st_mtime - STALE_AFTER))
    gated.open()
    gated.wait_for_state(number, "PENDING")
    # Slurm would wait two minutes.
    time.sleep(1)
    gated.cluster.run("scontrol", "update", f"jobid={number}", "starttime=now")
    done = ended(process)
    assert done.rc == 0, done.err
    assert sorted(done.nodes) == ["gpu2", "gpu3"]


def test_a_preempted_job_is_tried_again_by_the_same_command(gated: GatedWorld) -> None:
    gated.target(hosts={"slurm": "low"}, scheduler={"nodes": NODES})
    gated.job("--dry-run", rc=0)
    process = gated.provision_held("build", "gpu1")
    words = ("--partition=gpu", f"--nodes={NODES}", "--exclusive", "--output=/dev/null", "--wrap=true")
    gated.cluster.run("sbatch", *words)
    done = ended(process)
    assert done.rc == 75, done.err
    assert "job-preempted" in done.out + done.err
    gated.open()
    gated.job(rc=0)


def test_two_controllers_at_once_on_one_prefix_make_one_environment(gated: GatedWorld) -> None:
    first = gated.provision_held("build", "gpu1")
    second = gated.start("provision", "--target", "./cluster.yaml", "--json")
    until(lambda: len(list(gated.runs.glob("*/journal.jsonl"))) == 2)
    gated.wait_for_state(gated.wait_for_job("envbuild-provision"), "RUNNING")
    time.sleep(2)
    gated.open()
    done, other = ended(first), ended(second)
    assert done.rc == other.rc == 0, done.err + other.err
    assert sorted([*done.nodes, *other.nodes]) == ["gpu1", "gpu2", "gpu3", "gpu4"]
    assert len({node["root"] for each in (done, other) for node in each.nodes.values()}) == 1
    assert len(list((gated.prefix / "envs").iterdir())) == 1


def test_after_a_killed_controller_the_job_that_still_builds_is_told_or_waited_for(gated: GatedWorld) -> None:
    process = gated.provision_held("build", "gpu1")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    told = gated.job("--wait", "1s")
    assert (told.rc, "prefix-busy" in told.out + told.err) == (75, True), told.err
    again = gated.start("provision", "--target", "./cluster.yaml", "--json")
    until(lambda: len(list(gated.runs.glob("*/journal.jsonl"))) == 3)
    gated.wait_for_state(gated.wait_for_job("envbuild-provision"), "RUNNING")
    gated.open()
    done = ended(again)
    assert done.rc == 0, done.err
    assert len(list((gated.prefix / "envs").iterdir())) == 1
