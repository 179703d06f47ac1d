"""Tools and bundles reach nodes that have no Python or no network; the wheel stores of several nodes. Over SSH."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from envbuild.node_program import node_pyz
from envbuild.plan.tools import Tool
from envbuild.provision.ansible.adapter import Inventory, TaskEvent, run_playbook
from envbuild.provision.ansible.steps import NodeHost, StepsResult, Watch
from envbuild.provision.contact.payload import write_payload
from envbuild.regular_file import sha256_of
from tests.fleet.fleet_world import PREFIX, FleetWorld
from tests.fleet.nodes import Fleet, Node, StartNodes
from tests.node.wheel_support import filled

pytestmark = [pytest.mark.nodes, pytest.mark.slow]
ODD = "/opt/it's here/envbuild"


def _play(folder: Path, node: Node, *hosts: NodeHost, **connection: str) -> tuple[StepsResult, list[TaskEvent]]:
    """How the playbook ended on these hosts, which are reached as `node` is, and what it did there."""
    inventory, events = Inventory(hosts, node.connection().model_copy(update=connection)), list[TaskEvent]()
    result = run_playbook("provision.yml", inventory, run_dir=folder, on_event=events.append, forks=4, watch=Watch(600))
    return result, [event for event in events if event.status not in ("started", "skipped")]


def _place(folder: Path, nodes: list[Node], tools: dict[str, Tool]) -> list[tuple[str, str]]:
    """Bring the tools; role and status of what was done."""
    payload = folder / "pay load {{ 7*7 }}.sh"
    write_payload(payload, list(tools.values()), prefix=ODD, packed=True)
    paths = [tools[name].path(ODD) for name in ("python", "node")]
    hosts = [NodeHost(node.address, *paths, payload=payload, prefix=ODD) for node in nodes]
    result, events = _play(folder, nodes[0], *hosts)
    assert result.rc == 0, events
    return [(event.role, event.status) for event in events]


def _probe(node: Node, tools: dict[str, Tool]) -> dict[str, Any]:
    args = {"node": node.address, "files": [], "reach": {}, "pythons": ["3.6"], "base_packages": False, "tmp": "/tmp"}
    request = {"protocol": 1, "verb": "probe", "run": "test", "prefix": ODD, "args": args}
    done = node.run([tools[name].path(ODD) for name in ("python", "node")] + ["probe"], stdin=json.dumps(request))
    response = json.loads(done.stdout)
    assert response["ok"], response
    return response["result"]  # type: ignore[no-any-return]


def test_nodes_without_python_get_one_and_bundles_by_their_shell_and_a_wrong_key_is_refused(
    fleet: StartNodes, tmp_path: Path, standalone_python: Path
) -> None:
    nodes = fleet(2, kind="bare")
    for node in nodes:
        assert node.run(["sh", "-c", "command -v python3 python perl-python || echo none"]).stdout.strip() == "none"
    pyz = tmp_path / "envbuild-node.pyz"
    pyz.write_bytes(node_pyz())
    python = Tool("python", standalone_python, sha256_of(standalone_python), "tree")
    tools = {"python": python, "node": Tool("node", pyz, sha256_of(pyz), file="envbuild-node.pyz")}
    assert _place(tmp_path, nodes, tools) == [("toolchain", "changed")] * 2
    for node in nodes:
        assert _probe(node, tools)["os"]["id"] == "debian"
        assert node.run([python.path(ODD), "-c", "import ssl, ctypes, lzma, sqlite3"]).stdout == ""
    assert _place(tmp_path, nodes, tools) == [("toolchain", "ok")] * 2

    one, two = nodes
    one.run(["touch", "/opt/only-here"])
    assert two.run(["test", "-e", "/opt/only-here"], check=False).returncode == 1
    assert one.run(["hostname"]).stdout == "node1\n"
    _bundles(tmp_path, one)
    wrong = tmp_path / "known_hosts"
    key = next(line for line in one.known_hosts.read_text().splitlines() if line.startswith(two.address))
    wrong.write_text(key.replace(two.address, one.address) + "\n")
    host = NodeHost(one.address, "/usr/bin/python3", "/x", requests={"install": wrong})
    refused = _play(tmp_path, one, host, known_hosts=str(wrong))[0].nodes[one.address]
    assert refused.status == "unreachable"
    # Ansible sometimes notices that ssh went away before it reads why.
    assert "Host key verification failed" in refused.message or "could not be sent" in refused.message


def _bundles(folder: Path, node: Node) -> None:
    """Bundles are put into the store of a node by its shell alone."""
    (folder / "one").write_bytes(b"bundle")
    (folder / "two").write_bytes(b"built")
    store = f"{PREFIX}/store/0123456789ab"
    bundles = {"bundle.tar": folder / "one", "built-1.tar": folder / "two"}
    host = NodeHost(
        node.address, "/usr/bin/python3", "/nowhere", bundles=bundles, store=store, run="now", tmp="/opt/tmp"
    )
    result, _ = _play(folder, node, host)
    assert (result.rc, result.nodes[node.address].status) == (0, "changed"), result.nodes
    assert node.run(["cat", f"{store}/bundle.tar", f"{store}/built-1.tar"]).stdout == "bundlebuilt"
    assert node.run(["stat", "-c", "%a", PREFIX, f"{store}/runs/now"]).stdout == "755\n755\n"
    assert node.run(["ls", "/opt/tmp"]).stdout == "", "nothing temporary stays"


def test_nodes_reach_this_machine_alone_and_their_stores_are_listed_verified_and_pruned(
    fleet: StartNodes, fleet_network: Fleet, tmp_path: Path, standalone_python: Path
) -> None:
    nodes = fleet(2, kind="full")
    node = nodes[0]
    with HTTPServer((fleet_network.gateway, 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        code = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).status)"
        said = node.run(["python3", "-c", code, f"http://{fleet_network.gateway}:{server.server_port}/"])
        server.shutdown()
    assert said.stdout == "200\n"
    assert node.run(["ip", "route", "show", "default"]).stdout == ""

    keys = {}
    for number, node in enumerate(nodes):
        made, keys[node.address] = filled(tmp_path / str(number) / "wheels", tmp_path, commit=str(number) * 40)
        tar = subprocess.run(["tar", "-c", "-C", Path(made.path).parent, "wheels"], capture_output=True, check=True)
        node.run(["mkdir", "-p", f"{PREFIX}/store"])
        unpack = f"base64 -d | tar -x --no-same-owner -C {PREFIX}/store"
        node.run(["sh", "-c", unpack], stdin=base64.b64encode(tar.stdout).decode())
    world = FleetWorld(tmp_path / "world", standalone_python)
    world.target(nodes)
    place = ("--target", "./nodes.yaml")
    listed = world.good("store", "list", *place, "--json")
    assert {one["node"]: one["key"] for one in listed.json["wheels"]} == keys
    bad = nodes[0]
    bad.run(["sh", "-c", f"echo x >> {PREFIX}/store/wheels/{keys[bad.address]}/apex-0.1-py3-none-any.whl"])
    out = world.run("store", "verify", *place, rc=1).out
    assert f"damaged   {keys[bad.address][:12]}" in out
    assert "1 of 1 wheels are what their records say" in out
    done = world.good("store", "clean", "--only", "wheels", "--keep", "0s", "--yes", *place, "--json")
    assert [len(one["old"]) for one in done.json["places"]] == [1, 1]
    for node in nodes:
        assert node.run(["ls", f"{PREFIX}/store/wheels"]).stdout.split() == ["leases", "quarantine", "tmp"]
