"""Through a real Slurm: a stack with torch and a source build on four nodes, two of which meet as one torchrun job.

Torch is the stand-in of `light_torch`, whose ranks meet and sum over sockets; with a real one nodes meet in
`tests/fleet/test_together.py`, inside an image in `test_image_job.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.node.forge import FILES, need_compiler
from tests.slurm.cluster import NODES
from tests.slurm.job_world import JOINT, JobWorld, joint
from tests.support.torch_stack import torch_stack

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(1500)]


def test_one_command_builds_on_four_nodes_and_two_of_them_meet(world: JobWorld) -> None:
    need_compiler()
    source = {**world.repository("quick", FILES), "build": {"kind": "wheel", "extensions": ["quick._fast"]}}
    torch_stack(world, light=True, sources=[source], imports=["torch", "quick._fast"])
    more: dict[str, Any] = {"smoke_nodes": 2, "floors": {"multi_node_busbw_gbps": 0.00001}}
    world.target(scheduler={"nodes": NODES, "time_limit": "30m"}, **more)
    done = world.job(timeout=1200, rc=0)
    assert len(done.nodes) == NODES
    assert len({node["root"] for node in done.nodes.values()}) == 1
    met = joint(done)
    assert sorted(met) == ["gpu1", "gpu2"], "the first two nodes"
    for check in met.values():
        assert check["status"] == "passed", check
        assert (check["details"]["ranks"], check["details"]["nodes"], check["details"]["backend"]) == (4, 2, "gloo")
        assert check["metrics"][0]["name"] == "multi_node_busbw_gbps"
        assert check["metrics"][0]["floor"] == 0.00001
    page = (world.runs / done.json["run"] / "report.html").read_text()
    assert JOINT in page and "multi_node_busbw_gbps" in page
    world.nothing_to_do()
