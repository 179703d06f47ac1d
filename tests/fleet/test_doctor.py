"""`envbuild doctor --target` on real SSH nodes, one of them without a Python and one that is not there."""

from __future__ import annotations

import pytest

from tests.fleet.fleet_world import FleetWorld
from tests.fleet.nodes import StartNodes

pytestmark = pytest.mark.slow


def test_doctor_tells_each_kind_of_node_once_and_names_the_one_that_is_away(
    fleet: StartNodes, world: FleetWorld
) -> None:
    nodes = [*fleet(2, kind="full")]
    away = nodes[0].address.rpartition(".")[0] + ".250"
    world.target(nodes, hosts=[*(node.address for node in nodes), away])
    done = world.fleet("doctor")
    assert (done.rc, list(done.json["errors"])) == (3, [away]), done.err
    for host in done.json["hosts"]:
        lines = {line["name"]: line for line in host["checks"]}
        assert lines["host"]["consequence"] == "connection: local or ssh"
        assert "engine container: no" in lines["containers"]["consequence"]
    told = world.run("doctor", "--target", "./nodes.yaml", "--exclude", away)
    assert told.rc == 0, told.out
    assert told.err.splitlines()[0] == "2 of 3 nodes, by --exclude"
    assert told.out.count("user namespaces") == 1, "equal nodes are told once"
