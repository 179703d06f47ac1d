"""Nodes that are not whom they should be, that talk too much, or whose facts are an attack."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tests.fleet import faults
from tests.fleet.faults import FaultWorld, imports
from tests.fleet.fleet_world import listing
from tests.fleet.nodes import Node, StartNodes

pytestmark = [pytest.mark.slow, pytest.mark.nodes, pytest.mark.timeout(900)]
Place = tuple[FaultWorld, list[Node]]
# A terminal's title, a cleared screen, a shell, a template, a page: none of it may act anywhere.
EVIL = (
    "\x1b]0;owned\x07\x1b[2J$(touch /srv/pwned)`touch /srv/pwned`{{7919*7927}}<script>alert(1)</script>"
    "|[x](javascript:1)"
)
SMI = """#!/usr/bin/env python3
import sys
evil = {evil!r}
if any(word.startswith("--query-gpu") for word in sys.argv):
    fields = sys.argv[1].partition("=")[2].split(",")
    known = {{"index": "0", "name": evil, "uuid": "GPU-" + evil, "memory.total": "81920", "driver_version": "550.54"}}
    print(", ".join(known.get(field, "[N/A]") for field in fields))
else:
    print("| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: 12.4 |" + evil)
"""


@pytest.fixture(scope="module")
def three(lasting_fleet: StartNodes, tmp_path_factory: pytest.TempPathFactory, standalone_python: Path) -> Place:
    """Three nodes, and a world with a stack."""
    world = FaultWorld(tmp_path_factory.mktemp("world"), standalone_python)
    return world, lasting_fleet(3, kind="full", tools=True)


def _with_another_key(node: Node, folder: Path) -> Path:
    """A known_hosts file in which one node has the key of another."""
    lines = node.known_hosts.read_text().splitlines()
    other = next(line.split(" ", 1)[1] for line in lines if not line.startswith(f"{node.address} "))
    changed = [f"{node.address} {other}" if line.startswith(f"{node.address} ") else line for line in lines]
    (folder / "known_hosts").write_text("\n".join([*changed, ""]))
    return folder / "known_hosts"


def test_a_node_with_another_key_is_left_alone_and_the_others_go_on(three: Place, tmp_path: Path) -> None:
    world, nodes = three
    wrong = nodes[1]
    good = [node for node in nodes if node is not wrong]
    before = listing(wrong)
    world.target(nodes, connection={"known_hosts": str(_with_another_key(wrong, tmp_path))})
    done = world.fleet("provision", timeout=300, rc=8)
    assert done.statuses == {wrong.address: "unreachable", **{node.address: "ok" for node in good}}
    error = done.nodes[wrong.address]["error"]
    assert error["code"] == "host-key-changed"
    assert len(set(re.findall(r"SHA256:\S+", error["why"]))) == 2, "the known one and the offered one"
    assert f"ssh-keygen -R '{wrong.address}' -f {tmp_path / 'known_hosts'}" in error["hint"]
    assert error["details"]["fingerprint"] in done.err
    assert listing(wrong) == before
    assert wrong.address not in world.steps

    world.target(nodes)
    again = world.fleet("provision", timeout=300, rc=0)
    assert again.statuses == {wrong.address: "ok", **{node.address: "unchanged" for node in good}}
    assert {*world.steps} <= {wrong.address, *(node.address for node in good)}
    assert {item["root"] for item in again.nodes.values()} == {done.nodes[good[0].address]["root"]}
    assert imports(wrong) == "1.0 1.0\n"


def test_a_node_that_prints_100_megabytes_costs_little_and_is_named(three: Place) -> None:
    world, nodes = three
    loud = nodes[2]
    world.target(nodes)
    loud.run(
        ["sh", "-c", "mv /root/.bashrc /root/.bashrc-away; cat > /root/.bashrc"], stdin="yes | head -c 100000000\n"
    )
    try:
        begun = time.monotonic()
        measured = world.top / "memory"
        code = (
            "import re, sys; from pathlib import Path\n"
            "from envbuild.cli.entry import main\n"
            "rc = main(sys.argv[1:])\n"
            # Not `ru_maxrss`, which begins with that of the process that started this one.
            "most = re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())\n"
            f"Path({str(measured)!r}).write_text(most[1])\n"
            "raise SystemExit(rc)\n"
        )
        done = world.fleet("doctor", "--facts-out", "facts.json", code=("-c", code), rc=3)
        seconds = time.monotonic() - begun
        assert set(done.json["facts"]) == {node.address for node in nodes[:2]}
        error = done.json["errors"][loud.address]
        assert (error["code"], error["exit"]) == ("contact-failed", 3)
        assert "16 MiB" in error["why"]
        assert int(measured.read_text()) < 300_000, "kilobytes that this machine needed for it"
        assert seconds < 200
    finally:
        loud.run(["mv", "/root/.bashrc-away", "/root/.bashrc"])


def test_facts_that_are_an_attack_act_nowhere(three: Place) -> None:
    world, nodes = three
    node = nodes[0]
    faults.clear(node)
    world.target([node], prefix="/opt/it's $(touch pwned); here")
    evil_python = f"/opt/{EVIL.replace('/', '_')}/bin"
    node.run(["python3", "-c", "import socket, sys; socket.sethostname(sys.argv[1])", EVIL.replace("/", "_")[:60]])
    node.run(
        ["sh", "-c", "cat > /usr/local/bin/nvidia-smi && chmod 755 /usr/local/bin/nvidia-smi"],
        stdin=SMI.format(evil=EVIL),
    )
    node.run(["mkdir", "-p", evil_python])
    node.run(["ln", "-s", "/usr/bin/python3", f"{evil_python}/python3"])
    try:
        before = node.run(["ls", "/srv"], check=False).stdout
        people = [
            world.run(*words, "--target", "./nodes.yaml")
            for words in (("doctor", "--facts-out", "facts.json"), ("plan",))
        ]
        done = world.run("provision", "--target", "./nodes.yaml")
        (found,) = json.loads((world.last_run / "evidence.json").read_text())["nodes"]
        assert done.rc == 0, found.get("error")
        shown = "".join(each.out + each.err for each in (*people, done))
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", shown), "no control character reaches a terminal"
        assert "touch /srv/pwned" in people[0].out, "the name itself is shown"
        (page,) = world.last_run.glob("*.html")
        (text,) = world.last_run.glob("*.md")
        assert "<script>alert" not in page.read_text()
        assert "<script>" not in text.read_text()
        for path in (page, text):
            assert "\x1b" not in path.read_text()
            assert "62773913" not in re.sub("[0-9a-f]{12,}", "", path.read_text())
        facts = world.fleet("doctor", "--facts-out", "facts.json").json["facts"][node.address]
        assert facts["gpus"][0]["name"].startswith(r"\x1b]0;owned"), "what no text may hold is named, as data too"
        assert node.run(["ls", "/srv"], check=False).stdout == before
        search = "find / -xdev -name '*pwned' -not -path '/proc/*' | grep -v touch"
        assert node.run(["sh", "-c", search], check=False).stdout == ""
        assert not list(world.top.rglob("pwned"))
    finally:
        node.run(["hostname", "node1"])
        node.run(["rm", "-f", "/usr/local/bin/nvidia-smi"])
