"""Nodes without a network install from a bundle that this machine brings; on one prefix, one builds for all."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld, by_node, checks
from tests.fleet.nodes import Node, StartNodes
from tests.fleet.test_build_once import steps_of

pytestmark = [pytest.mark.slow, pytest.mark.nodes]


def left(node: Node) -> str:
    """What lies beside the environments of a node that should not."""
    return node.run(["sh", "-c", f"cd {PREFIX} && ls -A store | grep -v '^wheels$'"], check=False).stdout


def test_every_node_installs_from_the_bundle_and_gets_the_root_of_all_others(
    fleet: StartNodes, world: FleetWorld
) -> None:
    nodes = fleet(4, kind="bare")
    world.target(nodes)
    done = world.fleet("provision", timeout=400)
    assert done.rc == 0, done.err
    found = by_node(done)
    assert {item["status"] for item in found.values()} == {"ok"}
    assert len({item["root"] for item in found.values()}) == 1
    for key in ("packages", "sources"):
        assert len({json.dumps(item[key], sort_keys=True) for item in found.values()}) == 1
    steps = steps_of(world)
    whole = ["toolchain", "toolchain", "deliver", "install", "smoke", "activate"]
    assert steps == {node.address: whole for node in nodes}
    assert [left(node) for node in nodes] == [""] * 4, "bundles go with what was unpacked from them"
    assert world.fleet("verify").rc == 0

    again = world.fleet("provision")
    assert (again.rc, again.json["steps_run"]) == (0, 0)

    (later,) = fleet(1, kind="bare")
    world.target([*nodes, later])
    more = world.fleet("provision")
    assert more.rc == 0, more.err
    assert by_node(more)[later.address]["root"] == found[nodes[0].address]["root"]
    assert set(steps_of(world)) == {later.address}


def over_ssh(node: Node, script: str) -> list[str]:
    options = ["-F", "none", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={node.known_hosts}"]
    return ["ssh", *options, "-i", str(node.identity), f"root@{node.address}", "--", script]


def test_each_fault_ends_its_own_node_and_the_same_command_does_the_rest(fleet: StartNodes, world: FleetWorld) -> None:
    nodes = fleet(4, kind="bare", tools=True)
    first, killed, flipped, last = nodes
    world.target(nodes)
    # As a disk that fails would: another byte as soon as the bundle is there.
    flip = (
        f"until f=$(ls {PREFIX}/store/*/bundle.tar 2>/dev/null); do sleep 0.01; done; "
        "printf '\\377' | dd of=$f bs=1 seek=5000 conv=notrunc status=none"
    )
    watch = "until pkill -9 -f '^/[^ ]*python[^ ]* .*[p]yz install'; do sleep 0.02; done"
    with (
        subprocess.Popen(over_ssh(killed, watch), stdin=subprocess.DEVNULL) as killer,
        subprocess.Popen(over_ssh(flipped, flip), stdin=subprocess.DEVNULL) as flipper,
    ):
        done = world.fleet("provision", timeout=400)
        killer.kill()
        flipper.kill()
    found = by_node(done)
    assert {node.name: found[node.address]["status"] for node in nodes} == {
        first.name: "ok", killed.name: "failed", flipped.name: "failed", last.name: "ok",
    }, done.err  # fmt: skip
    assert done.rc == 5, done.err
    assert found[killed.address]["error"]["code"] == "step-failed"
    assert (found[flipped.address]["error"]["code"], found[flipped.address]["exit"]) == ("bundle-damaged", 5)
    for node in (killed, flipped):
        assert node.run(["ls", f"{PREFIX}/current"], check=False).stdout == "", "nothing was made current"

    again = world.fleet("provision", timeout=400)
    assert again.rc == 0, again.err
    assert set(steps_of(world)) == {killed.address, flipped.address}
    told = by_node(again)
    assert {item["root"] for item in told.values()} == {found[first.address]["root"]}
    assert {told[node.address]["status"] for node in (first, last)} == {"unchanged"}


def test_a_bundle_that_the_user_gives_is_brought_in_waves_and_nothing_is_fetched(
    fleet: StartNodes, world: FleetWorld
) -> None:
    nodes = fleet(3, kind="bare", tools=True)
    world.target(nodes)
    world.good("bundle", "create", f"./{STACK}.yaml", "--target", "./nodes.yaml", "-o", "b.tar", timeout=400)
    shutil.rmtree(world.wheels)
    shutil.rmtree(world.hub)
    shutil.rmtree(world.home / ".cache" / "envbuild" / "artifacts")
    world.wheels.mkdir()
    done = world.fleet("provision", "--bundle", "b.tar", "--batch", "2", timeout=400)
    assert done.rc == 0, done.err
    found = by_node(done)
    assert len({item["root"] for item in found.values()}) == 1
    assert all(item["sources"][0]["bundle"] for item in found.values())
    assert [event["data"]["nodes"] for event in world.events() if event["kind"] == "wave-started"] == [
        [nodes[0].address, nodes[1].address], [nodes[2].address],
    ]  # fmt: skip


def test_on_one_prefix_one_node_builds_and_the_others_test_it(fleet: StartNodes, world: FleetWorld) -> None:
    nodes = fleet(3, kind="full")
    world.target(nodes, prefix="/shared/envbuild", placement="shared")
    done = world.fleet("provision", timeout=400)
    assert done.rc == 0, done.err
    first, *others = (node.address for node in nodes)
    steps = steps_of(world)
    assert steps[first] == ["toolchain", "deliver", "install", "smoke", "activate"]
    assert all(steps[name][-1:] == ["smoke"] for name in others)
    assert all(set(steps[name]) <= {"toolchain", "smoke"} for name in others)
    found = by_node(done)
    assert len({item["root"] for item in found.values()}) == 1
    assert all(checks(item)["stamp"] == "passed" for item in found.values())
    tested = set(checks(found[first])) - {"record", "required"}
    assert [set(checks(found[name])) for name in others] == [tested] * 2, "all have run the smoke test"
    again = world.fleet("provision")
    assert (again.rc, again.json["steps_run"]) == (0, 0)
