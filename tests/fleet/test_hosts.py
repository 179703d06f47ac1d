"""Many nodes that are asked and not changed: by name and by class, those that differ, and those that are silent."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.e2e.world import Done
from tests.fleet.fleet_world import FleetWorld
from tests.fleet.nodes import Fleet, Node, StartNodes
from tests.node.test_facts import DATA
from tests.support.patience import with_deadline
from tests.support.programs import executable

pytestmark = [pytest.mark.slow, pytest.mark.nodes]
FACTS = ("--facts-out", "facts.json")


def _gpus(node: Node, *, lost: bool = False) -> None:
    """Eight recorded A100, as nvidia-smi tells of them; `lost`: one of them has fallen off the bus."""
    texts = {name: (DATA / "a100" / f"{name}.txt").read_text() for name in ("plain", "query")}
    if lost:
        texts["query"] = "".join(texts["query"].splitlines(keepends=True)[:-1])
    smi = '#!/bin/sh\ncase "$1" in --query-gpu=*) cat /opt/query.txt ;; *) cat /opt/plain.txt ;; esac\n'
    files = {f"/opt/{name}.txt": text for name, text in texts.items()} | {"/usr/local/bin/nvidia-smi": smi}
    lines = [f"cat > {path} << 'END'\n{text.rstrip()}\nEND\nchmod 755 {path}\n" for path, text in files.items()]
    node.run(["sh", "-e"], stdin="".join(lines))


def test_nodes_are_limited_by_name_and_shown_by_class_and_silent_ones_by_name(
    fleet: StartNodes, fleet_network: Fleet, world: FleetWorld
) -> None:
    nodes = fleet(8, kind="full")
    _limited_by_name(world, nodes[:3])
    _told_once_a_kind(world, nodes[:2])
    world.target(nodes, connection={"connect_timeout": 5.0})
    base = nodes[0].address.rpartition(".")[0]
    for node in nodes:
        _gpus(node, lost=node is nodes[6])
    out = world.good("doctor", *FACTS, "--target", "./nodes.yaml").out
    lines = out.splitlines()
    assert lines[0].startswith("   7 x  8 x ")
    assert f"{base}.[11-16,18]" in lines[1]
    assert lines[2].startswith("   1 x  7 x ")
    assert f"{base}.17" in lines[3]
    assert "not like the largest class: GPUs 7 x " in out
    plain = world.fleet("doctor", *FACTS, rc=0).json
    assert [len(each["nodes"]) for each in plain["classes"]] == [7, 1]
    assert len(plain["facts"]) == 8

    fleet_network.plug(nodes[0], "down")
    # Everything of the next one stands still: connections come up and nobody answers.
    pids = fleet_network.pids(nodes[1])
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)

    def ask(deadline: float) -> tuple[Done, float]:
        begun = time.monotonic()
        done = world.run("doctor", *FACTS, "--target", "./nodes.yaml", "--node-timeout", f"{deadline:.0f}s")
        return done, time.monotonic() - begun

    try:
        deadline, (some, seconds) = with_deadline(ask, 2, lambda found: "   5 x  8 x " in found[0].out)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert some.rc == 3
    assert seconds < deadline + 13, "nobody waits for longer than the deadline"
    assert "   5 x  8 x " in some.out
    assert "silent while connecting: error[node-unreachable]" in some.out
    assert {f"{base}.11", f"{base}.12", f"{base}.[11-12]"} & {line.strip() for line in some.out.splitlines()}


def _limited_by_name(world: FleetWorld, nodes: list[Node]) -> None:
    """An inventory's hosts are reached by their addresses and limited by name."""
    lines = [f"gpu{i} ansible_host={node.address} ansible_user=root" for i, node in enumerate(nodes, 1)]
    (world.work / "hosts.ini").write_text("[gpu]\n" + "\n".join(lines) + "\n")
    world.target(nodes, hosts={"inventory": "hosts.ini"}, connection={"user": "nobody-there"})
    done = world.fleet("doctor", *FACTS, "--limit", "gpu[1-2]", rc=0)
    assert done.err.splitlines()[0] == "2 of 3 nodes, by --limit"
    names = {name: item["hostname"] for name, item in done.json["facts"].items()}
    assert names == {f"gpu{i}": nodes[i - 1].name for i in (1, 2)}

    executable(world.work / "list", f"#!/bin/sh\necho {' '.join(node.address for node in nodes)}\n")
    world.target(nodes, hosts={"command": ["./list"]})
    done = world.fleet("plan", "--exclude", nodes[0].address, "--exclude", nodes[1].address, rc=0)
    assert done.json["selection"] == {"nodes": 1, "of": 3, "by": ["--exclude"]}
    assert [node["node"] for node in done.json["plan"]["nodes"]] == [nodes[2].address]
    told = world.run("plan", "--target", "./nodes.yaml", "--limit", nodes[0].address)
    assert told.out.splitlines()[0] == "plan: tiny (exact) on nodes, 1 of 3 nodes, by --limit"
    nobody = ("--target", "./nodes.yaml", "--limit", nodes[2].address + "9", "--json")
    for verb in (["status", "--all"], ["store", "list"], ["verify"], ["smoke"]):
        done = world.refused(2, "host-unknown", *verb, *nobody)
        assert "did you mean" in done.err


def _told_once_a_kind(world: FleetWorld, nodes: list[Node]) -> None:
    """`doctor` tells each kind of node once, and names the one that is away."""
    away = nodes[0].address.rpartition(".")[0] + ".250"
    world.target(nodes, hosts=[*(node.address for node in nodes), away])
    done = world.fleet("doctor", rc=3)
    assert list(done.json["errors"]) == [away], done.err
    for host in done.json["hosts"]:
        lines = {line["name"]: line for line in host["checks"]}
        assert lines["host"]["consequence"] == "connection: local or ssh"
        assert "engine container: no" in lines["containers"]["consequence"]
    told = world.run("doctor", "--target", "./nodes.yaml", "--exclude", away, rc=0)
    assert told.err.splitlines()[0] == "2 of 3 nodes, by --exclude"
    assert told.out.count("user namespaces") == 1, "equal nodes are told once"
