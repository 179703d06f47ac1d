"""Nodes install from a bundle that this machine brings, build once on one prefix, go in waves, and are compared."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.fleet.faults import clear
from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld, checks, listing
from tests.fleet.nodes import Node, StartNodes

pytestmark = [pytest.mark.slow, pytest.mark.nodes]
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


def test_different_nodes_get_one_root_and_what_differs_later_is_named_by_node_and_file(
    fleet: StartNodes, world: FleetWorld
) -> None:
    nodes = [*fleet(1, kind="bare"), *fleet(1, kind="full")]
    bare, full = nodes
    world.target(nodes)
    found = world.fleet("provision", timeout=400, rc=0).nodes
    assert {item["status"] for item in found.values()} == {"ok"}
    for key in ("root", "environment", "packages", "sources"):
        assert len({json.dumps(item[key], sort_keys=True) for item in found.values()}) == 1
    usual = ["toolchain", "deliver", "install", "smoke", "activate"]
    assert world.steps == {bare.address: ["toolchain", *usual], full.address: usual}
    for node in nodes:
        # Bundles go with what was unpacked from them.
        assert node.run(["sh", "-c", f"cd {PREFIX} && ls -A store | grep -v '^wheels$'"], check=False).stdout == ""
    again = world.fleet("provision")
    assert (again.rc, again.json["steps_run"]) == (0, 0)

    nodes += fleet(1, kind="bare")
    world.target(nodes)
    more = world.fleet("provision", rc=0)
    first, second, third = (node.address for node in nodes)
    assert more.nodes[third]["root"] == found[first]["root"]
    assert world.steps == {third: ["toolchain", *usual]}
    equality = more.json["equality"]
    assert (equality["nodes"], equality["deviating"]) == ([first, second, third], [])
    assert equality["root"] == more.nodes[first]["root"]
    shown = world.good("verify", "--target", "./nodes.yaml")
    assert f"3 nodes, one root {equality['root'][:12]}" in shown.out
    assert f"3 nodes, one root {equality['root'][:12]}" in (world.last_run / "report.md").read_text()

    _drifted(world, *nodes)
    nodes[2].run(["sh", "-c", f"echo '# tampered' >> '{_module(nodes[2], 'beta')}'"])
    deep = world.run("verify", "--target", "./nodes.yaml", rc=8)
    html = (world.last_run / "report.html").read_text()
    assert third in deep.out and "Deviating nodes" in html
    assert "/beta/__init__.py" in deep.out and "/beta/__init__.py" in html


def _module(node: Node, name: str) -> str:
    return node.run(["find", f"{PREFIX}/current/{STACK}/", "-path", f"*/{name}/__init__.py"]).stdout.strip()


def _drifted(world: FleetWorld, bad: Node, other: Node, good: Node) -> None:
    """A file of one node is changed, one is another build: both are named, and a repair of them makes all equal."""
    bad.run(["sed", "-i", "s/1.0/1.1/", _module(bad, "alpha")])
    other.run(["python3", "-c", _OTHER_BUILD.format(prefix=PREFIX, stack=STACK)])
    quick = world.fleet("verify", "--quick", rc=0)
    assert {item["root_level"] for item in quick.nodes.values()} == {"stamped"}, "no contents are read then"
    (deviation,) = quick.json["equality"]["deviating"]
    assert deviation["nodes"] == [other.address]
    (line,) = deviation["differs"]
    assert line.startswith("1 of ")
    assert line.endswith("alpha/__init__.py")
    # D106
    error = world.fleet("provision", rc=8).nodes[other.address]["error"]
    assert (error["code"], error["exit"]) == ("drift", 1)
    assert "--repair` builds it again" in error["hint"]

    found = world.fleet("verify", rc=8).nodes
    assert (found[good.address]["exit"], found[good.address]["drift"]) == (0, [])
    assert found[bad.address]["exit"] == 1
    drift = [(item["kind"], item["path"].endswith("alpha/__init__.py")) for item in found[bad.address]["drift"]]
    assert drift == [("changed", True)]
    alone = world.run("verify", "--target", "./nodes.yaml", "--host", bad.address, rc=1)
    assert bad.address in alone.out
    assert "alpha/__init__.py" in alone.out
    repaired = world.fleet("provision", "--repair", "--host", bad.address, "--host", other.address, rc=0).nodes
    assert {item["root"] for item in repaired.values()} == {found[good.address]["root"]}
    world.fleet("verify", rc=0)


def over_ssh(node: Node, script: str) -> list[str]:
    options = ["-F", "none", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={node.known_hosts}"]
    return ["ssh", *options, "-i", str(node.identity), f"root@{node.address}", "--", script]


def test_each_fault_ends_its_own_node_and_a_bundle_of_the_user_comes_in_waves(
    fleet: StartNodes, world: FleetWorld
) -> None:
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
    found = done.nodes
    assert done.statuses == {first.address: "ok", killed.address: "failed", flipped.address: "failed"}, done.err
    assert done.rc == 5, done.err
    assert found[killed.address]["error"]["code"] == "step-failed"
    assert (found[flipped.address]["error"]["code"], found[flipped.address]["exit"]) == ("bundle-damaged", 5)
    for node in (killed, flipped):
        assert node.run(["ls", f"{PREFIX}/current"], check=False).stdout == "", "nothing was made current"

    again = world.fleet("provision", timeout=400, rc=0)
    assert {*world.steps} == {killed.address, flipped.address}
    assert {item["root"] for item in again.nodes.values()} == {found[first.address]["root"]}
    assert again.statuses[first.address] == "unchanged"

    # Nothing of what the user's bundle has is fetched.
    world.good("bundle", "create", f"./{STACK}.yaml", "--target", "./nodes.yaml", "-o", "b.tar", timeout=400)
    for folder in (world.wheels, world.hub, world.home / ".cache" / "envbuild" / "artifacts"):
        shutil.rmtree(folder)
    world.wheels.mkdir()
    for node in nodes:
        clear(node)
    found = world.fleet("provision", "--bundle", "b.tar", "--batch", "2", timeout=400, rc=0).nodes
    assert len({item["root"] for item in found.values()}) == 1
    assert all(item["sources"][0]["bundle"] for item in found.values())
    assert world.waves == [[first.address, killed.address], [flipped.address]]


def test_on_one_prefix_one_node_builds_and_the_others_test_it(fleet: StartNodes, world: FleetWorld) -> None:
    nodes = fleet(2, kind="full")
    world.target(nodes, prefix="/shared/envbuild", placement="shared")
    found = world.fleet("provision", timeout=400, rc=0).nodes
    first, *others = (node.address for node in nodes)
    steps = world.steps
    assert steps[first] == ["toolchain", "deliver", "install", "smoke", "activate"]
    assert all(steps[name][-1:] == ["smoke"] for name in others)
    assert all(set(steps[name]) <= {"toolchain", "smoke"} for name in others)
    assert len({item["root"] for item in found.values()}) == 1
    assert all(checks(item)["stamp"] == "passed" for item in found.values())
    tested = set(checks(found[first])) - {"record", "required"}
    assert [set(checks(found[name])) for name in others] == [tested], "all have run the smoke test"
    again = world.fleet("provision")
    assert (again.rc, again.json["steps_run"]) == (0, 0)


def test_waves_follow_each_other_and_end_when_too_many_nodes_have_failed(fleet: StartNodes, world: FleetWorld) -> None:
    first, broken, third, fourth = fleet(4, kind="full", tools=True)
    # One that is silent is too much for this limit: nothing is touched.
    untouched = listing(first)
    world.target([first], hosts=[first.address, first.address.rpartition(".")[0] + ".200"])
    done = world.fleet("provision", "--max-fail", "25%", "--host", first.address, "--host", "10.255.255.1")
    assert {*done.statuses.values()} == {"not-begun", "unreachable"}
    assert listing(first) == untouched

    world.target([first, broken, third, fourth])
    # A folder where the link of the environment in use belongs: everything goes well until it is to be switched.
    broken.run(["mkdir", "-p", f"{PREFIX}/current/{STACK}/in-the-way"])
    before = {node.address: listing(node) for node in (third, fourth)}

    done = world.fleet("provision", "--batch", "25%", "--max-fail", "0")
    found = done.nodes
    assert done.statuses == {
        first.address: "ok", broken.address: "failed", third.address: "not-begun", fourth.address: "not-begun",
    }, done.err  # fmt: skip
    assert found[third.address]["error"]["code"] == "not-begun"
    assert found[third.address]["exit"] == 75
    assert "1 of 4 failed, `--max-fail` allows 0" in found[third.address]["error"]["why"]
    assert done.rc == found[broken.address]["exit"] or done.rc == 8
    assert world.waves == [[first.address], [broken.address]]
    assert {node.address: listing(node) for node in (third, fourth)} == before, "nothing was done there"

    broken.run(["rm", "-r", f"{PREFIX}/current/{STACK}"])
    again = world.fleet("provision", "--batch", "2", "--max-fail", "0", rc=0)
    assert again.statuses == {first.address: "unchanged"} | {node.address: "ok" for node in (broken, third, fourth)}
    assert len({item["root"] for item in again.nodes.values()}) == 1
    assert world.waves == [[broken.address, third.address], [fourth.address]]
