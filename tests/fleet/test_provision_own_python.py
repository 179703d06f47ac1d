"""A real SSH node with a fitting Python of its own: that one is used, and every verb works from here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.world import MINOR
from tests.fleet.fleet_world import PREFIX, FleetWorld, by_node, checks
from tests.fleet.nodes import Node
from tests.node.test_git_source import PROJECT

pytestmark = [pytest.mark.slow, pytest.mark.nodes]
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
