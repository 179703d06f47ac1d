"""Two real SSH nodes that meet in a joint smoke test and in a stack's own run: torchrun on each, gloo between them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import Done
from tests.fleet.fleet_world import FleetWorld
from tests.fleet.nodes import StartNodes
from tests.support.torch_stack import torch_stack
from tests.support.training import REFERENCE, SCRIPT

pytestmark = [pytest.mark.slow, pytest.mark.nodes, pytest.mark.torch, pytest.mark.timeout(1500)]
JOINT = "smoke/nodes/all-reduce"


def joint(done: Done) -> list[dict[str, Any]]:
    """The check of the joint test of each node."""
    return [check for node in done.nodes.values() for check in node["checks"] if check["name"] == JOINT]


def test_nodes_meet_after_provisioning_and_in_the_stacks_own_run_and_a_node_that_cannot_is_named(
    fleet: StartNodes, tmp_path: Path, standalone_python: Path
) -> None:
    nodes, world = fleet(2, kind="bare", tools=True), FleetWorld(tmp_path, standalone_python)
    source = {**world.repository("megatron", {"pretrain_gpt.py": SCRIPT}), "install": "path"}
    torch_stack(world, interpreters=["standalone"], sources=[source], reference=REFERENCE)
    world.target(nodes, floors={"multi_node_busbw_gbps": 0.0001})
    done = world.fleet("provision", timeout=1200, rc=0)
    assert len({node["root"] for node in done.nodes.values()}) == 1
    first, second = joint(done)
    assert {first["status"], second["status"]} == {"passed"}
    assert (first["details"]["ranks"], first["details"]["interface"]) == (4, "eth0")
    assert first["details"]["address"] == nodes[0].address
    assert first["metrics"] == second["metrics"]
    again = world.fleet("provision")
    assert (again.rc, joint(again)) == (0, []), "nothing was changed, nothing is tried again"

    # The stack's own run on both, which know each other's names, as torchrun wants it: measured and reported.
    names = "".join(f"{node.address} {node.run(['hostname']).stdout.strip()}\n" for node in nodes)
    for node in nodes:
        node.run(["sh", "-c", 'printf %s "$0" >>/etc/hosts', names])
    done = world.fleet("bench", "./tiny.yaml", "--nodes", "2", "--gpus-per-node", "1", timeout=600)
    check = done.nodes[nodes[0].address]["checks"][-1]
    assert (done.rc, check["name"], check["status"]) == (0, "bench", "passed"), check["details"]
    assert (check["metrics"][0]["n"], check["details"]["warm_up"]) == (7, 3)
    assert check["comparison"]["verdict"] == "not-comparable"
    log = (world.last_run / "logs" / "bench-1.log").read_text()
    losses = [float(found) for found in re.findall(r"^1: .* iteration .*lm loss: (\S+)", log, re.M)]
    assert len(losses) == 10 and losses[-1] < losses[0] / 10, log
    assert "not comparable" in (world.last_run / "report.html").read_text()

    # Asked for, it runs again; now the way to the first node is closed for one of them.
    nodes[1].run(["ip", "route", "add", "blackhole", f"{nodes[0].address}/32"])
    world.target(nodes, floors={"multi_node_busbw_gbps": 0.0001}, environment={"OMP_NUM_THREADS": "1"})
    done = world.fleet("smoke", "--only", "nodes", timeout=900, rc=8)
    found = done.nodes
    error = found[nodes[1].address]["error"]
    assert error["code"] == "nodes-cannot-meet"
    assert nodes[0].address in error["why"]
    (left,) = joint(done)
    assert (left["status"], nodes[1].address in left["says"]) == ("not-run", True)
    assert found[nodes[0].address]["status"] == "ok"
    assert "not measured: multi_node_busbw_gbps" in str(done.json["warnings"])
