"""The engine conda on two real SSH nodes that reach nothing: all is delivered, packed once, and verified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.fleet_world import PREFIX, FleetWorld, by_node, checks
from tests.fleet.nodes import Node
from tests.node.forge import ACTIVATED, FILES
from tests.support.conda import Channel, fill

pytestmark = [pytest.mark.slow, pytest.mark.nodes]


def test_two_nodes_without_a_network_get_one_verified_environment(
    fleet: Callable[..., list[Node]], tmp_path: Path, conda_python: Path, world: FleetWorld
) -> None:
    nodes = fleet(2, kind="gcc", tools=True)
    channel = fill(Channel(tmp_path / "forge", "forge"), conda_python)
    section: dict[str, Any] = {"channels": [{"name": "forge", "url": channel.url}], "packages": ["tool", "pure"]}
    build = {"kind": "wheel", "extensions": ["quick._fast"]}
    quick = {**world.repository("quick", {**FILES, **ACTIVATED}), "build": build}
    sources = [{**world.source, "install": "path"}, quick]
    imports = ["alpha", "gamma", "pure", "quick.activated"]
    # The nodes have a compiler and no Python: py-rattler runs under the one that is brought.
    world.lock(world.stack("own", interpreters=["standalone"], conda=section, sources=sources, imports=imports))
    world.target(nodes, stack="./own.yaml")
    done = world.fleet("provision", "--engine", "conda", timeout=600.0)
    found = by_node(done)
    assert done.rc == 0, done.err
    assert len({evidence["root"] for evidence in found.values()}) == 1
    python = f"{PREFIX}/current/own/bin/python"
    for node in nodes:
        assert checks(found[node.address])["smoke/sound"] == "passed"
        assert node.run([python, "-c", "import gamma, pure, sys; print(sys.prefix)"]).stdout.startswith(PREFIX)
        assert node.run([python, "-c", "import quick._fast as f; print(f.answer())"]).stdout == "7\n"
        assert node.run([f"{PREFIX}/current/own/bin/pure-run"]).stdout == "pure\n"
        assert node.run(["sh", "-c", f"ls {PREFIX}/store/*/conda 2>&1 || true"]).stdout.find("forge") < 0
    assert by_node(world.fleet("provision", "--engine", "conda"))[nodes[0].address]["status"] == "unchanged"
    nodes[1].run(["sh", "-c", f"printf x >> {PREFIX}/current/own/lib/libtool.so"])
    deep = world.fleet("verify")
    assert deep.rc == 8, deep.err
    drift = {name: evidence["drift"] for name, evidence in by_node(deep).items()}
    said = {"path": "lib/libtool.so", "kind": "changed", "package": "tool 2.0 h1_3"}
    assert drift == {nodes[0].address: [], nodes[1].address: [said]}
