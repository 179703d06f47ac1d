"""Whole provisions of real SSH nodes, with the real command: whatever Python a node has, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld, by_node, checks, listing, stamp
from tests.fleet.nodes import Node, StartNodes

pytestmark = [pytest.mark.slow, pytest.mark.nodes]


@pytest.fixture
def nodes_world(tmp_path: Path, standalone_python: Path) -> FleetWorld:
    return FleetWorld(tmp_path, standalone_python)


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


def test_a_node_whose_own_python_is_3_6_is_provisioned(fleet: StartNodes, nodes_world: FleetWorld) -> None:
    (node,) = fleet(1, kind="py36")
    nodes_world.target([node])
    probed = nodes_world.fleet("doctor", "--facts-out", "facts.json")
    versions = [python["version"][:4] for python in probed.json["facts"][node.address]["pythons"]]
    assert versions == ["3.6."], "there is no other that the probe could run on"
    done = nodes_world.fleet("provision")
    assert done.rc == 0, done.err
    _assert_built(node, by_node(done)[node.address])
    assert [step for _, step in _tasks_begun(nodes_world)] == [
        "toolchain", "deliver", "install", "smoke", "activate",
    ]  # fmt: skip
    assert node.run(["sh", "-c", f"ls -A {PREFIX}/tmp /tmp"]).stdout.split() == [f"{PREFIX}/tmp:", "/tmp:"]
    assert node.run(["stat", "-c", "%a", PREFIX]).stdout == "755\n"
    _assert_nothing_to_do(nodes_world, [node])


def test_a_node_without_any_python_gets_one_first(fleet: StartNodes, nodes_world: FleetWorld) -> None:
    (node,) = fleet(1, kind="bare")
    nodes_world.target([node])
    before = listing(node)
    looked = nodes_world.fleet("provision", "--dry-run")
    assert looked.rc == 7
    assert looked.json["errors"][node.address]["code"] == "node-without-python"
    assert "installs Python into the prefix" in looked.json["errors"][node.address]["hint"]
    assert listing(node) == before, "looking changes nothing"
    done = nodes_world.fleet("provision")
    assert done.rc == 0, done.err
    _assert_built(node, by_node(done)[node.address])
    assert [step for _, step in _tasks_begun(nodes_world)] == [
        "toolchain", "toolchain", "deliver", "install", "smoke", "activate",
    ]  # fmt: skip
    _assert_nothing_to_do(nodes_world, [node])


def _refused(world: FleetWorld, node: Node) -> tuple[int, dict[str, Any]]:
    done = world.fleet("provision")
    error = by_node(done)[node.address]["error"]
    assert f"error[{error['code']}]" in done.err
    return done.rc, error


def test_what_keeps_the_toolchain_from_a_node_is_told_with_its_own_code(
    fleet: StartNodes, nodes_world: FleetWorld
) -> None:
    (node,) = fleet(1, kind="bare")
    nodes_world.target([node])

    node.run(["mkdir", PREFIX])
    node.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", PREFIX])
    code, error = _refused(nodes_world, node)
    assert (code, error["code"], error["exit"]) == (75, "toolchain-unpack", 75)
    assert "disk full" in error["what"]
    assert node.run(["ls", "-A", f"{PREFIX}/tools"]).stdout == "", "nothing half-done stays"
    node.run(["umount", PREFIX])
    node.run(["rmdir", PREFIX])

    node.run(["touch", PREFIX])
    code, error = _refused(nodes_world, node)
    assert (code, error["code"]) == (7, "not-writable")
    node.run(["rm", PREFIX])

    node.run(["mv", "/bin/gzip", "/bin/gzip-away"])
    code, error = _refused(nodes_world, node)
    assert (code, error["code"]) == (7, "gzip-missing")
    node.run(["mv", "/bin/gzip-away", "/bin/gzip"])

    nodes_world.target([node], tmp="/opt/my-tmp")
    done = nodes_world.fleet("provision")
    assert done.rc == 0, done.err
    assert node.run(["ls", "-A", "/opt/my-tmp"]).stdout == "", "temporary files went there and are gone"
    assert node.run(["stat", "-c", "%a", PREFIX]).stdout == "755\n"
