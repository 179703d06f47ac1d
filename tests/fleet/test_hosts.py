"""Hosts of an inventory are reached by name; `doctor` tells each kind of node once."""

from __future__ import annotations

import pytest

from tests.fleet.fleet_world import FleetWorld
from tests.fleet.nodes import StartNodes

pytestmark = pytest.mark.slow


def test_an_inventorys_hosts_are_reached_by_their_addresses_and_limited_by_name(
    fleet: StartNodes, world: FleetWorld
) -> None:
    nodes = fleet(3, kind="full")
    lines = [f"gpu{i} ansible_host={node.address} ansible_user=root" for i, node in enumerate(nodes, 1)]
    (world.work / "hosts.ini").write_text("[gpu]\n" + "\n".join(lines) + "\n")
    world.target(nodes, hosts={"inventory": "hosts.ini"}, connection={"user": "nobody-there"})
    done = world.fleet("doctor", "--facts-out", "facts.json", "--limit", "gpu[1-2]")
    assert (done.rc, done.err.splitlines()[0]) == (0, "2 of 3 nodes, by --limit")
    facts = done.json["facts"]
    assert {name: item["hostname"] for name, item in facts.items()} == {f"gpu{i}": nodes[i - 1].name for i in (1, 2)}

    (world.work / "list").write_text(f"#!/bin/sh\necho {' '.join(node.address for node in nodes)}\n")
    (world.work / "list").chmod(0o700)
    world.target(nodes, hosts={"command": ["./list"]})
    done = world.fleet("plan", "--exclude", nodes[0].address, "--exclude", nodes[1].address)
    assert done.rc == 0, done.err
    assert done.json["selection"] == {"nodes": 1, "of": 3, "by": ["--exclude"]}
    assert [node["node"] for node in done.json["plan"]["nodes"]] == [nodes[2].address]
    told = world.run("plan", "--target", "./nodes.yaml", "--limit", nodes[0].address)
    assert told.out.splitlines()[0] == "plan: tiny (exact) on nodes, 1 of 3 nodes, by --limit"
    for verb in (["status", "--all"], ["store", "list"], ["verify"], ["smoke"]):
        done = world.run(*verb, "--target", "./nodes.yaml", "--limit", nodes[2].address + "9", "--json")
        assert (done.rc, done.code) == (2, "host-unknown"), done.err
        assert "did you mean" in done.err


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
