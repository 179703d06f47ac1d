"""`provision` with `engine: container` through jobs of a real Slurm: a real image, and a stand-in for Apptainer.

The stand-in takes the layers out of the archive and runs the command in them with chroot, so the node program in the
image really runs on every node. What Apptainer itself makes of its words is not shown.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.container.storage import BASE, PYTHON, Storage, registry
from tests.e2e.world import Done, World
from tests.slurm.cluster import Cluster
from tests.slurm.job_world import JobWorld
from tests.slurm.pyxis_programs import stand_ins, why_no_real
from tests.support.programs import completed, executable
from tests.support.torch_stack import LIGHT, torch_stack
from tests.test_snippets_others import shown

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
LONG = 500.0
ALPHA = b"""
import os, sys
VERSION = "1.0"
def main():
    print(VERSION, *sys.argv[1:], os.environ["SLURMD_NODENAME"])
"""

APPTAINER = """#!/usr/bin/python3
import fcntl, json, os, shutil, subprocess, sys, tarfile

TOP = "{top}"
with open(TOP + "/log", "a") as log:
    log.write(" ".join([os.environ.get("SLURMD_NODENAME", "login"), *sys.argv[1:4]]) + "\\n")
if os.path.exists(TOP + "/jobs-alone") and not os.environ.get("SLURM_JOB_ID"):
    sys.exit("load the module of Apptainer on a compute node")
elif sys.argv[1] == "--version":
    print("apptainer version 1.3.0")
elif sys.argv[1] == "build":
    path, source = sys.argv[-2:]
    shutil.copyfile(source[len("docker-archive://"):], path)
elif sys.argv[1] == "exec":
    at = next(index for index, word in enumerate(sys.argv) if word.endswith(".sif"))
    file = os.stat(sys.argv[at])  # a write gives it another time
    root = TOP + "/root-%d-%d-%d" % (file.st_dev, file.st_ino, file.st_mtime_ns)
    with open(root + ".lock", "w") as lock, tarfile.open(sys.argv[at]) as archive:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (entry,) = json.load(archive.extractfile("manifest.json"))
        config = json.load(archive.extractfile(entry["Config"]))["config"]
        if not os.path.exists(root):
            os.mkdir(root + ".half")
            for name in entry["Layers"]:
                code = 'tar -xOf "$0" "$1" | tar -x -C "$2" --exclude=".wh.*"'
                subprocess.run(["sh", "-c", code, sys.argv[at], name, root + ".half"], check=True)
            os.rename(root + ".half", root)
    code = 'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
    words = ["unshare", "--mount", "/bin/sh", "-c", code, root, "/usr/bin/env", "-i", *config.get("Env", [])]
    words.append("OMP_NUM_THREADS=1")  # as in conftest.py
    os.execvp("unshare", words + sys.argv[at + 1:])
"""


@pytest.fixture
def world(cluster: Cluster, tmp_path: Path, storage: Storage) -> Iterator[JobWorld]:
    """A stack of one wheel on the Python of the base; Apptainer is on PATH, here and in jobs."""
    world = JobWorld(tmp_path, cluster)
    programs = cluster.top / "programs"
    executable(programs / "apptainer", APPTAINER.format(top=programs))
    storage.house(tmp_path)
    world.env |= {**storage.env, "PATH": os.pathsep.join((str(programs), world.env["PATH"]))}
    world.wheel(files={"alpha/__init__.py": ALPHA}, scripts={"torchrun": "alpha:main"})
    yield world
    shutil.rmtree(programs)


def section(world: World, **container: Any) -> dict[str, Any]:
    """The `container:` of a target; uv's wheel comes from `house`, a folder."""
    return {
        "runtime": "apptainer", "base": BASE, "fetch_image": BASE, "python": f"/usr/bin/python{PYTHON}",
        "glibc": "2.36", "wheelhouse": [str(world.top / "house")], **container,
    }  # fmt: skip


def _target(world: JobWorld, **container: Any) -> None:
    world.target(engine="container", placement="image", container=section(world, **container))


def _lock(world: JobWorld) -> None:
    world.lock(world.stack(python=[PYTHON], imports=["alpha"]))


def _ids(done: Done) -> set[str]:
    return {node["image"]["id"] for node in done.nodes.values()}


def _in_node(world: JobWorld, node: str, *argv: str) -> None:
    """Run a program among the mounts of one node."""
    pid = world.cluster._processes[node].pid
    subprocess.run(["nsenter", f"--target={pid}", "--mount", *argv], check=True, capture_output=True)


def _provisioned(world: JobWorld, suffix: str) -> tuple[Done, Path, dict[str, Any]]:
    """A provision on two nodes that ended well, the one file of its image, and what is recorded of that."""
    done = world.job(timeout=LONG, rc=0)
    assert done.statuses == {"gpu1": "ok", "gpu2": "ok"}
    assert len(_ids(done)) == len({node["root"] for node in done.nodes.values()}) == 1
    images = world.prefix / "images"
    (file,) = images.glob(f"*.{suffix}")
    assert {path.name for path in images.iterdir()} == {file.name, f"{file.name}.sha256", "tiny.json"}
    record = json.loads((images / "tiny.json").read_text())
    assert record["nodes"] == ["gpu1", "gpu2"]
    return done, file, record


def _smoked(world: JobWorld) -> None:
    smoked = world.job(verb="smoke", timeout=LONG, rc=0)
    assert world.submitted() == ["envbuild-smoke"] and sorted(smoked.nodes) == ["gpu1", "gpu2"]


def test_one_image_is_tested_on_every_node_of_a_job_and_again_needs_none(world: JobWorld) -> None:
    torch_stack(world, light=True, python=[PYTHON])
    _target(world)
    done, file, _ = _provisioned(world, "sif")
    for node in done.nodes.values():
        assert {"image/id", "smoke/sound"} <= {check["name"] for check in node["checks"]}
        assert node["root"] and node["facts"]["node"] == node["node"]
    assert world.submitted() == ["envbuild-probe", "envbuild-provision"]
    assert not (world.prefix / "jobs").exists()
    code = "import torch; print(torch.__version__)"
    said = completed([world.prefix / "bin" / "tiny", "python", "-c", code], env=world.env, check=True)
    assert said.stdout == f"{LIGHT}+cpu\n"

    assert _ids(world.nothing_to_do()) == _ids(done)
    verified = world.job(verb="verify", timeout=LONG)
    assert (verified.rc, world.submitted()) == (0, []), verified.err
    _smoked(world)
    world.refused(2, "option-does-not-fit", "smoke", "--target", "./cluster.yaml", "--json", "--only", "nodes")
    _damaged(world, file)
    _made_on_a_node(world)


def _damaged(world: JobWorld, file: Path) -> None:
    """One node sees another file: it is named, nobody waits for it, the other one is good, a rerun does the rest."""
    bad = world.top / "bad.sif"
    shutil.copyfile(file, bad)
    with bad.open("r+b") as stream:
        stream.write(b"damaged")
    _in_node(world, "gpu2", "mount", "--bind", str(bad), str(file))
    try:
        _target(world, mounts=["/usr/share:/usr/share:ro"])
        broken = world.job(timeout=LONG)
    finally:
        _in_node(world, "gpu2", "umount", str(file))
    nodes = broken.nodes
    assert broken.rc in (5, 8), broken.err
    assert (nodes["gpu1"]["status"], nodes["gpu1"]["exit"]) == ("ok", 0)
    assert (nodes["gpu2"]["exit"], nodes["gpu2"]["error"]["code"]) == (5, "image-damaged")
    assert world.submitted() == ["envbuild-provision"]
    assert {node["exit"] for node in world.job(timeout=LONG, rc=0).nodes.values()} == {0}
    assert json.loads((world.prefix / "images" / "tiny.json").read_text())["nodes"] == ["gpu1", "gpu2"]


def _made_on_a_node(world: JobWorld) -> None:
    """Where the login host has no Apptainer, the first node of the job makes the file; `--repair` makes it anew."""
    programs = world.cluster.top / "programs"
    (programs / "jobs-alone").touch()
    (programs / "log").unlink()
    world.job("--repair", timeout=LONG, rc=0)
    assert world.submitted() == ["envbuild-probe", "envbuild-provision"]
    calls = [line.split()[:2] for line in (programs / "log").read_text().splitlines()]
    assert [node for node, verb in calls if verb == "build"] == ["gpu1"]
    assert sorted({node for node, verb in calls if verb == "exec"}) == ["gpu1", "gpu2"]
    assert len(list((world.prefix / "images").iterdir())) == 3, "the archive is gone"


@pytest.fixture(
    params=["stand-ins", pytest.param("real", marks=pytest.mark.skipif(bool(why_no_real()), reason=why_no_real()))]
)
def with_pyxis(request: pytest.FixtureRequest, world: JobWorld) -> JobWorld:
    """The same world with pyxis: the real one where it is, and programs that stand for it everywhere."""
    if request.param == "stand-ins":
        stand_ins(world.cluster.top / "programs")
    _lock(world)
    return world


def _in_a_users_job(world: JobWorld) -> list[str]:
    """What the page's own line prints in a job of two nodes."""
    (line,) = shown("images.md", "srun ")
    for word, filled in (("<prefix>", shlex.quote(str(world.prefix))), ("<stack>", "tiny"), ("...", "train.py")):
        line = line.replace(word, filled)
    words = ["salloc", "--quiet", "--nodes=2", "--exclusive", "bash", "-ec", line]
    return completed(words, env=world.env, check=True, timeout=120).stdout.splitlines()


def test_pyxis_runs_one_file_on_every_node_of_a_job(with_pyxis: JobWorld) -> None:
    world = with_pyxis
    with registry(world.top, world.cluster.gateway) as address:
        _target(world, runtime="pyxis", registry=f"{address}/tiny", insecure=True)
        _, file, record = _provisioned(world, "sqsh")
        assert record["runtime"] == "pyxis"
        assert sorted(_in_a_users_job(world)) == ["1.0 train.py gpu1", "1.0 train.py gpu2"]
        alone = completed([str(world.prefix / "bin" / "tiny"), "true"], env=world.env)
        assert (alone.returncode, alone.stdout) == (7, "") and "jobs of Slurm alone" in alone.stderr
        world.nothing_to_do()
        _smoked(world)
        _verified_in_a_job(world, file)


def _verified_in_a_job(world: JobWorld, file: Path) -> None:
    """`verify` is a job with pyxis; a node that sees another file is named, and `--repair` makes the file anew."""
    verified = world.job(verb="verify", timeout=LONG)
    assert (verified.rc, world.submitted()) == (0, ["envbuild-verify"]), verified.err
    assert {*verified.statuses.values()} == {"ok"}
    with file.open("r+b") as stream:
        stream.seek(-4096, os.SEEK_END)
        stream.write(b"damaged")
    for node in world.job(verb="verify", timeout=LONG).nodes.values():
        failed = [check["name"] for check in node["checks"] if check["status"] == "failed"]
        assert (node["exit"], failed) == (1, ["image/id"])
    assert {*world.job("--repair", timeout=LONG, rc=0).statuses.values()} == {"ok"}


def test_a_slurm_without_pyxis_is_refused_with_what_to_do(world: JobWorld) -> None:
    stand_ins(world.cluster.top / "programs")
    (world.cluster.top / "programs" / "no-pyxis").touch()
    _lock(world)
    _target(world, runtime="pyxis")
    refused = world.job(timeout=LONG, rc=7)
    for node in refused.nodes.values():
        assert (node["exit"], node["error"]["code"]) == (7, "container-no-runtime")
        assert "srun does not know --container-image" in node["error"]["why"]
        assert "plugstack.conf" in node["error"]["hint"]
    assert not (world.prefix / "images" / "tiny.json").exists()


@pytest.mark.skipif(bool(why_no_real()), reason=why_no_real())
def test_enroot_itself_runs_a_file_from_a_registry(world: JobWorld) -> None:
    _lock(world)
    with registry(world.top, world.cluster.gateway) as address:
        _target(world, runtime="enroot", registry=f"{address}/tiny", insecure=True)
        assert world.job(timeout=LONG, rc=0).statuses == {"gpu1": "ok", "gpu2": "ok"}
        words = [str(world.prefix / "bin" / "tiny"), "python", "-c", "import alpha; print(alpha.VERSION)"]
        said = completed(words, env=world.env)
        assert said.stdout == "1.0\n", said.stderr
        world.nothing_to_do()
        verified = world.job(verb="verify", timeout=LONG)
        assert (verified.rc, world.submitted()) == (0, []), verified.err
