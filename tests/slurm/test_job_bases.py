"""Bases and conda through a job: what the nodes' interpreter provides is asked there, where modules are loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.test_bases import locked, system_python
from tests.node.test_git_source import PROJECT
from tests.slurm.cluster import Cluster
from tests.slurm.job_world import JobWorld
from tests.slurm.test_node_local import LocalWorld
from tests.support.conda import section
from tests.support.files import write_file
from tests.support.programs import completed

__all__ = ["system_python"]
pytestmark = pytest.mark.slow


def test_an_environment_stands_on_the_interpreter_of_the_nodes(system_python: Path, world: JobWorld) -> None:
    world.target(base="system", base_python=str(system_python))
    locked(world, system_python)
    nodes = world.job(rc=0).nodes
    # The node that built tells what it stands on; the others tested it.
    assert [node["base_packages"]["beta"] for node in nodes.values() if node["base_packages"]] == ["1.5"]
    assert len({node["root"] for node in nodes.values()}) == 1
    current = world.prefix / "current" / "tiny"
    assert world.python("import alpha, beta; print(alpha.VERSION, beta.VERSION)", current) == "1.0 1.5"
    # What the base has now is asked again; nothing else has to be done.
    world.nothing_to_do("envbuild-probe")


def test_a_pack_stands_on_the_base_of_each_node_and_not_on_another_one(
    cluster: Cluster, tmp_path: Path, system_python: Path
) -> None:
    world = LocalWorld(tmp_path, cluster)
    # The installation is on the disk of each node, at one path.
    for node in cluster.names:
        shutil.copytree(system_python.parent.parent, cluster.disk(node) / "python", symlinks=True)
    python = cluster.local / "python" / "bin" / system_python.name
    world.target(base="system", base_python=str(python))
    locked(world, system_python)
    nodes = world.job(rc=0).nodes
    assert (len(nodes), len({node["root"] for node in nodes.values()})) == (2, 1)
    for name in nodes:
        (stamp,) = world.disk(name).glob("envs/*/.envbuild/stamp.json")
        told = json.loads(stamp.read_text())
        assert (told["interpreter"], told["base_packages"]["beta"]) == (str(python), "1.5")
    code = "import alpha, beta; print(alpha.VERSION, beta.VERSION)"
    assert world.submit(f"{world.prefix}/current/tiny/bin/python", "-c", code) == "1.0 1.5\n"
    world.nothing_to_do("envbuild-probe")

    # A node whose base is another one: a later job does not unpack there, and the next run names it.
    (info,) = (cluster.disk("gpu1") / "python").rglob("beta-1.5.dist-info")
    text = (info / "METADATA").read_text()
    (info / "METADATA").write_text(text.replace("Version: 1.5", "Version: 1.6"))
    info.rename(info.with_name("beta-1.6.dist-info"))
    shutil.rmtree(world.disk("gpu1"))
    with pytest.raises(AssertionError, match="base-changed"):
        world.submit("/bin/sh", str(world.shared / "ensure" / "tiny.sh"))
    assert not (world.disk("gpu1") / "current").exists()
    shutil.rmtree(world.disk("gpu2"))
    refused = world.refused(7, "nodes-differ", "provision", "--target", "./cluster.yaml", "--json")
    assert "gpu2: beta 1.5 (not 1.6)" in refused.err


def test_a_base_comes_from_a_module_that_the_job_loads(tmp_path: Path, system_python: Path, world: JobWorld) -> None:
    there = completed(["bash", "-lc", "type module"])
    if there.returncode:
        pytest.skip(f"no environment modules here (environment-modules, or lmod): {there.stderr.strip()[-200:]}")
    system_python.with_name("python3").symlink_to(system_python.name)
    modules = tmp_path / "modulefiles"
    write_file(modules / "conda" / "1", f"#%Module1.0\nprepend-path PATH {system_python.parent}\n")
    locked(world, system_python, bases=[{"kind": "module", "module": "conda/1", "provides": ["beta>=1.0"]}])
    world.target(base="module")
    unloaded = world.job()
    assert {node["error"]["code"] for node in unloaded.nodes.values()} == {"base-module"}, unloaded.err
    assert "scheduler: modules:`" in unloaded.err
    world.target(base="module", scheduler={"modules": {"use": [str(modules)], "load": ["conda/1"]}})
    nodes = world.job(rc=0).nodes
    assert [node["base_packages"]["beta"] for node in nodes.values() if node["base_packages"]] == ["1.5"]
    current = world.prefix / "current" / "tiny"
    assert json.loads((current / ".envbuild" / "stamp.json").read_text())["interpreter"] == str(system_python)
    assert world.python("import alpha, beta; print(alpha.VERSION, beta.VERSION)", current) == "1.0 1.5"
    assert {*world.job(rc=0).statuses.values()} == {"unchanged"}


def test_one_node_of_a_job_builds_the_conda_environment_and_a_changed_file_is_named(
    cluster: Cluster, tmp_path: Path, conda_python: Path, world: JobWorld
) -> None:
    conda = section(cluster.shared / f"forge of {tmp_path.name}", conda_python)
    built = {**world.repository("lib", PROJECT), "install": "wheel"}
    world.wheel()
    world.lock(world.stack("own", conda=conda, sources=[built], imports=["alpha", "lib", "pure"]))
    world.target(stack="./own.yaml", engine="conda")
    nodes = world.job(rc=0).nodes
    assert {node["status"] for node in nodes.values()} == {"ok"}
    assert len({node["root"] for node in nodes.values()}) == 1 < len(nodes)
    world.nothing_to_do()
    (library,) = (world.prefix / "envs").glob("own-*/lib/libtool.so")
    library.write_bytes(library.read_bytes() + b"x")
    said = {"path": "lib/libtool.so", "kind": "changed", "package": "tool 2.0 h1_3"}
    assert world.job(verb="verify", rc=1).node["drift"] == [said]
