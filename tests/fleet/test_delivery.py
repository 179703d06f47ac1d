"""Bundles reach a node that has no network of its own, through Ansible over SSH."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from envbuild.provision.ansible.adapter import Inventory, run_playbook
from envbuild.provision.ansible.steps import Limits, NodeHost
from tests.fleet.nodes import Fleet, Node

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
