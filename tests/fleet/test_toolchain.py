"""The toolchain reaches nodes that have no usable Python, through Ansible over SSH."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.node_program import node_pyz
from envbuild.provision.ansible.adapter import Inventory, TaskEvent, run_playbook
from envbuild.provision.ansible.steps import Limits, NodeHost
from envbuild.provision.contact.payload import Tool, file_tool, python_tool, write_payload
from envbuild.regular_file import sha256_of
from tests.fleet.nodes import Node

pytestmark = [pytest.mark.nodes, pytest.mark.slow]
PREFIX = "/opt/it's here/envbuild"


@pytest.fixture
def tools(tmp_path: Path, standalone_python: Path) -> dict[str, Tool]:
    pyz = tmp_path / "envbuild-node.pyz"
    pyz.write_bytes(node_pyz())
    python = python_tool(standalone_python, sha256_of(standalone_python))
    return {"python": python, "node": file_tool("node", pyz, file="envbuild-node.pyz")}


def _place(tmp_path: Path, nodes: list[Node], tools: dict[str, Tool]) -> list[TaskEvent]:
    payload = tmp_path / "pay load {{ 7*7 }}.sh"
    write_payload(payload, list(tools.values()), prefix=PREFIX, packed=True)
    hosts = tuple(
        NodeHost(
            node.address,
            tools["python"].path(PREFIX),
            tools["node"].path(PREFIX),
            payload=payload,
            prefix=PREFIX,
        )
        for node in nodes
    )
    events: list[TaskEvent] = []
    result = run_playbook(
        "provision.yml", Inventory(hosts, nodes[0].connection()), run_dir=tmp_path, on_event=events.append, forks=4,
        limits=Limits(600),
    )  # fmt: skip
    ended = [event for event in events if event.status not in ("started", "skipped")]
    assert result.status == "successful", ended
    return ended


def _probe(node: Node, python: str, tools: dict[str, Tool]) -> dict[str, object]:
    request = {
        "protocol": 1,
        "verb": "probe",
        "run": "test",
        "prefix": PREFIX,
        "args": {
            "node": node.address,
            "files": [],
            "reach": {},
            "pythons": ["3.6"],
            "base_packages": False,
            "tmp": "/tmp",
        },
    }
    done = node.run([python, tools["node"].path(PREFIX), "probe"], stdin=json.dumps(request), check=False)
    assert done.returncode == 0, done.stderr
    response = json.loads(done.stdout)
    assert response["ok"], response
    return response["result"]  # type: ignore[no-any-return]


def test_two_nodes_without_python_get_one_and_run_the_node_program_with_it(
    fleet: Callable[..., list[Node]], tmp_path: Path, tools: dict[str, Tool]
) -> None:
    nodes = fleet(2, kind="bare")
    for node in nodes:
        assert node.run(["sh", "-c", "command -v python3 python perl-python || echo none"]).stdout.strip() == "none"
    assert [(event.role, event.status) for event in _place(tmp_path, nodes, tools)] == [("toolchain", "changed")] * 2
    for node in nodes:
        facts = _probe(node, tools["python"].path(PREFIX), tools)
        assert facts["os"]["id"] == "debian"  # type: ignore[index]
    assert [(event.role, event.status) for event in _place(tmp_path, nodes, tools)] == [("toolchain", "ok")] * 2


def test_a_node_whose_only_python_is_3_6_runs_the_probe_with_that_and_takes_the_toolchain(
    fleet: Callable[..., list[Node]], tmp_path: Path, tools: dict[str, Tool]
) -> None:
    (node,) = fleet(1, kind="py36")
    modules = "import sys, json, ssl, ctypes, zlib, hashlib, bz2; print(sys.version_info[:2])"
    assert node.run(["python3", "-c", modules]).stdout == "(3, 6)\n"
    _place(tmp_path, [node], tools)
    assert node.run([tools["python"].path(PREFIX), "-c", "import ssl, ctypes, lzma, sqlite3"]).stdout == ""
    facts = _probe(node, "python3", tools)
    assert any(python["version"].startswith("3.6") for python in facts["pythons"])  # type: ignore[attr-defined]


def test_nodes_are_separate_and_a_wrong_host_key_is_refused(fleet: Callable[..., list[Node]], tmp_path: Path) -> None:
    one, two = fleet(2, kind="bare")
    one.run(["touch", "/opt/only-here"])
    assert two.run(["test", "-e", "/opt/only-here"], check=False).returncode == 1
    assert one.run(["hostname"]).stdout == "node1\n"
    wrong = tmp_path / "known_hosts"
    key = next(line for line in one.known_hosts.read_text().splitlines() if line.startswith(two.address))
    wrong.write_text(key.replace(two.address, one.address) + "\n")
    connection = one.connection().model_copy(update={"known_hosts": str(wrong)})
    host = NodeHost(one.address, "/usr/bin/python3", "/x", requests={"install": wrong})
    events: list[TaskEvent] = []
    result = run_playbook(
        "provision.yml", Inventory((host,), connection), run_dir=tmp_path, on_event=events.append, forks=1,
        limits=Limits(600),
    )  # fmt: skip
    assert result.nodes[one.address].status == "unreachable"
    # Ansible sometimes notices that ssh went away before it reads why.
    said = result.nodes[one.address].message
    assert "Host key verification failed" in said or "could not be sent" in said
