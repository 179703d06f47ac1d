"""Nodes install from a bundle that this machine brings, build once on one prefix, go in waves, and are compared."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld, by_node, checks, listing
from tests.fleet.nodes import Node, StartNodes
from tests.fleet.test_build_once import steps_of

pytestmark = [pytest.mark.slow, pytest.mark.nodes]


def left(node: Node) -> str:
    """What lies beside the environments of a node that should not."""
    return node.run(["sh", "-c", f"cd {PREFIX} && ls -A store | grep -v '^wheels$'"], check=False).stdout


def test_every_node_installs_from_the_bundle_and_gets_the_root_of_all_others(
    fleet: StartNodes, world: FleetWorld
) -> None:
    nodes = fleet(2, kind="bare")
    world.target(nodes)
    done = world.fleet("provision", timeout=400)
    assert done.rc == 0, done.err
    found = by_node(done)
    assert {item["status"] for item in found.values()} == {"ok"}
    assert len({item["root"] for item in found.values()}) == 1
    for key in ("packages", "sources"):
        assert len({json.dumps(item[key], sort_keys=True) for item in found.values()}) == 1
    steps = steps_of(world)
    whole = ["toolchain", "toolchain", "deliver", "install", "smoke", "activate"]
    assert steps == {node.address: whole for node in nodes}
    assert [left(node) for node in nodes] == [""] * 2, "bundles go with what was unpacked from them"
    assert world.fleet("verify").rc == 0

    again = world.fleet("provision")
    assert (again.rc, again.json["steps_run"]) == (0, 0)

    (later,) = fleet(1, kind="bare")
    world.target([*nodes, later])
    more = world.fleet("provision")
    assert more.rc == 0, more.err
    assert by_node(more)[later.address]["root"] == found[nodes[0].address]["root"]
    assert set(steps_of(world)) == {later.address}


def over_ssh(node: Node, script: str) -> list[str]:
    options = ["-F", "none", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={node.known_hosts}"]
    return ["ssh", *options, "-i", str(node.identity), f"root@{node.address}", "--", script]


def test_each_fault_ends_its_own_node_and_the_same_command_does_the_rest(fleet: StartNodes, world: FleetWorld) -> None:
    nodes = fleet(3, kind="bare", tools=True)
    first, killed, flipped = nodes
    world.target(nodes)
    # As a disk that fails would: another byte as soon as the bundle is there.
    flip = (
        f"until f=$(ls {PREFIX}/store/*/bundle.tar 2>/dev/null); do sleep 0.01; done; "
        "printf '\\377' | dd of=$f bs=1 seek=5000 conv=notrunc status=none"
    )
    watch = "until pkill -9 -f '^/[^ ]*python[^ ]* .*[p]yz install'; do sleep 0.02; done"
    with (
        subprocess.Popen(over_ssh(killed, watch), stdin=subprocess.DEVNULL) as killer,
        subprocess.Popen(over_ssh(flipped, flip), stdin=subprocess.DEVNULL) as flipper,
    ):
        done = world.fleet("provision", timeout=400)
        killer.kill()
        flipper.kill()
    found = by_node(done)
    assert {node.name: found[node.address]["status"] for node in nodes} == {
        first.name: "ok", killed.name: "failed", flipped.name: "failed",
    }, done.err  # fmt: skip
    assert done.rc == 5, done.err
    assert found[killed.address]["error"]["code"] == "step-failed"
    assert (found[flipped.address]["error"]["code"], found[flipped.address]["exit"]) == ("bundle-damaged", 5)
    for node in (killed, flipped):
        assert node.run(["ls", f"{PREFIX}/current"], check=False).stdout == "", "nothing was made current"

    again = world.fleet("provision", timeout=400)
    assert again.rc == 0, again.err
    assert set(steps_of(world)) == {killed.address, flipped.address}
    told = by_node(again)
    assert {item["root"] for item in told.values()} == {found[first.address]["root"]}
    assert told[first.address]["status"] == "unchanged"


def test_a_bundle_that_the_user_gives_is_brought_in_waves_and_nothing_is_fetched(
    fleet: StartNodes, world: FleetWorld
) -> None:
    nodes = fleet(3, kind="bare", tools=True)
    world.target(nodes)
    world.good("bundle", "create", f"./{STACK}.yaml", "--target", "./nodes.yaml", "-o", "b.tar", timeout=400)
    shutil.rmtree(world.wheels)
    shutil.rmtree(world.hub)
    shutil.rmtree(world.home / ".cache" / "envbuild" / "artifacts")
    world.wheels.mkdir()
    done = world.fleet("provision", "--bundle", "b.tar", "--batch", "2", timeout=400)
    assert done.rc == 0, done.err
    found = by_node(done)
    assert len({item["root"] for item in found.values()}) == 1
    assert all(item["sources"][0]["bundle"] for item in found.values())
    assert [event["data"]["nodes"] for event in world.events() if event["kind"] == "wave-started"] == [
        [nodes[0].address, nodes[1].address], [nodes[2].address],
    ]  # fmt: skip


def test_on_one_prefix_one_node_builds_and_the_others_test_it(fleet: StartNodes, world: FleetWorld) -> None:
    nodes = fleet(2, kind="full")
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
    assert [set(checks(found[name])) for name in others] == [tested], "all have run the smoke test"
    again = world.fleet("provision")
    assert (again.rc, again.json["steps_run"]) == (0, 0)


# What another build of the same would have left: one file and the root that follows from it.
_OTHER_BUILD = """
import glob, json, sys
sys.path.insert(0, glob.glob("{prefix}/tools/*/envbuild-node.pyz")[0])
from envbuild.node import merkle
folder = "{prefix}/current/{stack}/.envbuild/"
files = json.load(open(folder + "files.json"))
path = next(name for name in files if name.endswith("alpha/__init__.py"))
files[path][1] = "f" * 64
stamp = json.load(open(folder + "stamp.json"))
stamp["root"] = merkle.root_of(files)
json.dump(files, open(folder + "files.json", "w"))
json.dump(stamp, open(folder + "stamp.json", "w"))
"""


def test_roots_are_compared_and_what_differs_is_named(fleet: StartNodes, world: FleetWorld) -> None:
    nodes = fleet(3, kind="full", tools=True)
    first, second, third = (node.address for node in nodes)
    world.target(nodes)
    done = world.fleet("provision")
    assert done.rc == 0, done.err
    equality = done.json["equality"]
    assert (equality["nodes"], equality["deviating"]) == ([first, second, third], [])
    assert equality["root"] == by_node(done)[first]["root"]
    shown = world.good("verify", "--target", "./nodes.yaml")
    assert f"3 nodes, one root {equality['root'][:12]}" in shown.out
    assert f"3 nodes, one root {equality['root'][:12]}" in (world.last_run / "report.md").read_text()

    nodes[1].run(["python3", "-c", _OTHER_BUILD.format(prefix=PREFIX, stack=STACK)])
    other = world.fleet("verify", "--quick")
    assert other.rc == 0, "each is what its own stamp says"
    (deviation,) = other.json["equality"]["deviating"]
    assert deviation["nodes"] == [second]
    (line,) = deviation["differs"]
    assert line.startswith("1 of ")
    assert line.endswith("alpha/__init__.py")
    # D106
    again = world.fleet("provision")
    assert again.rc == 8, "one of three nodes"
    error = by_node(again)[second]["error"]
    assert (error["code"], error["exit"]) == ("drift", 1)
    assert "--repair` builds it again" in error["hint"]

    file = nodes[2].run(["find", f"{PREFIX}/current/{STACK}/", "-path", "*/beta/__init__.py"]).stdout.strip()
    nodes[2].run(["sh", "-c", f"echo '# tampered' >> '{file}'"])
    deep = world.run("verify", "--target", "./nodes.yaml")
    assert deep.rc == 8
    assert third in deep.out
    assert "/beta/__init__.py" in deep.out
    html = (world.last_run / "report.html").read_text()
    assert "Deviating nodes" in html
    assert "/beta/__init__.py" in html


def _waves(world: FleetWorld) -> list[list[str]]:
    return [event["data"]["nodes"] for event in world.events() if event["kind"] == "wave-started"]


def test_waves_follow_each_other_and_end_when_too_many_nodes_have_failed(fleet: StartNodes, world: FleetWorld) -> None:
    first, broken, third, fourth = fleet(4, kind="full", tools=True)
    world.target([first, broken, third, fourth])
    # A folder where the link of the environment in use belongs: everything goes well until it is to be switched.
    broken.run(["mkdir", "-p", f"{PREFIX}/current/{STACK}/in-the-way"])
    before = {node.address: listing(node) for node in (third, fourth)}

    done = world.fleet("provision", "--batch", "25%", "--max-fail", "0")
    found = by_node(done)
    assert {address: item["status"] for address, item in found.items()} == {
        first.address: "ok", broken.address: "failed", third.address: "not-begun", fourth.address: "not-begun",
    }, done.err  # fmt: skip
    assert found[third.address]["error"]["code"] == "not-begun"
    assert found[third.address]["exit"] == 75
    assert "1 of 4 failed, `--max-fail` allows 0" in found[third.address]["error"]["why"]
    assert done.rc == found[broken.address]["exit"] or done.rc == 8
    assert _waves(world) == [[first.address], [broken.address]]
    assert {node.address: listing(node) for node in (third, fourth)} == before, "nothing was done there"

    broken.run(["rm", "-r", f"{PREFIX}/current/{STACK}"])
    again = world.fleet("provision", "--batch", "2", "--max-fail", "0")
    assert again.rc == 0, again.err
    found = by_node(again)
    assert found[first.address]["status"] == "unchanged"
    assert {found[node.address]["status"] for node in (broken, third, fourth)} == {"ok"}, again.err
    assert len({item["root"] for item in found.values()}) == 1
    assert _waves(world) == [[broken.address, third.address], [fourth.address]]


def test_a_fleet_of_which_too_much_is_silent_is_not_touched(fleet: StartNodes, world: FleetWorld) -> None:
    (there,) = fleet(1, kind="full")
    before = listing(there)
    world.target([there], hosts=[there.address, there.address.rpartition(".")[0] + ".200"])
    done = world.fleet("provision", "--max-fail", "25%", "--host", there.address, "--host", "10.255.255.1")
    assert {item["status"] for item in by_node(done).values()} == {"not-begun", "unreachable"}
    assert listing(there) == before
