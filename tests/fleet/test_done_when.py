"""The whole way over SSH: four nodes, a compiled source, a node that dies half-way, a file that is tampered with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.faults import WAIT, ended, hold, release, start, statuses, steps_of, wait_for, wait_held
from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld, by_node, checks
from tests.fleet.nodes import Fleet, Node
from tests.node.forge import FILES

pytestmark = [pytest.mark.slow, pytest.mark.nodes, pytest.mark.timeout(900)]
SAYS = ["sh", "-c", f"{PREFIX}/current/{STACK}/bin/python -c 'import quick._fast as f; print(f.answer())'"]


def _world(folder: Path, standalone: Path) -> FleetWorld:
    """A stack with a wheel and a C extension, which waits at its import where it is told to."""
    world = FleetWorld(folder, standalone)
    source: dict[str, Any] = dict(world.repository("quick", {**FILES, "quick/__init__.py": WAIT + 'wait("import")\n'}))
    source |= {"install": "wheel", "build": {"extensions": ["quick._fast"]}}
    stack = {"interpreters": ["standalone"], "sources": [source], "imports": ["alpha", "quick"]}
    world.lock(world.stack(STACK, packages=["alpha==1.0"], **stack))
    return world


def _environment(node: Node) -> str:
    """All that is in use, with times, but for packs for other nodes and the bytecode that a Python keeps of itself."""
    places = [f"{PREFIX}/{name}" for name in ("envs", "current", "tools", "modulefiles")]
    python = ["-path", f"{PREFIX}/tools/python-*"]
    own = [*python, "-name", "__pycache__", "-prune", "-o", *python, "-type", "d", "-printf", "%p %y %m\\n", "-o"]
    return node.run(["find", *places, *own, "-printf", "%p %y %m %s %T@\\n"]).stdout


def test_four_nodes_one_dies_half_way_and_the_same_command_touches_only_that_one(
    fleet: Callable[..., list[Node]], fleet_network: Fleet, tmp_path: Path, standalone_python: Path
) -> None:
    world = _world(tmp_path, standalone_python)
    nodes = [*fleet(1, kind="gcc", tools=True), *fleet(1, kind="bare", tools=True), *fleet(2, kind="full", tools=True)]
    for node in nodes[:2]:
        assert node.run(["sh", "-c", "command -v python3 python"], check=False).stdout == ""
    victim, others = nodes[3], nodes[:3]
    world.target(nodes)
    hold(victim, "import")
    process = start(world)
    wait_held([victim], "import", process)
    # The others have time to finish: what is killed is one node, in the middle of its smoke test.
    wait_for(
        "the others", lambda: all((node.file(f"{PREFIX}/current/{STACK}")).is_symlink() for node in others), process
    )
    fleet_network.kill(victim)
    done = ended(process)
    assert done.rc == 8, done.err
    assert statuses(done) == {victim.address: "unreachable", **{node.address: "ok" for node in others}}
    found = by_node(done)
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
    again = world.fleet("provision", timeout=280)
    assert again.rc == 0, again.err
    assert statuses(again) == {victim.address: "ok", **{node.address: "unchanged" for node in others}}
    assert set(steps_of(world)) == {victim.address}
    assert [_environment(node) for node in others] == before
    assert len({item["root"] for item in by_node(again).values()}) == 1
    assert victim.run(SAYS).stdout == "42\n"
    assert checks(by_node(again)[victim.address])["smoke/sound"] == "passed"
    (root,) = {item["root"] for item in by_node(again).values()}
    (page,) = world.last_run.glob("*.html")
    assert root[:12] in page.read_text()

    file = (
        nodes[2].run(["sh", "-c", f"ls -d {PREFIX}/envs/*/lib/python3*/site-packages/alpha/__init__.py"]).stdout.strip()
    )
    nodes[2].run(["sed", "-i", "s/1.0/6.6/", file])
    verified = world.fleet("verify")
    assert verified.rc == 8, verified.err
    drifted = {
        name: [each["path"] for each in item["drift"]] for name, item in by_node(verified).items() if item["drift"]
    }
    assert list(drifted) == [nodes[2].address]
    assert [path.endswith("alpha/__init__.py") for path in drifted[nodes[2].address]] == [True]
    assert all(item["exit"] == 0 for name, item in by_node(verified).items() if name != nodes[2].address)
