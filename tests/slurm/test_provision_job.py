"""`envbuild provision` through jobs of a real Slurm, on a prefix that its nodes share."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
import uv

from tests.e2e.world import Done, interrupted, snapshot
from tests.node.test_git_source import PROJECT
from tests.slurm.cluster import NODES
from tests.slurm.job_world import JobWorld, through_login
from tests.support.files import write_file
from tests.support.patience import until
from tests.support.programs import completed

pytestmark = pytest.mark.slow


def test_one_command_builds_once_tests_on_every_node_and_again_needs_no_job(world: JobWorld) -> None:
    path = {**world.repository("gamma", {"gamma.py": "import alpha\n"}), "install": "path"}
    built = {**world.repository("lib", PROJECT), "install": "wheel"}
    world.target(scheduler={"nodes": NODES})
    world.tiny(sources=[path, built], imports=["alpha", "gamma", "lib"])
    done = world.job(rc=0)
    nodes = done.nodes
    assert sorted(nodes) == [f"gpu{index}" for index in range(1, NODES + 1)]
    assert {node["status"] for node in nodes.values()} == {"ok"}
    assert len({node["root"] for node in nodes.values()}) == 1
    assert world.submitted() == ["envbuild-probe", "envbuild-provision"]
    # One node has built, all have tested and verified.
    names = [[check["name"] for check in node["checks"]] for node in nodes.values()]
    assert sum("record" in each for each in names) == 1
    assert all({"stamp", "smoke/sound"} <= set(each) for each in names), names
    assert not (world.prefix / "jobs").exists()
    the_journal_tells_what_was_asked_of_the_scheduler(world)
    before = snapshot(world.prefix)
    world.nothing_to_do()
    assert snapshot(world.prefix) == before
    nodes_that_are_known_are_not_asked_again_for_another_environment(world)
    a_tampered_file_is_named_from_the_login_host(world)


def the_journal_tells_what_was_asked_of_the_scheduler(world: JobWorld) -> None:
    assert world.journal("job-state")[-1]["data"]["state"] == "done"
    assert "#SBATCH" in (world.last_run / "envbuild-provision.sbatch").read_text()
    assert list(world.last_run.glob("envbuild-provision-*.log"))


def a_tampered_file_is_named_from_the_login_host(world: JobWorld) -> None:
    world.job(verb="verify", rc=0)
    world.good("status", "--all", "--target", "./cluster.yaml", "--json")
    (module,) = (world.prefix / "envs").glob("tiny-*/lib/python*/site-packages/alpha/__init__.py")
    module.write_text(module.read_text() + "# changed\n")
    drifted = [item["path"] for node in world.job(verb="verify", rc=1).nodes.values() for item in node["drift"]]
    assert {path.partition("site-packages/")[2] for path in drifted} == {"alpha/__init__.py"}
    assert world.submitted() == []


def nodes_that_are_known_are_not_asked_again_for_another_environment(world: JobWorld) -> None:
    world.wheel("beta", "2.0")
    world.lock(world.stack("other", packages=["beta==2.0"]))
    done = world.job("--stack", "./other.yaml", rc=0)
    assert world.submitted() == ["envbuild-provision"]
    assert done.err.count("submitting") == 1
    assert "4 nodes of gpu for at most 0:10:00, 5.3 GPU-hours" in done.err
    printed = world.good("provision", "--target", "./cluster.yaml", "--print-script")
    assert "submitting" not in printed.err
    assert "nothing to do" not in printed.out, "what is in place is built by a script too"
    assert "uv venv" in printed.out and "#SBATCH" in printed.out


def test_a_node_that_has_to_be_powered_up_is_waited_for(world: JobWorld) -> None:
    world.cluster.power_down()
    world.cluster.boot_takes(3.0)
    scheduler = {"nodes": 1, "start_deadline": "50s"}
    world.target(hosts={"slurm": "cloud"}, scheduler=scheduler, expects={"gpus_per_node": 2})
    world.tiny()
    assert list(world.job(rc=0).nodes) == ["cloud1"]


def test_a_job_that_does_not_start_leaves_its_reason_and_an_interrupt_ends_it_when_asked(world: JobWorld) -> None:
    world.tiny()
    world.cluster.run("scontrol", "update", f"nodename=gpu[1-{NODES}]", "state=drain", "reason=test")
    for cancel in (True, False):
        process = world.start("provision", "--target", "./cluster.yaml", *(["--cancel-job"] if cancel else []))
        number = world.wait_for_job("envbuild-probe")
        world.wait_for_state(number, "PENDING")
        done = interrupted(process)
        assert ("is cancelled" if cancel else "goes on; `scancel") in done.err
        assert world.wait_for_state(number, "PENDING", "CANCELLED") == ("CANCELLED" if cancel else "PENDING")
        shutil.rmtree(world.runs)

    world.cluster.reset()
    world.cluster.run("scontrol", "update", f"nodename=gpu[2-{NODES}]", "state=drain", "reason=broken fan")
    world.target(scheduler={"start_deadline": "3s"})
    assert "2 nodes" in world.refused(75, "job-not-started", "provision", "--target", "./cluster.yaml").err
    assert world.wait_for_state(world.number("envbuild-probe"), "CANCELLED")
    world.target(scheduler={"nodes": 1})
    world.job(rc=0)


def test_refusals_a_plan_and_a_failed_build_leave_nothing_and_the_job_of_a_killed_run_ends(world: JobWorld) -> None:
    world.tiny()
    world.target(hosts={"slurm": "htc"})
    place = ("provision", "--target", "./cluster.yaml")
    world.refused(2, "partition-unknown", *place)
    world.refused(7, "scheduler-missing", *place, env={"PATH": "/nonexistent"})
    assert not world.prefix.exists()

    world.target()
    planned = world.job(verb="plan", rc=0)
    steps = {node["node"]: [step["kind"] for step in node["steps"]] for node in planned.json["plan"]["nodes"]}
    assert sorted(map(len, steps.values())) in ([1, 4], [1, 5])
    assert snapshot(world.prefix) == {}

    wheel = next(world.wheels.glob("alpha-*"))
    content = wheel.read_bytes()
    wheel.write_bytes(content + b"x")
    world.job(rc=5)
    wheel.write_bytes(content)
    shutil.rmtree(world.runs)
    process = world.start(*place)
    number = world.wait_for_job("envbuild-provision")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    world.wait_for_state(number, "COMPLETED")
    world.nothing_to_do()
    assert (world.home / ".cache" / "envbuild" / "artifacts").exists()


def test_a_test_that_fails_on_the_builder_is_told_for_all_nodes(world: JobWorld) -> None:
    world.tiny(imports=["nothing_of_this_name"])
    nodes = world.job(rc=1).nodes
    assert {node["status"] for node in nodes.values()} == {"failed"}
    assert sorted(node["error"]["code"] for node in nodes.values()) == ["not-built", "smoke-failed"]
    assert not (world.prefix / "current" / "tiny").exists()


def test_d38_d40_d100_a_repair_that_is_killed_leaves_the_environment_in_use(world: JobWorld) -> None:
    bad, gate = (world.cluster.shared / f"{name} of {world.top.name}" for name in ("bad", "gate"))
    code = f"import os, signal, time\nif os.path.exists({str(bad)!r}):\n    os.kill(os.getppid(), signal.SIGKILL)\n"
    code += (
        f"while os.path.exists({str(gate)!r}):\n    open({str(gate)!r} + '.seen', 'a').close()\n    time.sleep(0.05)\n"
    )
    world.wheel(files={"alpha/__init__.py": code.encode()})
    world.target(scheduler={"nodes": 1})
    world.tiny(imports=["alpha"], smoke=[{"name": "sound"}])
    root = world.job(rc=0).node["root"]
    before, stamp = world.current, (world.current / ".envbuild" / "stamp.json").read_bytes()
    bad.touch()
    done = world.job("--repair", rc=9)
    assert "was in `smoke`, which was killed (signal 9" in done.node["error"]["what"]
    assert (world.prefix / "current" / "tiny" / ".envbuild" / "stamp.json").read_bytes() == stamp
    bad.unlink()

    def repaired() -> Done:
        """The one in use is whole, so there is nothing to do; the next repair takes up what the killed one left."""
        again = world.job(rc=0).node
        assert (again["root"], again["status"]) == (root, "unchanged")
        done = world.job("--repair", rc=0)
        assert done.node["root"] == root
        return done

    done = repaired()
    assert world.current == before.with_name(f"{before.name}.2")
    assert any("other nodes may run from it" in text for text in done.json["warnings"])
    assert not (world.prefix / "lease.json").exists()

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
    repaired()
    assert world.python("import alpha; print('good')") == "good"


def test_the_printed_file_builds_the_same_without_envbuild(world: JobWorld) -> None:
    # Nodes that fetch for themselves do it as the job's own environment says.
    world.target(scheduler={"nodes": 1}, delivery="node")
    world.tiny()
    place = ("provision", "--target", "./cluster.yaml", "--print-script")
    world.refused(7, "nodes-unknown", *place)
    world.job("--dry-run", rc=0)
    text = world.run(*place).out
    assert "#SBATCH --partition=gpu" in text
    assert "envbuild-node" not in text
    script = write_file(world.cluster.shared / "by hand" / "envbuild.sbatch", text)
    path = os.pathsep.join((str(Path(uv.find_uv_bin()).parent), world.env["PATH"]))
    env = {**world.env, "UV_FIND_LINKS": str(world.wheels), "UV_NO_INDEX": "1", "PATH": path}
    number = completed(["sbatch", "--parsable", str(script)], cwd=script.parent, env=env, check=True).stdout.strip()
    state = world.wait_for_state(number, "COMPLETED", "FAILED")
    log = script.with_name(f"envbuild-{number}.log").read_text()
    assert state == "COMPLETED", log
    assert (world.prefix / "current" / "tiny" / "bin" / "python").exists(), log
    assert world.python("import alpha; print('good')", world.prefix / "current" / "tiny") == "good"


def test_jobs_are_submitted_and_everything_is_staged_through_a_login_host(world: JobWorld, tmp_path: Path) -> None:
    world.tiny()
    with through_login(world, tmp_path) as (server, known):
        known.write_text("")
        world.refused(3, "host-key-unknown", "provision", "--target", "./cluster.yaml", "--json")
        known.write_text(server.known)
        done = world.job(rc=0)
        assert len(done.nodes) == 2
        assert f"staging on {server.address}" in done.err
        world.nothing_to_do()
