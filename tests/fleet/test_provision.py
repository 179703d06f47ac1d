"""Whole provisions of real SSH nodes, with the real command: whatever Python a node has, or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import MINOR
from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld, by_node, checks, listing, stamp
from tests.fleet.nodes import Node, StartNodes
from tests.node.test_git_source import PROJECT

pytestmark = [pytest.mark.slow, pytest.mark.nodes]


def _tasks_begun(world: FleetWorld) -> list[tuple[str, str]]:
    return [(event["node"], event["data"]["step"]) for event in world.events() if event["kind"] == "step-started"]


def _assert_built(node: Node, evidence: dict[str, Any]) -> None:
    assert (evidence["status"], evidence["exit"]) == ("ok", 0), evidence
    assert set(checks(evidence).values()) == {"passed"}, evidence["checks"]
    assert "smoke/sound" in checks(evidence)
    assert evidence["packages"] == {"alpha": "1.0", "beta": "2.0"}
    assert [(source["name"], source["install"]) for source in evidence["sources"]] == [("gamma", "path")]
    assert evidence["root"] == stamp(node)["root"]
    shell = f'. {PREFIX}/current/{STACK}/.envbuild/activate.sh && python -c "$1" && printf %s "$HF_GREETING"'
    code = "import alpha, beta, gamma; print(alpha.VERSION, beta.VERSION, gamma.VERSION)"
    assert node.run(["sh", "-c", shell, "sh", code]).stdout == "1.0 2.0 3\nhello $(id) 'you'"
    assert node.run([f"{PREFIX}/current/{STACK}/bin/beta-says"]).stdout == "1\n"


def _assert_nothing_to_do(world: FleetWorld, nodes: list[Node]) -> None:
    before = [listing(node) for node in nodes]
    done = world.fleet("provision")
    assert done.rc == 0, done.err
    assert {item["status"] for item in by_node(done).values()} == {"unchanged"}
    assert "nothing to do" in done.err
    assert done.json["steps_run"] == 0
    assert _tasks_begun(world) == []
    assert [listing(node) for node in nodes] == before


def test_a_node_whose_own_python_is_3_6_is_provisioned(fleet: StartNodes, world: FleetWorld) -> None:
    (node,) = fleet(1, kind="py36")
    modules = "import sys, json, ssl, ctypes, zlib, hashlib, bz2; print(sys.version_info[:2])"
    assert node.run(["python3", "-c", modules]).stdout == "(3, 6)\n"
    world.target([node])
    probed = world.fleet("doctor", "--facts-out", "facts.json")
    versions = [python["version"][:4] for python in probed.json["facts"][node.address]["pythons"]]
    assert versions == ["3.6."], "there is no other that the probe could run on"
    done = world.fleet("provision")
    assert done.rc == 0, done.err
    _assert_built(node, by_node(done)[node.address])
    assert [step for _, step in _tasks_begun(world)] == [
        "toolchain", "deliver", "install", "smoke", "activate",
    ]  # fmt: skip
    assert node.run(["sh", "-c", f"ls -A {PREFIX}/tmp /tmp"]).stdout.split() == [f"{PREFIX}/tmp:", "/tmp:"]
    assert node.run(["stat", "-c", "%a", PREFIX]).stdout == "755\n"
    _assert_nothing_to_do(world, [node])


def _refused(world: FleetWorld, node: Node) -> tuple[int, dict[str, Any]]:
    done = world.fleet("provision")
    error = by_node(done)[node.address]["error"]
    assert f"error[{error['code']}]" in done.err
    return done.rc, error


def test_a_node_without_any_python_gets_one_first_and_what_keeps_it_from_the_node_is_told_with_its_own_code(
    fleet: StartNodes, world: FleetWorld
) -> None:
    (node,) = fleet(1, kind="bare")
    world.target([node])
    before = listing(node)
    looked = world.fleet("provision", "--dry-run")
    assert looked.rc == 7
    assert looked.json["errors"][node.address]["code"] == "node-without-python"
    assert "installs Python into the prefix" in looked.json["errors"][node.address]["hint"]
    assert listing(node) == before, "looking changes nothing"

    node.run(["mkdir", PREFIX])
    node.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", PREFIX])
    code, error = _refused(world, node)
    assert (code, error["code"], error["exit"]) == (75, "toolchain-unpack", 75)
    assert "disk full" in error["what"]
    assert node.run(["ls", "-A", f"{PREFIX}/tools"]).stdout == "", "nothing half-done stays"
    node.run(["umount", PREFIX])
    node.run(["rmdir", PREFIX])

    node.run(["touch", PREFIX])
    code, error = _refused(world, node)
    assert (code, error["code"]) == (7, "not-writable")
    node.run(["rm", PREFIX])

    node.run(["mv", "/bin/gzip", "/bin/gzip-away"])
    code, error = _refused(world, node)
    assert (code, error["code"]) == (7, "gzip-missing")
    node.run(["mv", "/bin/gzip-away", "/bin/gzip"])

    world.target([node], tmp="/opt/my-tmp")
    done = world.fleet("provision")
    assert done.rc == 0, done.err
    _assert_built(node, by_node(done)[node.address])
    assert [step for _, step in _tasks_begun(world)] == [
        "toolchain", "toolchain", "deliver", "install", "smoke", "activate",
    ]  # fmt: skip
    assert node.run(["ls", "-A", "/opt/my-tmp"]).stdout == "", "temporary files went there and are gone"
    assert node.run(["stat", "-c", "%a", PREFIX]).stdout == "755\n"
    _assert_nothing_to_do(world, [node])


FILE = f"{PREFIX}/current/own/lib/python{MINOR}/site-packages/lib/__init__.py"


@pytest.fixture
def own(fleet: Callable[..., list[Node]], tmp_path: Path, standalone_python: Path) -> tuple[FleetWorld, Node]:
    """A stack on the Python that is there, with a wheel, and one built from source on the node."""
    (node,) = fleet(1, kind="full")
    there = node.run(["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).stdout.strip()
    if there != MINOR:
        pytest.skip(f"the node has Python {there}, these tests run on {MINOR}")
    world = FleetWorld(tmp_path, standalone_python)
    source = {**world.repository("lib", PROJECT), "install": "wheel"}
    world.lock(world.stack("own", sources=[source], imports=["alpha", "lib"]))
    world.target([node], stack="./own.yaml")
    return world, node


def test_the_node_builds_on_its_own_python_and_answers_every_verb(own: tuple[FleetWorld, Node]) -> None:
    world, node = own
    planned = world.fleet("plan").json["plan"]["nodes"][0]
    assert planned["python"].startswith("/usr/bin/python3")
    assert [step["kind"] for step in planned["steps"]] == ["toolchain", "deliver", "install", "smoke", "activate"]
    done = world.fleet("provision")
    assert done.rc == 0, done.err
    evidence = by_node(done)[node.address]
    assert evidence["environment"] == planned["environment"]
    assert set(evidence["packages"]) == {"alpha", "lib"}
    assert node.run([f"{PREFIX}/current/own/bin/python", "-B", "-c", "import lib; print(lib.VALUE)"]).stdout == "41\n"
    assert "python-" not in node.run(["ls", f"{PREFIX}/tools"]).stdout, "no Python was brought"

    smoke = world.fleet("smoke")
    assert smoke.rc == 0, smoke.err
    assert checks(by_node(smoke)[node.address]) == {"smoke/sound": "passed"}
    listed = world.good("status", "--all", "--target", "./nodes.yaml", "--json")
    assert evidence["environment"] in listed.out
    told = world.good("env", "activate", "own", "--target", "./nodes.yaml", "--json")
    assert told.json["path"] == evidence["environment"]

    node.run(["sed", "-i", "s/41/42/", FILE])
    deep = world.fleet("verify")
    assert deep.rc == 1, deep.err
    (drift,) = by_node(deep)[node.address]["drift"]
    assert drift["path"].endswith("lib/__init__.py")
    node.run(["rm", "-r", FILE.removesuffix("/__init__.py")])
    broken = world.fleet("smoke")
    assert broken.rc == 1
    assert "lib" in json.dumps(by_node(broken)[node.address]["checks"])


def test_a_prefix_that_another_run_holds_is_left_alone(own: tuple[FleetWorld, Node]) -> None:
    world, node = own
    owner = {"run": "other", "host": "elsewhere", "boot_id": "x", "pid": 1, "controller": {}, "token": "t"}
    node.run(["mkdir", "-p", PREFIX])
    node.run(["sh", "-c", f"cat > {PREFIX}/lease.json"], stdin=json.dumps(owner))
    done = world.fleet("provision", "--wait", "0s")
    assert done.rc == 75, done.err
    error = by_node(done)[node.address]["error"]
    assert error["code"] == "prefix-busy"
    assert "elsewhere" in error["why"]
    assert json.loads(node.run(["cat", f"{PREFIX}/lease.json"]).stdout) == owner
    assert node.run(["ls", "-A", f"{PREFIX}/envs"], check=False).stdout == ""
