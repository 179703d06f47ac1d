"""Through a real Slurm: a stack with torch and a source build on four nodes, two of which meet as one torchrun job.

And nodes that meet inside an image: with a stand-in for Apptainer (`test_image_job.py`). Torch is the stand-in of
`light_torch`, whose ranks meet and sum over sockets; with a real one nodes meet in `tests/fleet/test_together.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.container.storage import PYTHON
from tests.e2e.world import Done
from tests.node.forge import FILES, need_compiler
from tests.slurm import test_image_job as images
from tests.slurm.cluster import NODES
from tests.slurm.job_world import JobWorld, by_node
from tests.support.torch_stack import torch_stack

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(1500)]
JOINT = "smoke/nodes/all-reduce"
storage, image_world = images.storage, images.world


def joint(done: Done) -> dict[str, dict[str, Any]]:
    """The check of the joint test by node."""
    return {name: check for name, node in by_node(done).items() for check in node["checks"] if check["name"] == JOINT}


def test_one_command_builds_on_four_nodes_and_two_of_them_meet(world: JobWorld) -> None:
    need_compiler()
    source = {**world.repository("quick", FILES), "build": {"kind": "wheel", "extensions": ["quick._fast"]}}
    torch_stack(world, light=True, sources=[source], imports=["torch", "quick._fast"])
    more: dict[str, Any] = {"smoke_nodes": 2, "floors": {"multi_node_busbw_gbps": 0.00001}}
    world.target(scheduler={"nodes": NODES, "time_limit": "30m"}, **more)
    done = world.job(timeout=1200)
    nodes = by_node(done)
    assert done.rc == 0, done.err[-3000:]
    assert len(nodes) == NODES
    assert len({node["root"] for node in nodes.values()}) == 1
    met = joint(done)
    assert sorted(met) == ["gpu1", "gpu2"], "the first two nodes"
    for check in met.values():
        assert check["status"] == "passed", check
        assert (check["details"]["ranks"], check["details"]["nodes"], check["details"]["backend"]) == (4, 2, "gloo")
        assert check["metrics"][0]["name"] == "multi_node_busbw_gbps"
        assert check["metrics"][0]["floor"] == 0.00001
    page = (world.runs / done.json["run"] / "report.html").read_text()
    assert JOINT in page and "multi_node_busbw_gbps" in page
    again = world.job()
    assert (again.rc, world.submitted()) == (0, [])


def test_nodes_of_a_job_meet_inside_their_image_when_all_are_well(image_world: JobWorld) -> None:
    world = image_world
    torch_stack(world, light=True, python=[PYTHON])
    floors = {"multi_node_busbw_gbps": 0.00001}
    world.target(engine="container", placement="image", container=images.section(world), floors=floors)
    done = world.job(timeout=images.LONG)
    assert done.rc == 0, (done.err, by_node(done))
    met = joint(done)
    assert sorted(met) == ["gpu1", "gpu2"]
    for check in met.values():
        assert check["status"] == "passed", check
        assert (check["details"]["ranks"], check["details"]["nodes"], check["details"]["backend"]) == (4, 2, "gloo")
        assert (check["metrics"][0]["name"], check["metrics"][0]["floor"]) == (*floors, *floors.values())
    again = world.job()
    assert (again.rc, world.submitted()) == (0, [])

    floors = {"multi_node_busbw_gbps": 1e6}
    world.target(engine="container", placement="image", container=images.section(world), floors=floors)
    slow = world.job(verb="smoke", timeout=images.LONG)
    assert (slow.rc, {check["status"] for check in joint(slow).values()}) == (6, {"failed"}), slow.err
    assert len(world.submitted()) == 1

    # One node sees another file: it is named, and nobody waits for it.
    (file,) = (world.prefix / "images").glob("*.sif")
    bad = world.top / "bad.sif"
    bad.write_bytes(b"damaged")
    images._in_node(world, "gpu2", "mount", "--bind", str(bad), str(file))
    try:
        broken = world.job(verb="smoke", timeout=images.LONG)
    finally:
        images._in_node(world, "gpu2", "umount", str(file))
    assert {name: node["exit"] for name, node in by_node(broken).items()} == {"gpu1": 0, "gpu2": 1}, broken.err
    assert joint(broken) == {}
    assert "not measured: multi_node_busbw_gbps" in str(broken.json["warnings"])
