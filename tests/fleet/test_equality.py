"""Fleet equality on real nodes: one root is one line; another one is told file by file; drift names node and file."""

from __future__ import annotations

import pytest

from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld, by_node
from tests.fleet.nodes import StartNodes

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
