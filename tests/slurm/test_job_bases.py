"""Bases and conda through a job: what the nodes' interpreter provides is asked there, where modules are loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_bases import locked, system_python
from tests.node.test_git_source import PROJECT
from tests.slurm.cluster import Cluster
from tests.slurm.job_world import JobWorld, by_node
from tests.slurm.test_node_local import LocalWorld
from tests.support.conda import Channel, fill
from tests.support.files import write_file
from tests.support.programs import completed

__all__ = ["system_python"]
pytestmark = pytest.mark.slow


def test_an_environment_stands_on_the_interpreter_of_the_nodes(system_python: Path, world: JobWorld) -> None:
    world.target(base="system", base_python=str(system_python))
    locked(world, system_python)
    done = world.job()
    assert done.rc == 0, done.err
    nodes = by_node(done)
    # The node that built tells what it stands on; the others tested it.
    assert [node["base_packages"]["beta"] for node in nodes.values() if node["base_packages"]] == ["1.5"]
    assert len({node["root"] for node in nodes.values()}) == 1
    current = world.prefix / "current" / "tiny"
    assert world.python("import alpha, beta; print(alpha.VERSION, beta.VERSION)", current) == "1.0 1.5"
    # What the base has now is asked again; nothing else has to be done.
    again = world.job()
    assert again.rc == 0, again.err
    assert [job["name"] for job in world.submitted()] == ["envbuild-probe"]
    assert {node["status"] for node in by_node(again).values()} == {"unchanged"}


def put_on_disks(world: LocalWorld, python: Path, *nodes: str) -> Path:
    """The installation of `python` on the disk of each node, at one path, which is returned."""
    home = python.parent.parent
    for node in nodes:
        shutil.copytree(home, world.cluster.disk(node) / "python", symlinks=True)
    return world.cluster.local / "python" / "bin" / python.name


def change_beta(world: LocalWorld, node: str) -> None:
    """Another `beta` in the base of one node."""
    (info,) = (world.cluster.disk(node) / "python").rglob("beta-1.5.dist-info")
    text = (info / "METADATA").read_text()
    (info / "METADATA").write_text(text.replace("Version: 1.5", "Version: 1.6"))
    info.rename(info.with_name("beta-1.6.dist-info"))


def test_a_pack_stands_on_the_base_of_each_node_and_not_on_another_one(
    cluster: Cluster, tmp_path: Path, system_python: Path
) -> None:
    for path in (path for name in cluster.names for path in cluster.disk(name).iterdir()):
        shutil.rmtree(path)
    world = LocalWorld(tmp_path, cluster)
    python = put_on_disks(world, system_python, *cluster.names)
    world.target(base="system", base_python=str(python))
    locked(world, system_python)
    done = world.job()
    assert done.rc == 0, done.err
    nodes = by_node(done)
    assert (len(nodes), len({node["root"] for node in nodes.values()})) == (2, 1)
    for name in nodes:
        (stamp,) = world.disk(name).glob("envs/*/.envbuild/stamp.json")
        told = json.loads(stamp.read_text())
        assert (told["interpreter"], told["base_packages"]["beta"]) == (str(python), "1.5")
    code = "import alpha, beta; print(alpha.VERSION, beta.VERSION)"
    assert world.submit(f"{world.prefix}/current/tiny/bin/python", "-c", code) == "1.0 1.5\n"
    again = world.job()
    assert again.rc == 0, again.err
    assert [job["name"] for job in world.submitted()] == ["envbuild-probe"]
    assert {node["status"] for node in by_node(again).values()} == {"unchanged"}

    # A node whose base is another one: a later job does not unpack there, and the next run names it.
    change_beta(world, "gpu1")
    shutil.rmtree(world.disk("gpu1"))
    with pytest.raises(AssertionError, match="base-changed"):
        world.submit("/bin/sh", str(world.shared / "ensure" / "tiny.sh"))
    assert not (world.disk("gpu1") / "current").exists()
    shutil.rmtree(world.disk("gpu2"))
    refused = world.job()
    assert (refused.rc, refused.code) == (7, "nodes-differ"), refused.err
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
    assert {node["error"]["code"] for node in by_node(unloaded).values()} == {"base-module"}, unloaded.err
    assert "scheduler: modules:`" in unloaded.err
    world.target(base="module", scheduler={"modules": {"use": [str(modules)], "load": ["conda/1"]}})
    done = world.job()
    assert done.rc == 0, done.err
    nodes = by_node(done)
    assert [node["base_packages"]["beta"] for node in nodes.values() if node["base_packages"]] == ["1.5"]
    current = world.prefix / "current" / "tiny"
    assert json.loads((current / ".envbuild" / "stamp.json").read_text())["interpreter"] == str(system_python)
    assert world.python("import alpha, beta; print(alpha.VERSION, beta.VERSION)", current) == "1.0 1.5"
    again = world.job()
    assert again.rc == 0, again.err
    assert {node["status"] for node in by_node(again).values()} == {"unchanged"}


def test_one_node_of_a_job_builds_the_conda_environment_and_a_changed_file_is_named(
    cluster: Cluster, tmp_path: Path, conda_python: Path, world: JobWorld
) -> None:
    channel = fill(Channel(cluster.shared / f"forge of {tmp_path.name}", "forge"), conda_python)
    section: dict[str, Any] = {"channels": [{"name": "forge", "url": channel.url}], "packages": ["tool", "pure"]}
    built = {**world.repository("lib", PROJECT), "install": "wheel"}
    world.wheel()
    world.lock(world.stack("own", conda=section, sources=[built], imports=["alpha", "lib", "pure"]))
    world.target(stack="./own.yaml", engine="conda")
    done = world.job()
    nodes = by_node(done)
    assert done.rc == 0, done.err
    assert {node["status"] for node in nodes.values()} == {"ok"}
    assert len({node["root"] for node in nodes.values()}) == 1 < len(nodes)
    again = world.job()
    assert (again.rc, world.submitted(), again.json["steps_run"]) == (0, [], 0), again.err
    (library,) = (world.prefix / "envs").glob("own-*/lib/libtool.so")
    library.write_bytes(library.read_bytes() + b"x")
    deep = world.job(verb="verify")
    said = {"path": "lib/libtool.so", "kind": "changed", "package": "tool 2.0 h1_3"}
    assert (deep.rc, deep.node["drift"]) == (1, [said]), deep.err
