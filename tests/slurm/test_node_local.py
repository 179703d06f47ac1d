"""`placement: node-local` through a real Slurm, and nodes that have no Python: one is staged on the login host."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import snapshot
from tests.fleet.standalone import write_toolchain
from tests.slurm.cluster import NODES, Cluster
from tests.slurm.job_world import JobWorld
from tests.support.programs import completed

pytestmark = pytest.mark.slow


class LocalWorld(JobWorld):
    """The prefix is on the disk of each node; `shared` is what login host and nodes see."""

    def __init__(self, top: Path, cluster: Cluster) -> None:
        """On disks with nothing on them."""
        for disk in map(cluster.disk, cluster.names):
            for path in disk.iterdir():
                shutil.rmtree(path)
        super().__init__(top, cluster)
        self.shared = self.prefix
        self.prefix = cluster.local / "env build"
        self.target()

    def target(self, **more: object) -> None:
        super().target(**{"placement": "node-local", "shared": str(getattr(self, "shared", self.prefix)), **more})

    def use_toolchain(self, standalone: Path) -> None:
        """The only Python that there is to be brought."""
        self.env["ENVBUILD_TOOLCHAIN"] = write_toolchain(self.top / "toolchain.yaml", standalone)

    def disk(self, node: str) -> Path:
        """The prefix of a node, seen from here."""
        return self.cluster.disk(node) / "env build"

    def submit(self, *command: str) -> str:
        """What a job of somebody prints that runs `command` on gpu1; its exit code is checked."""
        options = ["--partition=gpu", "--nodelist=gpu1", f"--chdir={self.cluster.shared}"]
        done = completed(["srun", *options, *command], env=self.cluster.env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def world(cluster: Cluster, tmp_path: Path) -> LocalWorld:
    return LocalWorld(tmp_path, cluster)


def test_all_nodes_install_from_one_bundle_and_every_later_job_finds_it(world: LocalWorld) -> None:
    world.target(scheduler={"nodes": NODES}, environment={"GREETING": "it's $(id) here"})
    world.tiny()
    nodes = world.job(rc=0).nodes
    assert sorted(nodes) == [f"gpu{index}" for index in range(1, NODES + 1)]
    assert {node["status"] for node in nodes.values()} == {"ok"}
    (root,) = {node["root"] for node in nodes.values()}
    names = [[check["name"] for check in node["checks"]] for node in nodes.values()]
    assert sum("record" in each for each in names) == 1, "one node has built"
    assert all({"stamp", "smoke/sound"} <= set(each) for each in names), names
    for name in nodes:
        stamps = list(world.disk(name).glob("envs/*/.envbuild/stamp.json"))
        assert [json.loads(path.read_text())["root"] for path in stamps] == [root]
        assert list((world.disk(name) / "store").iterdir()) == [], "what was unpacked is gone"
    assert not (world.shared / "jobs").exists()
    assert not (world.shared / "envs").exists()
    (bundle,) = (world.shared / "store").glob("*/bundle.tar")
    said = [check["says"] for node in nodes.values() for check in node["checks"] if check["name"] == "ensure"]
    place = f"installed from {world.shared}/store/{bundle.parent.name}/bundle.tar"
    assert sorted(said)[: NODES - 1] == [place] * (NODES - 1), said

    # Nothing to do is said by the shared folder, without a job.
    before = snapshot(world.shared)
    assert {node["root"] for node in world.nothing_to_do().nodes.values()} == {root}
    assert snapshot(world.shared) == before

    script = later_jobs_find_it_on_a_new_disk_too(world, root)
    the_login_host_reads_the_bundle(world, bundle)
    # What is not the bundle any more is nobody's environment.
    shutil.rmtree(world.disk("gpu1"))
    with pytest.raises(AssertionError, match="bundle-damaged"):
        world.submit("/bin/sh", script)
    assert not (world.disk("gpu1") / "current").exists()


def later_jobs_find_it_on_a_new_disk_too(world: LocalWorld, root: str) -> str:
    """By the script that they begin with, as the page has it, which is returned."""
    for name in world.cluster.names:
        shutil.rmtree(world.disk(name), ignore_errors=True)
    script, activate = world.shared / "ensure" / "tiny.sh", world.prefix / "current/tiny/.envbuild/activate.sh"
    code = "import alpha, os, sys; print(sys.prefix, os.environ['GREETING'], os.environ['ENVBUILD_STACK'])"
    lines = '/bin/sh "$0" > /dev/null\n. "$1"\npython -c "$2"'
    said = world.submit("/bin/sh", "-ec", lines, str(script), str(activate), code)
    (found,) = (path for name in world.cluster.names for path in world.disk(name).glob("envs/*"))
    assert said == f"{world.prefix}/envs/{found.name} it's $(id) here tiny\n"
    assert json.loads((found / ".envbuild" / "stamp.json").read_text())["root"] == root
    shutil.rmtree(world.disk("gpu1"), ignore_errors=True)
    assert json.loads(world.submit("/bin/sh", str(script)))["result"]["root"] == root
    assert json.loads(world.submit("/bin/sh", str(script)))["changed"] is False
    return str(script)


def the_login_host_reads_the_bundle(world: LocalWorld, bundle: Path) -> None:
    """And finds one byte that was changed."""
    whole = world.job(verb="verify", rc=0)
    assert whole.nodes.popitem()[1]["checks"][0]["name"] == "bundle"
    data = bytearray(bundle.read_bytes())
    data[data.index(b"PK") + 60] ^= 1
    bundle.write_bytes(data)
    spoiled = world.job(verb="verify", rc=1)
    assert "sha256" in spoiled.nodes.popitem()[1]["checks"][0]["says"]


def test_what_is_missing_is_told_first_and_a_node_whose_disk_is_full_fails_alone(world: LocalWorld) -> None:
    world.tiny()
    place = ("provision", "--target", "./cluster.yaml")
    world.target(shared=None)
    world.refused(2, "shared-missing", *place)
    world.target(scheduler={"nodes": 2})
    world.refused(7, "script-impossible", *place, "--print-script")
    assert world.submitted() == []
    world.job("--dry-run", rc=0)
    # A disk without an inode to spare, seen by this node alone.
    disk = world.cluster.disk("gpu2")
    world.cluster.stop("gpu2")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=200", "tmpfs", disk], check=True)
    try:
        world.cluster.start_node("gpu2")
        world.cluster.reset()
        nodes = world.job(rc=8).nodes
        assert (nodes["gpu1"]["status"], nodes["gpu2"]["error"]["code"]) == ("ok", "disk-full"), nodes["gpu2"]
        assert not (disk / "env build" / "current").exists()
        subprocess.run(["mount", "-o", "remount,size=100m,nr_inodes=9000", disk], check=True)
        shutil.rmtree(world.disk("gpu1") / "envs")
        assert {node["root"] for node in world.job(rc=0).nodes.values()} == {nodes["gpu1"]["root"]}
        assert {*world.job().statuses.values()} == {"unchanged"}
    finally:
        world.cluster.stop("gpu2")
        subprocess.run(["umount", "-l", disk], check=True)
        world.cluster.start_node("gpu2")
        world.cluster.reset()


def test_the_interpreter_goes_to_every_disk_and_a_smoke_test_brings_back_what_was_lost(
    world: LocalWorld, standalone_python: Path
) -> None:
    world.use_toolchain(standalone_python)
    source = {**world.repository("gamma", {"gamma.py": "import alpha\n"}), "install": "path"}
    world.tiny(interpreters=["standalone"], sources=[source], imports=["alpha", "gamma"])
    nodes = world.job(rc=0).nodes
    assert len({node["root"] for node in nodes.values()}) == 1
    for name in nodes:
        (tool,) = (world.disk(name) / "tools").iterdir()
        (environment,) = (world.disk(name) / "envs").iterdir()
        link = environment / "bin" / "python"
        assert str(link.readlink()).startswith(f"{world.prefix}/tools/{tool.name}/python/bin/python3")
    assert len(list((world.shared / "tools").iterdir())) == 3, "node program, uv and the Python are staged once"
    for name in nodes:
        shutil.rmtree(world.disk(name))
    assert sorted(world.job(verb="smoke", rc=0).nodes) == sorted(nodes)
    assert all((world.disk(name) / "current" / "tiny").is_symlink() for name in nodes)


JOBS = ["envbuild-probe", "envbuild-probe", "envbuild-provision"]


@pytest.fixture
def bare(cluster: Cluster, tmp_path: Path, standalone_python: Path) -> Iterator[LocalWorld]:
    """Its stack stands on a standalone Python."""
    made = LocalWorld(tmp_path, cluster)
    made.use_toolchain(standalone_python)
    made.tiny(interpreters=["standalone"])
    yield made
    cluster.show_python()


def test_nodes_without_any_python_get_one_through_the_shared_prefix(bare: LocalWorld) -> None:
    bare.cluster.hide_python("gpu1", "gpu2")
    bare.target(placement="shared", prefix=str(bare.shared), shared=None)
    dry = bare.job("--dry-run", rc=7)
    assert "gpu1 has no Python 3.6 or newer" in dry.out + dry.err
    assert not (bare.shared / "tools").exists(), "a dry run brings nothing"
    assert bare.job(rc=0).statuses == {"gpu1": "ok", "gpu2": "ok"}
    assert bare.submitted() == JOBS
    assert len(list((bare.shared / "tools").iterdir())) == 3, "node program, uv and the Python are staged once"
    assert not (bare.shared / "jobs").exists()
    bare.nothing_to_do()
    bare.job(verb="smoke", rc=0)


def test_a_node_without_python_beside_one_that_has_it_takes_the_pack_onto_its_own_disk(bare: LocalWorld) -> None:
    bare.cluster.hide_python("gpu2")
    nodes = bare.job(rc=0).nodes
    assert sorted(nodes) == ["gpu1", "gpu2"]
    assert len({node["root"] for node in nodes.values()}) == 1
    assert bare.submitted() == JOBS
    # A disk that was wiped has no Python again; the shared folder has.
    shutil.rmtree(bare.disk("gpu2"))
    bare.job(verb="smoke", rc=0)
    # Nor does another environment rest on what one disk has and another has not.
    shutil.rmtree(bare.disk("gpu2"))
    bare.wheel("beta", "2.0")
    bare.tiny(interpreters=["standalone"], packages=["beta==2.0"], imports=["beta"])
    assert {*bare.job(rc=0).statuses.values()} == {"ok"}
