"""The commands of README and docs that speak of a cluster, as they are written, on a real Slurm."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.e2e.world import MINOR
from tests.slurm.cluster import Cluster
from tests.slurm.job_world import JobWorld
from tests.support.small_stacks import MEGATRON, Machine, Shelf
from tests.support.tutorial import TUTORIALS, follow
from tests.test_snippets import TOP, of, run, run_all
from tests.test_snippets_shipped import wrong

# As torchrun's ranks do: the first one listens on the port that it was told, and the others come to it and train.
TORCHRUN = """
import runpy, socket, sys
words = sys.argv[1:]
rank, port = (int(words[words.index(key) + 1]) for key in ("--node_rank", "--master_port"))
if rank == 0:
    with socket.create_server(("", port)) as server:
        server.accept()[0].close()
else:
    sys.argv = words[words.index("pretrain_gpt.py"):]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
TORCH = {"torch/__init__.py": "", "torch/distributed/__init__.py": "", "torch/distributed/run.py": TORCHRUN}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_of_the_pages_about_a_cluster_runs_as_it_is_written(cluster: Cluster, world: JobWorld) -> None:
    world.wheel(files={"alpha/__init__.py": "", **TORCH})
    source = world.repository("megatronapp", {"Megatron/pretrain_gpt.py": MEGATRON})
    shelf = Shelf(world)
    small = {"python": [MINOR], "packages": ["alpha==1.0"], "sources": [{**source, "ref": "main", "install": "path"}]}
    shelf.put("megatronapp", profiles={"exact": small}, repositories=None, findings=None)
    shelf.lock("megatronapp", "exact")
    world.target(stack="megatronapp")
    shutil.copy(world.work / "cluster.yaml", world.work / "my-cluster.yaml")
    world.good("provision", "-t", "./my-cluster.yaml", before=shelf.before)
    run_all(world, "cluster", before=shelf.before, **{"2h": "5m"})  # partitions have a limit here


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial_s_cluster_gets_opt_as_it_is_written(world: JobWorld) -> None:
    """The page's target on a real Slurm: its folder is that of the tests, its GPUs are printed ones."""
    machine = Machine(world, "a100")
    machine.small("opt-175b", "exact")
    page = (TOP / "docs" / "tutorials" / "reproduce-a-document.md").read_text(encoding="utf-8")
    (block,) = re.findall(r'```yaml title="my-slurm.yaml"\n(.*?)```', page, re.DOTALL)
    target = yaml.safe_load(block) | {"prefix": str(world.prefix)}
    (world.work / "my-slurm.yaml").write_text(yaml.safe_dump(target))
    jobs = []
    for command, code in dict.fromkeys((command, code) for _, command, code in of("opt")):
        done = run(world, command, before=machine.before)
        assert wrong(command, code, done) == ""
        jobs += world.submitted()
    # What the probe of `plan` found is kept for `provision`.
    assert jobs == ["envbuild-provision", "bench-opt-175b"]


@pytest.mark.slow
def test_the_tutorial_through_slurm_works_as_it_is_written(cluster: Cluster, tmp_path: Path) -> None:
    env = {name: cluster.env[name] for name in ("SLURM_CONF", "PATH")}
    follow(TUTORIALS / "a-cluster-through-slurm.md", tmp_path, **env)
