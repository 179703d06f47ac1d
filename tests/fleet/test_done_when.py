"""The whole way over SSH: four nodes, a compiled source, a node that dies half-way, a file that is tampered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.world import ended
from tests.fleet.faults import WAIT, hold, release, start, wait_for, wait_held
from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld, checks
from tests.fleet.nodes import Fleet, Node, StartNodes
from tests.fleet.test_build_once import SAYS, lock

pytestmark = [pytest.mark.slow, pytest.mark.nodes, pytest.mark.timeout(900)]


def _environment(node: Node) -> str:
    """All that is in use, with times, but for packs for other nodes and the bytecode that a Python keeps of itself."""
    places = [f"{PREFIX}/{name}" for name in ("envs", "current", "tools", "modulefiles")]
    python = ["-path", f"{PREFIX}/tools/python-*"]
    own = [*python, "-name", "__pycache__", "-prune", "-o", *python, "-type", "d", "-printf", "%p %y %m\\n", "-o"]
    return node.run(["find", *places, *own, "-printf", "%p %y %m %s %T@\\n"]).stdout


def test_four_nodes_one_dies_half_way_and_the_same_command_touches_only_that_one(
    fleet: StartNodes, fleet_network: Fleet, tmp_path: Path, standalone_python: Path
) -> None:
    world = FleetWorld(tmp_path, standalone_python)
    # It waits at its import where it is told to.
    lock(world, {"quick/__init__.py": WAIT + 'wait("import")\n'}, imports=["alpha", "quick"])
    nodes = [*fleet(1, kind="gcc", tools=True), *fleet(1, kind="bare", tools=True), *fleet(2, kind="full", tools=True)]
    for node in nodes[:2]:
        assert node.run(["sh", "-c", "command -v python3 python"], check=False).stdout == ""
    victim, others = nodes[3], nodes[:3]
    world.target(nodes)
    hold(victim, "import")
    process = start(world)
    wait_held([victim], "import", process)
    # The others have time to finish: what is killed is one node, in the middle of its smoke test.
    wait_for("the others", lambda: all(node.file(f"{PREFIX}/current/{STACK}").is_symlink() for node in others), process)
    fleet_network.kill(victim)
    done = ended(process)
    assert done.rc == 8, done.err
    assert done.statuses == {victim.address: "unreachable", **{node.address: "ok" for node in others}}
    found = done.nodes
    assert len({found[node.address]["root"] for node in others}) == 1
    error = found[victim.address]["error"]
    assert (error["code"], found[victim.address]["exit"]) == ("node-unreachable", 3)
    assert "the step `install`" in error["what"], "where what was compiled is imported first"
    assert error["why"], "the last lines"
    assert [node.run(SAYS).stdout for node in others] == ["42\n"] * 3

    fleet_network.boot(victim)
    release(victim, "import")
    assert victim.run(["test", "-e", f"{PREFIX}/current/{STACK}"], check=False).returncode == 1, "half an environment"
    before = [_environment(node) for node in others]
    again = world.fleet("provision", timeout=280, rc=0)
    assert again.statuses == {victim.address: "ok", **{node.address: "unchanged" for node in others}}
    assert {*world.steps} == {victim.address}
    assert [_environment(node) for node in others] == before
    assert len({item["root"] for item in again.nodes.values()}) == 1
    assert victim.run(SAYS).stdout == "42\n"
    assert checks(again.nodes[victim.address])["smoke/sound"] == "passed"
    (root,) = {item["root"] for item in again.nodes.values()}
    (page,) = world.last_run.glob("*.html")
    assert root[:12] in page.read_text()

    file = f"{PREFIX}/current/{STACK}/lib/python3*/site-packages/alpha/__init__.py"
    nodes[2].run(["sh", "-c", f"sed -i s/1.0/6.6/ {file}"])
    found = world.fleet("verify", rc=8).nodes
    drifted = {name: [each["path"] for each in item["drift"]] for name, item in found.items() if item["drift"]}
    assert list(drifted) == [nodes[2].address]
    assert [path.endswith("alpha/__init__.py") for path in drifted[nodes[2].address]] == [True]
    assert all(item["exit"] == 0 for name, item in found.items() if name != nodes[2].address)
