"""The wheel stores of several nodes, asked over SSH."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fleet.fleet_world import PREFIX, FleetWorld
from tests.fleet.nodes import Node
from tests.node.wheel_support import filled

pytestmark = [pytest.mark.nodes, pytest.mark.slow]


def test_the_stores_of_a_fleet_are_listed_verified_and_pruned_in_one_contact_each(
    fleet: Callable[..., list[Node]], tmp_path: Path, standalone_python: Path
) -> None:
    nodes = fleet(2, kind="full")
    keys = {}
    for number, node in enumerate(nodes):
        made, keys[node.address] = filled(tmp_path / str(number) / "wheels", tmp_path, commit=str(number) * 40)
        tar = subprocess.run(["tar", "-c", "-C", Path(made.path).parent, "wheels"], capture_output=True, check=True)
        node.run(["mkdir", "-p", f"{PREFIX}/store"])
        unpack = f"base64 -d | tar -x --no-same-owner -C {PREFIX}/store"
        node.run(["sh", "-c", unpack], stdin=base64.b64encode(tar.stdout).decode())
    world = FleetWorld(tmp_path / "world", standalone_python)
    world.target(nodes)
    listed = world.run("store", "list", "--target", "./nodes.yaml", "--json")
    assert listed.rc == 0, listed.err
    assert {one["node"]: one["key"] for one in listed.json["wheels"]} == keys
    bad = nodes[0]
    bad.run(["sh", "-c", f"echo x >> {PREFIX}/store/wheels/{keys[bad.address]}/apex-0.1-py3-none-any.whl"])
    done = world.run("store", "verify", "--target", "./nodes.yaml")
    assert done.rc == 1
    assert f"damaged   {keys[bad.address][:12]}" in done.out
    assert "1 of 1 wheels are what their records say" in done.out
    done = world.run(
        "store", "clean", "--only", "wheels", "--keep", "0s", "--yes", "--target", "./nodes.yaml", "--json"
    )
    assert done.rc == 0, done.err
    assert [len(one["old"]) for one in done.json["places"]] == [1, 1]
    for node in nodes:
        assert node.run(["ls", f"{PREFIX}/store/wheels"]).stdout.split() == ["leases", "quarantine", "tmp"]
