"""One node of a fleet builds, and its environment goes from node to node; what fails can be gone on with."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld, by_node, checks
from tests.fleet.nodes import Fleet, Node
from tests.fleet.test_build_once import steps_of

pytestmark = [pytest.mark.slow, pytest.mark.nodes]
StartNodes = Callable[..., list[Node]]


@pytest.fixture
def world(tmp_path: Path, standalone_python: Path) -> FleetWorld:
    return FleetWorld(tmp_path, standalone_python)


def journeys(world: FleetWorld) -> list[dict[str, Any]]:
    return [event for event in world.events() if event["kind"] == "spread"]


def left(node: Node) -> str:
    """What lies in the folders that spreading uses, apart from the environment."""
    return node.run(
        ["sh", "-c", f"cd {PREFIX} && ls -A store/packs envs | grep -v '^{STACK}-exact-[0-9a-f]*$'"], check=False
    ).stdout


def test_one_node_builds_and_the_others_take_it_over_from_each_other(fleet: StartNodes, world: FleetWorld) -> None:
    nodes = fleet(4, kind="bare")
    world.target(nodes)
    done = world.fleet("provision", timeout=400)
    assert done.rc == 0, done.err
    found = by_node(done)
    first, *others = (node.address for node in nodes)
    assert {item["status"] for item in found.values()} == {"ok"}
    assert len({item["root"] for item in found.values()}) == 1
    for key in ("packages", "sources"):
        assert len({json.dumps(item[key], sort_keys=True) for item in found.values()}) == 1
    assert f"built once for 4 nodes: {', '.join(others[:2])} and {others[2]} take it over" in done.err
    (told,) = journeys(world)
    assert (told["node"], told["data"]["to"], told["data"]["sent"]) == (first, others, [])
    assert told["data"]["bytes"] < 5e6, "the interpreter is on all nodes"
    steps = steps_of(world)
    assert steps[first] == ["toolchain", "toolchain", "deliver", "install", "smoke", "activate"]
    assert all(steps[name] == ["toolchain", "toolchain", "unpack", "smoke", "activate"] for name in others)
    assert [left(node) for node in nodes] == ["envs:\n\nstore/packs:\n"] * 4
    assert not list(world.last_run.glob("spread-*"))
    assert world.fleet("verify", "--deep").rc == 0

    again = world.fleet("provision")
    assert (again.rc, again.json["steps_run"]) == (0, 0)

    (later,) = fleet(1, kind="bare")
    world.target([*nodes, later])
    more = world.fleet("provision")
    assert more.rc == 0, more.err
    assert by_node(more)[later.address]["root"] == found[first]["root"]
    assert set(steps_of(world)) == {later.address}
    assert f"take over the environment of {first}" in more.err


# After the pack has come, as a disk that fails would: `HOOK` is a command of this machine.
FLIPS = """
import json, os, subprocess, sys
from envbuild.provision.fleet import distribute as spread

along = spread._Run._along_trees

def flipping(self, journey):
    along(self, journey)
    subprocess.run(json.loads(os.environ["HOOK"]), check=True, stdin=subprocess.DEVNULL)

spread._Run._along_trees = flipping
from envbuild.cli.entry import main
sys.argv[0] = "envbuild"
sys.exit(main())
"""


def over_ssh(node: Node, script: str) -> list[str]:
    options = ["-F", "none", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={node.known_hosts}"]
    return ["ssh", *options, "-i", str(node.identity), f"root@{node.address}", "--", script]


def test_each_fault_ends_its_own_node_and_the_same_command_does_the_rest(fleet: StartNodes, world: FleetWorld) -> None:
    nodes = fleet(4, kind="bare", tools=True)
    first, killed, flipped, cut = nodes
    world.target(nodes)
    # The tree is first -> killed, first -> flipped, killed -> cut.
    cut.run(["ip", "route", "add", "unreachable", killed.address])
    flip = f"f=$(ls {PREFIX}/store/packs/*.tar) && printf '\\377' | dd of=$f bs=1 seek=70000 conv=notrunc status=none"
    watch = "until pkill -9 -f '^/[^ ]*python[^ ]* .*[p]yz unpack'; do sleep 0.02; done"
    with subprocess.Popen(over_ssh(killed, watch), stdin=subprocess.DEVNULL) as killer:
        hook = {"HOOK": json.dumps(over_ssh(flipped, flip))}
        done = world.fleet("provision", code=["-c", FLIPS], env=hook, timeout=400)
        killer.kill()
    found = by_node(done)
    assert {node.name: found[node.address]["status"] for node in nodes} == {
        first.name: "ok", killed.name: "failed", flipped.name: "failed", cut.name: "ok",
    }, done.err  # fmt: skip
    assert done.rc == 5, done.err
    assert found[killed.address]["error"]["code"] == "step-failed"
    assert (found[flipped.address]["error"]["code"], found[flipped.address]["exit"]) == ("pack-damaged", 5)
    for node in (killed, flipped):
        assert node.run(["ls", f"{PREFIX}/current"], check=False).stdout == "", "nothing was made current"
    (said,) = [text for text in done.json["warnings"] if text.startswith("this machine sent")]
    assert f"to {cut.address}, which could not get it from another node" in said
    assert journeys(world)[0]["data"]["sent"] == [cut.address]

    again = world.fleet("provision", timeout=400)
    assert again.rc == 0, again.err
    assert set(steps_of(world)) == {killed.address, flipped.address}
    told = by_node(again)
    assert {item["root"] for item in told.values()} == {found[first.address]["root"]}
    assert {told[node.address]["status"] for node in (first, cut)} == {"unchanged"}
    assert [left(node) for node in nodes] == ["envs:\n\nstore/packs:\n"] * 4


def test_each_file_is_fetched_once_for_all_nodes(fleet: StartNodes, fleet_network: Fleet, world: FleetWorld) -> None:
    asked: list[str] = []

    class Index(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

        def log_message(self, *arguments: object) -> None:
            pass

    simple = world.top / "index" / "simple"
    for wheel in world.wheels.glob("*.whl"):
        page = simple / wheel.name.split("-")[0]
        page.mkdir(parents=True)
        (page / wheel.name).write_bytes(wheel.read_bytes())
        (page / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>\n')
    nodes = fleet(3, kind="full", tools=True)
    world.lock(world.stack(STACK, packages=["alpha==1.0", "beta==2.0"], imports=["alpha", "beta"]))
    handler = partial(Index, directory=str(simple.parent))
    with ThreadingHTTPServer((fleet_network.gateway, 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        address = f"http://{fleet_network.gateway}:{server.server_port}/simple/"
        for node in nodes:
            node.run(
                ["sh", "-c", "cat > /etc/pip.conf"],
                stdin=f"[global]\nindex-url = {address}\ntrusted-host = {fleet_network.gateway}\n",
            )
        world.target(nodes, delivery="node")
        done = world.fleet("provision", timeout=400)
        server.shutdown()
    assert done.rc == 0, done.err
    assert len({item["root"] for item in by_node(done).values()}) == 1
    files = Counter(path.rpartition("/")[2] for path in asked if path.endswith(".whl"))
    assert dict(files) == dict.fromkeys((wheel.name for wheel in world.wheels.glob("*.whl")), 1)


def test_on_one_prefix_one_node_builds_and_the_others_test_it(fleet: StartNodes, world: FleetWorld) -> None:
    nodes = fleet(3, kind="full")
    world.target(nodes, prefix="/shared/envbuild", placement="shared")
    done = world.fleet("provision", timeout=400)
    assert done.rc == 0, done.err
    first, *others = (node.address for node in nodes)
    steps = steps_of(world)
    assert steps[first] == ["toolchain", "deliver", "install", "smoke", "activate"]
    assert all(steps[name][-1:] == ["smoke"] for name in others)
    assert all(set(steps[name]) <= {"toolchain", "smoke"} for name in others)
    found = by_node(done)
    assert len({item["root"] for item in found.values()}) == 1
    assert all(checks(item)["stamp"] == "passed" for item in found.values())
    tested = set(checks(found[first])) - {"record", "required"}
    assert [set(checks(found[name])) for name in others] == [tested] * 2, "all have run the smoke test"
    again = world.fleet("provision")
    assert (again.rc, again.json["steps_run"]) == (0, 0)
