"""One node of a fleet builds, and its environment goes from node to node; what fails can be gone on with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld, by_node
from tests.fleet.nodes import Fleet, Node
from tests.fleet.test_build_once import steps_of

pytestmark = [pytest.mark.slow, pytest.mark.nodes]
StartNodes = Callable[..., list[Node]]


@pytest.fixture
def world(tmp_path: Path, standalone_python: Path) -> FleetWorld:
    return FleetWorld(tmp_path, standalone_python)


def journeys(world: FleetWorld) -> list[dict[str, Any]]:
    return [event for event in world.events() if event["kind"] == "spread"]


def left(node: Node) -> str:
    """What lies in the folders that spreading uses, apart from the environment."""
    return node.run(
        ["sh", "-c", f"cd {PREFIX} && ls -A store/packs envs | grep -v '^{STACK}-exact-[0-9a-f]*$'"], check=False
    ).stdout


def test_one_node_builds_and_the_others_take_it_over_from_each_other(fleet: StartNodes, world: FleetWorld) -> None:
    nodes = fleet(4, kind="bare")
    world.target(nodes)
    done = world.fleet("provision", timeout=400)
    assert done.rc == 0, done.err
    found = by_node(done)
    first, *others = (node.address for node in nodes)
    assert {item["status"] for item in found.values()} == {"ok"}
    assert len({item["root"] for item in found.values()}) == 1
    for key in ("packages", "sources"):
        assert len({json.dumps(item[key], sort_keys=True) for item in found.values()}) == 1
    assert f"built once for 4 nodes: {', '.join(others[:2])} and {others[2]} take it over" in done.err
    (told,) = journeys(world)
    assert (told["node"], told["data"]["to"], told["data"]["sent"]) == (first, others, [])
    assert told["data"]["bytes"] < 5e6, "the interpreter is on all nodes"
    steps = steps_of(world)
    assert steps[first] == ["toolchain", "toolchain", "deliver", "deliver", "install", "smoke", "activate"]
    assert all(steps[name] == ["toolchain", "toolchain", "unpack", "smoke", "activate"] for name in others)
    assert [left(node) for node in nodes] == ["envs:\n\nstore/packs:\n"] * 4
    assert not list(world.last_run.glob("spread-*"))
    assert world.fleet("verify", "--deep").rc == 0

    again = world.fleet("provision")
    assert (again.rc, again.json["ansible_tasks"]) == (0, 0)

    (later,) = fleet(1, kind="bare")
    world.target([*nodes, later])
    more = world.fleet("provision")
    assert more.rc == 0, more.err
    assert by_node(more)[later.address]["root"] == found[first]["root"]
    assert set(steps_of(world)) == {later.address}
    assert f"take over the environment of {first}" in more.err
