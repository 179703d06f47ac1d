"""Seven, four and one of eight nodes fail: good ones stay good, and the same command touches only the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.world import MINOR, forget_sizes
from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld
from tests.fleet.nodes import Fleet, Node, StartNodes

pytestmark = [pytest.mark.slow, pytest.mark.nodes, pytest.mark.timeout(900)]
FULL = f"mkdir -p {PREFIX} && mount -t tmpfs -o size=200k tmpfs {PREFIX}"


def test_of_eight_nodes_seven_then_four_then_one_fail(
    fleet: StartNodes, fleet_network: Fleet, tmp_path: Path, standalone_python: Path
) -> None:
    nodes = fleet(8, kind="full", tools=True)
    world = FleetWorld(tmp_path, standalone_python)
    # On the Python that nodes have where that fits: then it need not be brought.
    own = nodes[0].run(["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).stdout.strip()
    there = {} if own == MINOR else {"interpreters": ["standalone"]}
    forget_sizes(world.lock(world.stack(STACK, packages=["alpha==1.0"], imports=["alpha"], **there)))
    world.target(nodes, connection={"connect_timeout": 2.0})
    roots: set[str] = set()
    good: list[Node] = []

    def provision(silent: list[Node], full: list[Node]) -> None:
        """Once with these nodes failing: those that were good are not touched."""
        for node in nodes:
            fleet_network.plug(node, "down" if node in silent else "up")
        failing = [*silent, *full]
        done = world.fleet("provision", timeout=280, rc=8 if failing else 0)
        found = done.nodes
        expected = {node.address: "unchanged" if node in good else "ok" for node in nodes if node not in failing}
        expected |= {node.address: "unreachable" for node in silent} | {node.address: "failed" for node in full}
        assert done.statuses == expected
        for node in silent:
            assert (found[node.address]["exit"], found[node.address]["error"]["code"]) == (3, "node-unreachable")
        for node in full:
            assert (found[node.address]["exit"], "full" in str(found[node.address]["error"])) == (75, True)
            assert f"{node.address}: toolchain failed" in done.err, "told by phase"
        roots.update(found[node.address]["root"] for node in nodes if node not in failing)
        assert len(roots) == 1
        assert {*world.steps} == {node.address for node in nodes if node not in good and node not in silent}
        good[:] = [node for node in nodes if node not in failing]

    provision(nodes[1:], [])
    fleet_network.plug(nodes[4], "up")
    nodes[4].run(["sh", "-c", FULL])
    provision(nodes[5:], [nodes[4]])
    nodes[4].run(["umount", PREFIX])
    provision([nodes[7]], [])
    provision([], [])
    world.fleet("verify", rc=0)
