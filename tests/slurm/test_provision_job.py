"""`envbuild provision` through jobs of a real Slurm, on a prefix that its nodes share."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import uv

from tests.e2e.world import snapshot
from tests.node.test_git_source import PROJECT
from tests.slurm.cluster import NODES
from tests.slurm.job_world import JobWorld, by_node, through_login
from tests.support.patience import PATIENCE, until
from tests.support.programs import completed

pytestmark = pytest.mark.slow


def test_one_command_builds_once_tests_on_every_node_and_again_needs_no_job(world: JobWorld) -> None:
    path = {**world.repository("gamma", {"gamma.py": "import alpha\n"}), "install": "path"}
    built = {**world.repository("lib", PROJECT), "install": "wheel"}
    world.target(scheduler={"nodes": NODES})
    world.tiny(sources=[path, built], imports=["alpha", "gamma", "lib"])
    done = world.job()
    nodes = by_node(done)
    assert done.rc == 0, done.err
    assert sorted(nodes) == [f"gpu{index}" for index in range(1, NODES + 1)]
    assert {node["status"] for node in nodes.values()} == {"ok"}
    assert len({node["root"] for node in nodes.values()}) == 1
    assert [job["name"] for job in world.submitted()] == ["envbuild-probe", "envbuild-provision"]
    # One node has built, all have tested and verified.
    names = [[check["name"] for check in node["checks"]] for node in nodes.values()]
    assert sum("record" in each for each in names) == 1
    assert all({"stamp", "smoke/sound"} <= set(each) for each in names), names
    assert not (world.prefix / "jobs").exists()
    the_journal_tells_what_was_asked_of_the_scheduler(world)
    before = snapshot(world.prefix)
    again = world.job()
    assert again.rc == 0, again.err
    assert {node["status"] for node in by_node(again).values()} == {"unchanged"}
    assert (world.submitted(), again.json["steps_run"]) == ([], 0)
    assert snapshot(world.prefix) == before
    nodes_that_are_known_are_not_asked_again_for_another_environment(world)
    a_tampered_file_is_named_from_the_login_host(world)


def the_journal_tells_what_was_asked_of_the_scheduler(world: JobWorld) -> None:
    last = max(path for path in world.runs.iterdir() if path.is_dir())
    events = [json.loads(line) for line in (last / "journal.jsonl").read_text().splitlines()]
    told = [event["data"]["state"] for event in events if event["kind"] == "job-state"]
    assert told[-1] == "done"
    assert "#SBATCH" in (last / "envbuild-provision.sbatch").read_text()
    assert list(last.glob("envbuild-provision-*.log"))


def a_tampered_file_is_named_from_the_login_host(world: JobWorld) -> None:
    whole = world.job(verb="verify")
    assert whole.rc == 0, whole.err
    listed = world.run("status", "--all", "--target", "./cluster.yaml", "--json")
    assert listed.rc == 0, listed.err
    (module,) = (world.prefix / "envs").glob("tiny-*/lib/python*/site-packages/alpha/__init__.py")
    module.write_text(module.read_text() + "# changed\n")
    drifted = world.job(verb="verify")
    assert drifted.rc == 1
    found = {
        item["path"].partition("site-packages/")[2] for node in by_node(drifted).values() for item in node["drift"]
    }
    assert found == {"alpha/__init__.py"}
    assert world.submitted() == []


def nodes_that_are_known_are_not_asked_again_for_another_environment(world: JobWorld) -> None:
    world.wheel("beta", "2.0")
    world.lock(world.stack("other", packages=["beta==2.0"]))
    done = world.job("--stack", "./other.yaml")
    assert done.rc == 0, done.err
    assert [job["name"] for job in world.submitted()] == ["envbuild-provision"]
    assert done.err.count("submitting") == 1
    assert "4 nodes of gpu for at most 0:10:00, 5.3 GPU-hours" in done.err
    printed = world.run("provision", "--target", "./cluster.yaml", "--print-script")
    assert printed.rc == 0, printed.err
    assert "submitting" not in printed.err
    assert "nothing to do" not in printed.out, "what is in place is built by a script too"
    assert "uv venv" in printed.out and "#SBATCH" in printed.out


def test_a_node_that_has_to_be_powered_up_is_waited_for(world: JobWorld) -> None:
    world.cluster.power_down()
    world.cluster.boot_takes(3.0)
    world.target(
        hosts={"slurm": "cloud"}, scheduler={"nodes": 1, "start_deadline": "50s"}, expects={"gpus_per_node": 2}
    )
    world.tiny()
    done = world.job()
    assert done.rc == 0, done.err
    assert list(by_node(done)) == ["cloud1"]


def test_a_job_that_does_not_start_in_time_leaves_nothing_but_its_reason(world: JobWorld) -> None:
    world.cluster.run("scontrol", "update", f"nodename=gpu[2-{NODES}]", "state=drain", "reason=broken fan")
    world.target(scheduler={"start_deadline": "3s"})
    world.tiny()
    done = world.job()
    assert (done.rc, done.code) == (75, "job-not-started")
    assert "2 nodes" in done.err
    assert world.wait_for_state(world.submitted()[0]["job"], "CANCELLED")
    world.target(scheduler={"nodes": 1})
    assert world.job().rc == 0


def test_a_build_that_fails_fails_every_node_by_name_and_the_next_run_repairs_it(world: JobWorld) -> None:
    world.tiny()
    assert world.job("--dry-run").rc == 0
    wheel = next(world.wheels.glob("alpha-*"))
    content = wheel.read_bytes()
    stored = world.home / ".cache" / "envbuild" / "artifacts"
    wheel.write_bytes(content + b"x")
    done = world.job()
    assert done.rc == 5, done.err
    wheel.write_bytes(content)
    assert world.job().rc == 0
    assert stored.exists()


def test_a_test_that_fails_on_the_builder_is_told_for_all_nodes(world: JobWorld) -> None:
    world.tiny(imports=["nothing_of_this_name"])
    done = world.job()
    nodes = by_node(done)
    assert done.rc == 1, done.err
    assert {node["status"] for node in nodes.values()} == {"failed"}
    assert sorted(node["error"]["code"] for node in nodes.values()) == ["not-built", "smoke-failed"]
    assert not (world.prefix / "current" / "tiny").exists()


def test_d38_d40_a_repair_whose_step_is_killed_is_told_and_the_environment_in_use_stays(world: JobWorld) -> None:
    bad = world.cluster.shared / f"bad of {world.top.name}"
    code = f"import os, signal\nif os.path.exists({str(bad)!r}):\n    os.kill(os.getppid(), signal.SIGKILL)\n"
    world.wheel(files={"alpha/__init__.py": code.encode()})
    world.target(scheduler={"nodes": 1})
    world.tiny(imports=["alpha"], smoke=[{"name": "sound"}])
    assert world.job().rc == 0
    stamp = (world.prefix / "current" / "tiny" / ".envbuild" / "stamp.json").read_bytes()
    bad.touch()
    done = world.job("--repair")
    assert done.rc == 9, done.err
    assert "was in `smoke`, which was killed (signal 9" in done.node["error"]["what"]
    assert (world.prefix / "current" / "tiny" / ".envbuild" / "stamp.json").read_bytes() == stamp
    bad.unlink()
    # The one in use is whole, so there is nothing to do; the next repair takes up what the killed one left.
    before = world.current
    assert world.job().node["status"] == "unchanged"
    repaired = world.job("--repair")
    assert repaired.rc == 0, repaired.err
    assert repaired.node["root"] == json.loads(stamp)["root"]
    assert world.current == before.with_name(f"{before.name}.2")
    assert any("other nodes may run from it" in text for text in repaired.json["warnings"])
    assert not (world.prefix / "lease.json").exists()


def test_d100_controller_and_job_that_die_together_in_a_repair_leave_the_environment_in_use(world: JobWorld) -> None:
    gate = world.cluster.shared / f"gate of {world.top.name}"
    code = f"import os, time\nwhile os.path.exists({str(gate)!r}):\n    open({str(gate)!r} + '.seen', 'a').close()\n"
    world.wheel(files={"alpha/__init__.py": f"{code}    time.sleep(0.05)\n".encode()})
    world.target(scheduler={"nodes": 1})
    world.tiny(imports=["alpha"], smoke=[{"name": "sound"}])
    root = world.job().node["root"]
    gate.touch()
    process = world.start("provision", "--target", "./cluster.yaml", "--repair")
    until(gate.with_name(f"{gate.name}.seen").exists)
    number = world.wait_for_job("envbuild-provision")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    world.cluster.run("scancel", "--signal=KILL", "--full", number)
    world.wait_for_state(number, "CANCELLED", "FAILED", "COMPLETED")
    gate.unlink()
    assert world.python("import alpha; print('good')") == "good"
    again = world.job()
    assert (again.rc, again.node["root"], again.node["status"]) == (0, root, "unchanged"), again.err
    repaired = world.job("--repair")
    assert (repaired.rc, repaired.node["root"]) == (0, root), repaired.err
    assert world.python("import alpha; print('good')") == "good"


def test_the_printed_file_builds_the_same_without_envbuild(world: JobWorld) -> None:
    # Nodes that fetch for themselves do it as the job's own environment says.
    world.target(scheduler={"nodes": 1}, delivery="node")
    world.tiny()
    before = world.run("provision", "--target", "./cluster.yaml", "--print-script")
    assert (before.rc, "error[nodes-unknown]" in before.err) == (7, True)
    assert world.job("--dry-run").rc == 0
    text = world.run("provision", "--target", "./cluster.yaml", "--print-script").out
    assert "#SBATCH --partition=gpu" in text
    assert "envbuild-node" not in text
    folder = world.cluster.shared / "by hand"
    folder.mkdir()
    script = folder / "envbuild.sbatch"
    script.write_text(text)
    path = os.pathsep.join((str(Path(uv.find_uv_bin()).parent), world.env["PATH"]))
    env = {**world.env, "UV_FIND_LINKS": str(world.wheels), "UV_NO_INDEX": "1", "PATH": path}
    number = completed(["sbatch", "--parsable", str(script)], cwd=folder, env=env, check=True).stdout.strip()
    state = world.wait_for_state(number, "COMPLETED", "FAILED")
    log = (folder / f"envbuild-{number}.log").read_text()
    assert state == "COMPLETED", log
    assert (world.prefix / "current" / "tiny" / "bin" / "python").exists(), log
    assert world.python("import alpha; print('good')", world.prefix / "current" / "tiny") == "good"


@pytest.mark.parametrize("cancel", [True, False])
def test_an_interrupt_ends_the_job_only_when_asked(world: JobWorld, cancel: bool) -> None:
    world.cluster.run("scontrol", "update", f"nodename=gpu[1-{NODES}]", "state=drain", "reason=test")
    world.tiny()
    process = world.start("provision", "--target", "./cluster.yaml", *(["--cancel-job"] if cancel else []))
    number = world.wait_for_job("envbuild-probe")
    world.wait_for_state(number, "PENDING")
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert ("is cancelled" if cancel else "goes on; `scancel") in err
    assert world.wait_for_state(number, "PENDING", "CANCELLED") == ("CANCELLED" if cancel else "PENDING")


def test_a_plan_changes_nothing_and_a_killed_controller_leaves_a_job_that_finishes_by_itself(world: JobWorld) -> None:
    world.tiny()
    planned = world.job(verb="plan")
    assert planned.rc == 0, planned.err
    steps = {node["node"]: [step["kind"] for step in node["steps"]] for node in planned.json["plan"]["nodes"]}
    assert sorted(map(len, steps.values())) in ([1, 4], [1, 5])
    assert snapshot(world.prefix) == {}
    process = world.start("provision", "--target", "./cluster.yaml")
    number = world.wait_for_job("envbuild-provision")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    world.wait_for_state(number, "COMPLETED")
    done = world.job()
    assert done.rc == 0, done.err
    assert {node["status"] for node in by_node(done).values()} == {"unchanged"}
    assert world.submitted() == []


def test_an_unknown_partition_and_a_host_without_slurm_are_told_before_anything(world: JobWorld) -> None:
    world.tiny()
    world.target(hosts={"slurm": "htc"})
    done = world.job()
    assert (done.rc, done.code) == (2, "partition-unknown")
    done = world.job(env={"PATH": "/nonexistent"})
    assert (done.rc, done.code) == (7, "scheduler-missing")
    assert not world.prefix.exists()


def test_jobs_are_submitted_and_everything_is_staged_through_a_login_host(world: JobWorld, tmp_path: Path) -> None:
    world.tiny()
    with through_login(world, tmp_path) as (server, known):
        known.write_text("")
        done = world.job()
        assert (done.rc, done.code) == (3, "host-key-unknown")
        known.write_text(server.known)
        done = world.job()
        assert done.rc == 0, done.err
        assert len(by_node(done)) == 2
        assert f"staging on {server.address}" in done.err
        assert by_node(world.job())["gpu1"]["status"] == "unchanged"
        assert world.submitted() == []
