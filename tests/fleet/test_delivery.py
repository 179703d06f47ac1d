"""Bundles reach a node that has no network of its own; the wheel stores of several nodes. Over SSH."""

from __future__ import annotations

import base64
import subprocess
import threading
from collections.abc import Callable
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from envbuild.provision.ansible.adapter import Inventory, run_playbook
from envbuild.provision.ansible.steps import Limits, NodeHost
from tests.fleet.fleet_world import PREFIX, FleetWorld
from tests.fleet.nodes import Fleet, Node
from tests.node.wheel_support import filled

pytestmark = [pytest.mark.nodes, pytest.mark.slow]


def test_bundles_are_put_into_the_store_of_a_node_by_its_shell_alone(
    fleet: Callable[..., list[Node]], tmp_path: Path
) -> None:
    (node,) = fleet(1, kind="bare")
    (tmp_path / "one").write_bytes(b"bundle")
    (tmp_path / "two").write_bytes(b"built")
    store = "/opt/envbuild/store/0123456789ab"
    host = NodeHost(
        node.address,
        "/usr/bin/python3",
        "/nowhere",
        bundles={"bundle.tar": tmp_path / "one", "built-1.tar": tmp_path / "two"},
        store=store,
        run="now",
        tmp="/opt/tmp",
    )
    result = run_playbook(
        "provision.yml", Inventory((host,), node.connection()), run_dir=tmp_path, on_event=lambda event: None, forks=1,
        limits=Limits(600),
    )  # fmt: skip
    assert (result.status, result.nodes[node.address].status) == ("successful", "changed"), result.nodes
    assert node.run(["cat", f"{store}/bundle.tar", f"{store}/built-1.tar"]).stdout == "bundlebuilt"
    assert node.run(["stat", "-c", "%a", "/opt/envbuild", f"{store}/runs/now"]).stdout == "755\n755\n"
    assert node.run(["ls", "/opt/tmp"]).stdout == "", "nothing temporary stays"


def test_a_node_reaches_this_machine_at_the_gateway_and_nothing_else(
    fleet: Callable[..., list[Node]], fleet_network: Fleet
) -> None:
    (node,) = fleet(1, kind="full")
    with HTTPServer((fleet_network.gateway, 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        code = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).status)"
        said = node.run(["python3", "-c", code, f"http://{fleet_network.gateway}:{server.server_port}/"])
        server.shutdown()
    assert said.stdout == "200\n"
    assert node.run(["ip", "route", "show", "default"]).stdout == ""


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
