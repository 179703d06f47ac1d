"""A job in which one node alone has nvcc: it builds, wherever it stands among the nodes, and the others get it."""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.forge import FILES, need_compiler
from tests.slurm.cluster import NODES, Cluster
from tests.slurm.job_world import JobWorld, by_node
from tests.slurm.test_node_local import LocalWorld
from tests.support.programs import executable
from tests.support.wheels import write_wheel

pytestmark = pytest.mark.slow
# It says its version; what the source compiles is C.
NVCC = (
    "#!/bin/sh\nprintf 'nvcc: NVIDIA (R) Cuda compiler driver\\nCuda compilation tools, release 12.1, V12.1.105\\n'\n"
)


def compiling(world: JobWorld) -> None:
    """A stack with a source that says it is compiled with nvcc, for a torch that is one in name."""
    files = {"torch/__init__.py": "__version__ = '2.5.1+cu121'\n", "torch/version.py": "cuda = '12.1'\n"}
    python = sysconfig.get_config_var("py_version_nodot")
    write_wheel(world.wheels, "torch", "2.5.1+cu121", files, tag=f"cp{python}-cp{python}-linux_x86_64")
    source: dict[str, Any] = dict(world.repository("quick", FILES))
    source |= {"install": "wheel", "build": {"extensions": ["quick._fast"], "flags": ["--cuda_ext"]}}
    world.tiny(sources=[source], torch={"version": "2.5.1", "flavours": ["cu121"]}, smoke=[])


def nvcc_on(cluster: Cluster, world: JobWorld, node: str) -> None:
    """An nvcc in the PATH of jobs that is there on one node alone."""
    cuda = cluster.disk(node) / "cuda" / "bin"
    executable(cuda / "nvcc", NVCC)
    programs = world.top / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "nvcc").symlink_to(cluster.local / "cuda" / "bin" / "nvcc")
    world.env["PATH"] = f"{programs}:{world.env['PATH']}"


def newest(world: JobWorld) -> Path:
    """The folder of the last run."""
    return max(path for path in world.runs.iterdir() if path.is_dir())


@pytest.fixture
def nowhere(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, whose nodes have no nvcc that this machine may have."""
    places = [Path(text) for text in cluster.env["PATH"].split(os.pathsep) if text]
    places += [folder / "bin" for folder in Path("/usr/local").glob("cuda*")]
    found = {(place / "nvcc").resolve() for place in places if (place / "nvcc").is_file()}
    if found:
        cluster.hide(found, *(f"gpu{index}" for index in range(1, NODES + 1)))
    yield cluster
    cluster.show_python()


@pytest.mark.parametrize("local", [False, True])
def test_the_node_with_nvcc_builds_though_it_is_not_the_first(nowhere: Cluster, tmp_path: Path, local: bool) -> None:
    need_compiler()
    cluster = nowhere
    for path in (path for name in cluster.names for path in cluster.disk(name).iterdir()):
        shutil.rmtree(path)
    world = LocalWorld(tmp_path, cluster) if local else JobWorld(tmp_path, cluster)
    compiling(world)
    alone = world.job("--dry-run")
    assert alone.rc == 7, alone.err
    assert "nvcc-absent" in alone.out
    nvcc_on(cluster, world, "gpu2")
    done = world.job("--repair")
    assert done.rc == 0, done.err + str([node.get("error") for node in by_node(done).values()])
    nodes = by_node(done)
    (other,) = set(nodes) - {"gpu2"}
    builders = [name for name, node in nodes.items() if any(check["name"] == "record" for check in node["checks"])]
    assert builders == ["gpu2"]
    (script,) = [path for path in newest(world).glob("*.sbatch") if "envbuild-provision" in path.read_text()]
    assert "#SBATCH --nodelist=gpu2" in script.read_text()
    said = [item for item in nodes[other]["resolution"]["decisions"] if item["rule"] == "nvcc-absent"]
    assert [item["what"] for item in said] == [
        "quick must be compiled and there is no nvcc; the wheels come from gpu2",
    ]
    current = f"{world.prefix}/current/tiny/bin/python"
    for name in nodes:
        asked = ["srun", f"--nodelist={name}", "--partition=gpu", current, "-c"]
        assert cluster.run(*asked, "import quick._fast as f; print(f.answer())", timeout=60) == "42\n"
    again = world.job()
    assert {node["status"] for node in by_node(again).values()} == {"unchanged"}, json.dumps(again.json)[-2000:]
