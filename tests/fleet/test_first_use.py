"""First use on real SSH nodes that fetch for themselves: they see the same file, or nobody uses it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.lock.first_use import read_first_uses
from tests.e2e.world import edit_lock
from tests.fleet.fleet_world import PREFIX, FleetWorld, by_node
from tests.fleet.nodes import Node
from tests.support.wheels import sha256

pytestmark = [pytest.mark.slow, pytest.mark.nodes]
FILE = "beta-2.0-py3-none-any.whl"
TRUST = "--trust-first-use"


def _unrecorded(variant: dict[str, Any]) -> None:
    for package in variant["packages"]:
        if package["name"] == "beta":
            package["files"] = [{"file": FILE, "sha256": "unrecorded", "reason": "its index was out of reach"}]


def put(node: Node, wheels: Path) -> None:
    """The wheels of a folder in the node's own find-links folder, which its pip is configured with."""
    node.run(["mkdir", "-p", "/srv/wheels"])
    for wheel in wheels.glob("*.whl"):
        raw = base64.b64encode(wheel.read_bytes()).decode()
        node.run(["sh", "-c", f"base64 -d > /srv/wheels/{wheel.name}"], stdin=raw)
    node.run(["sh", "-c", "cat > /etc/pip.conf"], stdin="[global]\nfind-links = /srv/wheels\n")


def test_two_nodes_agree_or_nothing_is_used(
    fleet: Callable[..., list[Node]], tmp_path: Path, standalone_python: Path
) -> None:
    nodes = fleet(2, kind="full", tools=True)
    world = FleetWorld(tmp_path, standalone_python)
    stack = world.stack("tiny", packages=("alpha==1.0", "beta==2.0"), interpreters=["standalone"], imports=["beta"])
    edit_lock(world.lock(stack), _unrecorded)
    world.target(nodes, delivery="node")
    put(nodes[0], world.wheels)
    ours = sha256(world.wheels / FILE)
    world.wheel("beta", "2.0", files={"beta/__init__.py": b"VERSION = 'another'\n"})
    put(nodes[1], world.wheels)
    theirs = sha256(world.wheels / FILE)

    done = world.fleet("provision", TRUST)
    assert done.rc == 5, done.err
    for address, evidence in by_node(done).items():
        assert evidence["error"]["code"] == "hash-mismatch", address
        assert f"{nodes[0].address} got sha256 {ours}" in evidence["error"]["why"]
        assert f"{nodes[1].address} got sha256 {theirs}" in evidence["error"]["why"]
    record = world.home / ".local" / "share" / "envbuild" / "first-use.toml"
    assert read_first_uses(record) == {}
    for node in nodes:
        there = node.run(["ls", PREFIX]).stdout.split()
        assert not {"envs", "current", "lease.json"} & set(there), "nothing was built, nothing is held"

    put(nodes[0], world.wheels)
    done = world.fleet("provision", TRUST)
    assert done.rc == 0, done.err
    good = by_node(done)
    assert {node["first_use"][0]["sha256"] for node in good.values()} == {theirs}
    assert len({node["root"] for node in good.values()}) == 1
    assert {name: use.sha256 for name, use in read_first_uses(record).items()} == {FILE: theirs}
    again = world.fleet("provision")
    assert again.rc == 0 and {node["status"] for node in by_node(again).values()} == {"unchanged"}
