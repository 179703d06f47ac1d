"""The engine conda on two real SSH nodes that reach nothing: all is delivered, packed once, and verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.fleet_world import PREFIX, FleetWorld, checks
from tests.fleet.nodes import StartNodes
from tests.node.forge import ACTIVATED, FILES
from tests.support.conda import section

pytestmark = [pytest.mark.slow, pytest.mark.nodes]


def test_two_nodes_without_a_network_get_one_verified_environment(
    fleet: StartNodes, tmp_path: Path, conda_python: Path, standalone_python: Path
) -> None:
    nodes, world = fleet(2, kind="gcc", tools=True), FleetWorld(tmp_path, standalone_python)
    build = {"kind": "wheel", "extensions": ["quick._fast"]}
    quick = {**world.repository("quick", {**FILES, **ACTIVATED}), "build": build}
    # The nodes have a compiler and no Python: py-rattler runs under the one that is brought.
    world.locked(
        packages=["alpha==1.0"], conda=section(tmp_path / "forge", conda_python),
        sources=[{**world.source, "install": "path"}, quick], imports=["alpha", "gamma", "pure", "quick.activated"],
    )  # fmt: skip
    world.target(nodes)
    found = world.fleet("provision", "--engine", "conda", timeout=600.0, rc=0).nodes
    assert len({evidence["root"] for evidence in found.values()}) == 1
    python = f"{PREFIX}/current/tiny/bin/python"
    for node in nodes:
        assert checks(found[node.address])["smoke/sound"] == "passed"
        assert node.run([python, "-c", "import gamma, pure, sys; print(sys.prefix)"]).stdout.startswith(PREFIX)
        assert node.run([python, "-c", "import quick._fast as f; print(f.answer())"]).stdout == "7\n"
        assert node.run([f"{PREFIX}/current/tiny/bin/pure-run"]).stdout == "pure\n"
        assert node.run(["sh", "-c", f"ls {PREFIX}/store/*/conda 2>&1 || true"]).stdout.find("forge") < 0
    assert world.fleet("provision", "--engine", "conda").statuses[nodes[0].address] == "unchanged"
    nodes[1].run(["sh", "-c", f"printf x >> {PREFIX}/current/tiny/lib/libtool.so"])
    drift = {name: evidence["drift"] for name, evidence in world.fleet("verify", rc=8).nodes.items()}
    said = {"path": "lib/libtool.so", "kind": "changed", "package": "tool 2.0 h1_3"}
    assert drift == {nodes[0].address: [], nodes[1].address: [said]}
