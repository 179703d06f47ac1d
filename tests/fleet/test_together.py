"""Two real SSH nodes that meet in a joint smoke test: torchrun on each, gloo between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import Done
from tests.fleet.fleet_world import FleetWorld, by_node
from tests.fleet.nodes import Node
from tests.support.torch_stack import torch_stack

pytestmark = [pytest.mark.slow, pytest.mark.nodes, pytest.mark.torch, pytest.mark.timeout(1500)]
StartNodes = Callable[..., list[Node]]
JOINT = "smoke/nodes/all-reduce"


@pytest.fixture
def nodes_world(tmp_path: Path, standalone_python: Path) -> FleetWorld:
    world = FleetWorld(tmp_path, standalone_python)
    torch_stack(world, interpreters=["standalone"])
    return world


def joint(done: Done) -> list[dict[str, Any]]:
    """The check of the joint test of each node."""
    return [check for node in by_node(done).values() for check in node["checks"] if check["name"] == JOINT]


def test_nodes_meet_after_provisioning_and_a_node_that_cannot_is_named(
    fleet: StartNodes, nodes_world: FleetWorld
) -> None:
    nodes = fleet(2, kind="bare")
    nodes_world.target(nodes, floors={"multi_node_busbw_gbps": 0.0001})
    done = nodes_world.fleet("provision", timeout=1200)
    assert done.rc == 0, done.err[-3000:]
    assert len({node["root"] for node in by_node(done).values()}) == 1
    first, second = joint(done)
    assert {first["status"], second["status"]} == {"passed"}
    assert (first["details"]["ranks"], first["details"]["interface"]) == (4, "eth0")
    assert first["details"]["address"] == nodes[0].address
    assert first["metrics"] == second["metrics"]
    again = nodes_world.fleet("provision")
    assert (again.rc, joint(again)) == (0, []), "nothing was changed, nothing is tried again"

    # Asked for, it runs again; now the way to the first node is closed for one of them.
    nodes[1].run(["ip", "route", "add", "blackhole", f"{nodes[0].address}/32"])
    nodes_world.target(nodes, floors={"multi_node_busbw_gbps": 0.0001}, environment={"OMP_NUM_THREADS": "1"})
    done = nodes_world.fleet("smoke", timeout=900)
    found = by_node(done)
    assert done.rc == 8, done.err[-3000:]
    error = found[nodes[1].address]["error"]
    assert error["code"] == "nodes-cannot-meet"
    assert nodes[0].address in error["why"]
    (left,) = joint(done)
    assert (left["status"], nodes[1].address in left["says"]) == ("not-run", True)
    assert found[nodes[0].address]["status"] == "ok"
    assert "not measured: multi_node_busbw_gbps" in str(done.json["warnings"])
