"""Nodes in waves: what an earlier wave did stays good, and no further one begins once too many nodes have failed."""

from __future__ import annotations

import pytest

from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld, by_node, listing
from tests.fleet.nodes import StartNodes

pytestmark = [pytest.mark.slow, pytest.mark.nodes]


def _waves(world: FleetWorld) -> list[list[str]]:
    return [event["data"]["nodes"] for event in world.events() if event["kind"] == "wave-started"]


def test_waves_follow_each_other_and_end_when_too_many_nodes_have_failed(fleet: StartNodes, world: FleetWorld) -> None:
    first, broken, third, fourth = fleet(4, kind="full")
    world.target([first, broken, third, fourth])
    # A folder where the link of the environment in use belongs: everything goes well until it is to be switched.
    broken.run(["mkdir", "-p", f"{PREFIX}/current/{STACK}/in-the-way"])
    before = {node.address: listing(node) for node in (third, fourth)}

    done = world.fleet("provision", "--batch", "25%", "--max-fail", "0")
    found = by_node(done)
    assert {address: item["status"] for address, item in found.items()} == {
        first.address: "ok", broken.address: "failed", third.address: "not-begun", fourth.address: "not-begun",
    }, done.err  # fmt: skip
    assert found[third.address]["error"]["code"] == "not-begun"
    assert found[third.address]["exit"] == 75
    assert "1 of 4 failed, `--max-fail` allows 0" in found[third.address]["error"]["why"]
    assert done.rc == found[broken.address]["exit"] or done.rc == 8
    assert _waves(world) == [[first.address], [broken.address]]
    assert {node.address: listing(node) for node in (third, fourth)} == before, "nothing was done there"

    broken.run(["rm", "-r", f"{PREFIX}/current/{STACK}"])
    again = world.fleet("provision", "--batch", "2", "--max-fail", "0")
    assert again.rc == 0, again.err
    found = by_node(again)
    assert found[first.address]["status"] == "unchanged"
    assert {found[node.address]["status"] for node in (broken, third, fourth)} == {"ok"}, again.err
    assert len({item["root"] for item in found.values()}) == 1
    assert _waves(world) == [[broken.address, third.address], [fourth.address]]


def test_a_fleet_of_which_too_much_is_silent_is_not_touched(fleet: StartNodes, world: FleetWorld) -> None:
    (there,) = fleet(1, kind="full")
    before = listing(there)
    world.target([there], hosts=[there.address, there.address.rpartition(".")[0] + ".200"])
    done = world.fleet("provision", "--max-fail", "25%", "--host", there.address, "--host", "10.255.255.1")
    assert {item["status"] for item in by_node(done).values()} == {"not-begun", "unreachable"}
    assert listing(there) == before
