"""`probe` on real SSH nodes: a table by class, outliers with what differs, and silent nodes with their phase."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from tests.e2e.world import Done, World
from tests.fleet.fleet_world import PREFIX
from tests.fleet.nodes import Fleet, Node, StartNodes
from tests.node.test_facts import DATA
from tests.support.patience import with_deadline
from tests.support.programs import completed

pytestmark = [pytest.mark.slow, pytest.mark.nodes]


def _target(world: World, nodes: list[Node]) -> None:
    target = {
        "name": "nodes", "extends": "ssh", "hosts": [node.address for node in nodes], "prefix": PREFIX,
        "connection": {**nodes[0].connection().to_json_dict(), "connect_timeout": 5.0},
    }  # fmt: skip
    (world.work / "nodes.yaml").write_text(yaml.safe_dump(target))


def _gpus(node: Node, *, lost: bool = False) -> None:
    """Eight recorded A100, as nvidia-smi tells of them; `lost`: one of them has fallen off the bus."""
    for name in ("plain", "query"):
        text = (DATA / "a100" / f"{name}.txt").read_text()
        if lost and name == "query":
            text = "".join(text.splitlines(keepends=True)[:-1])
        node.run(["tee", f"/opt/{name}.txt"], stdin=text)
    script = '#!/bin/sh\ncase "$1" in --query-gpu=*) cat /opt/query.txt ;; *) cat /opt/plain.txt ;; esac\n'
    node.run(["tee", "/usr/local/bin/nvidia-smi"], stdin=script)
    node.run(["chmod", "0755", "/usr/local/bin/nvidia-smi"])


def _stop_sshd(network: Fleet, node: Node) -> list[int]:
    """Everything of a node stands still: connections come up and nobody answers."""
    name = f"ebn{network.number}x{node.name.removeprefix('node')}"
    done = completed(["ip", "netns", "pids", name], check=True)
    pids = [int(pid) for pid in done.stdout.split()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def test_nodes_are_shown_by_class_and_those_that_differ_or_are_silent_by_name(
    fleet: StartNodes, fleet_network: Fleet, tmp_path: Path
) -> None:
    nodes = fleet(8, kind="full")
    world = World(tmp_path)
    _target(world, nodes)
    base = nodes[0].address.rpartition(".")[0]
    for node in nodes:
        _gpus(node, lost=node is nodes[6])
    done = world.good("doctor", "--facts-out", "facts.json", "--target", "./nodes.yaml")
    lines = done.out.splitlines()
    assert lines[0].startswith("   7 x  8 x ")
    assert f"{base}.[11-16,18]" in lines[1]
    assert lines[2].startswith("   1 x  7 x ")
    assert f"{base}.17" in lines[3]
    assert "not like the largest class: GPUs 7 x " in done.out
    plain = world.good("doctor", "--facts-out", "facts.json", "--target", "./nodes.yaml", "--json").json
    assert [len(each["nodes"]) for each in plain["classes"]] == [7, 1]
    assert len(plain["facts"]) == 8

    subprocess.run(["ip", "link", "set", f"ebv{fleet_network.number}x1", "down"], check=True)
    pids = _stop_sshd(fleet_network, nodes[1])

    def ask(deadline: float) -> tuple[Done, float]:
        begun, words = time.monotonic(), ("--facts-out", "facts.json", "--target", "./nodes.yaml")
        done = world.run("doctor", *words, "--node-timeout", f"{deadline:.0f}s")
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
