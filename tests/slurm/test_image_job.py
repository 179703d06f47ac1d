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
from tests.slurm.job_world import JobWorld, by_node
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
    world.lock(world.stack(python=[PYTHON], imports=["alpha"]))
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


def _names(world: JobWorld) -> list[str]:
    return [job["name"] for job in world.submitted()]


def _ids(done: Done) -> set[str]:
    return {node["image"]["id"] for node in by_node(done).values()}


def _in_node(world: JobWorld, node: str, *argv: str) -> None:
    """Run a program among the mounts of one node."""
    pid = world.cluster._processes[node].pid
    subprocess.run(["nsenter", f"--target={pid}", "--mount", *argv], check=True, capture_output=True)


def test_one_image_is_tested_on_every_node_of_a_job_and_again_needs_none(world: JobWorld) -> None:
    torch_stack(world, light=True, python=[PYTHON])
    _target(world)
    done = world.job(timeout=LONG)
    nodes = by_node(done)
    assert done.rc == 0, (done.err, nodes)
    assert sorted(nodes) == ["gpu1", "gpu2"]
    assert {node["status"] for node in nodes.values()} == {"ok"}
    assert len(_ids(done)) == len({node["root"] for node in nodes.values()}) == 1
    for node in nodes.values():
        assert {"image/id", "smoke/sound"} <= {check["name"] for check in node["checks"]}
        assert node["root"] and node["facts"]["node"] == node["node"]
    assert _names(world) == ["envbuild-probe", "envbuild-provision"]
    (file,) = (world.prefix / "images").glob("*.sif")
    record = json.loads((world.prefix / "images" / "tiny.json").read_text())
    assert sorted(path.name for path in (world.prefix / "images").iterdir()) == sorted(
        [file.name, f"{file.name}.sha256", "tiny.json"]
    )
    assert record["nodes"] == ["gpu1", "gpu2"] and not (world.prefix / "jobs").exists()
    code = "import torch; print(torch.__version__)"
    said = completed([world.prefix / "bin" / "tiny", "python", "-c", code], env=world.env, check=True)
    assert said.stdout == f"{LIGHT}+cpu\n"

    again = world.job()
    assert again.rc == 0, again.err
    assert {node["status"] for node in by_node(again).values()} == {"unchanged"}
    assert (world.submitted(), again.json["steps_run"]) == ([], 0)
    assert _ids(again) == _ids(done)
    verified = world.job(verb="verify", timeout=LONG)
    assert (verified.rc, world.submitted()) == (0, []), verified.err
    smoked = world.job(verb="smoke", timeout=LONG)
    assert smoked.rc == 0, smoked.err
    assert _names(world) == ["envbuild-smoke"] and sorted(by_node(smoked)) == ["gpu1", "gpu2"]
    refused = world.job("--only", "nodes", verb="smoke", timeout=LONG)
    assert (refused.rc, refused.code) == (2, "option-does-not-fit")
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
    nodes = by_node(broken)
    assert broken.rc in (5, 8), broken.err
    assert (nodes["gpu1"]["status"], nodes["gpu1"]["exit"]) == ("ok", 0)
    assert (nodes["gpu2"]["exit"], nodes["gpu2"]["error"]["code"]) == (5, "image-damaged")
    assert _names(world) == ["envbuild-provision"]
    good = world.job(timeout=LONG)
    assert good.rc == 0, good.err
    assert {node["exit"] for node in by_node(good).values()} == {0}
    assert json.loads((world.prefix / "images" / "tiny.json").read_text())["nodes"] == ["gpu1", "gpu2"]


def _made_on_a_node(world: JobWorld) -> None:
    """Where the login host has no Apptainer, the first node of the job makes the file; `--repair` makes it anew."""
    programs = world.cluster.top / "programs"
    (programs / "jobs-alone").touch()
    (programs / "log").unlink()
    repaired = world.job("--repair", timeout=LONG)
    assert repaired.rc == 0, repaired.err
    assert _names(world) == ["envbuild-probe", "envbuild-provision"]
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
    return world


def _in_job(world: JobWorld, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program on both nodes of a job of its own."""
    words = ["srun", "--nodes=2", "--ntasks-per-node=1", "--exclusive", "--label", *argv]
    return completed(words, env=world.env, timeout=120)


def _in_a_users_job(world: JobWorld) -> list[str]:
    """What the page's own line prints in a job of two nodes."""
    (line,) = shown("images.md", "srun ")
    for word, filled in (("<prefix>", shlex.quote(str(world.prefix))), ("<stack>", "tiny"), ("...", "train.py")):
        line = line.replace(word, filled)
    words = ["salloc", "--quiet", "--nodes=2", "--exclusive", "bash", "-ec", line]
    return completed(words, env=world.env, check=True, timeout=120).stdout.splitlines()


def test_pyxis_runs_one_file_on_every_node_of_a_job(with_pyxis: JobWorld) -> None:
    with registry(with_pyxis.top, with_pyxis.cluster.gateway) as address:
        _target(with_pyxis, runtime="pyxis", registry=f"{address}/tiny", insecure=True)
        _pyxis_runs_it(with_pyxis)


def _pyxis_runs_it(world: JobWorld) -> None:
    done = world.job(timeout=LONG)
    nodes = by_node(done)
    assert done.rc == 0, (done.err, nodes)
    assert {name: node["status"] for name, node in nodes.items()} == {"gpu1": "ok", "gpu2": "ok"}
    assert len(_ids(done)) == len({node["root"] for node in nodes.values()}) == 1
    (file,) = (world.prefix / "images").glob("*.sqsh")
    record = json.loads((world.prefix / "images" / "tiny.json").read_text())
    assert sorted(path.name for path in (world.prefix / "images").iterdir()) == sorted(
        [file.name, f"{file.name}.sha256", "tiny.json"]
    )
    assert (record["runtime"], record["nodes"]) == ("pyxis", ["gpu1", "gpu2"])
    launcher = str(world.prefix / "bin" / "tiny")
    assert sorted(_in_a_users_job(world)) == ["1.0 train.py gpu1", "1.0 train.py gpu2"]
    alone = completed([launcher, "true"], env=world.env)
    assert (alone.returncode, alone.stdout) == (7, "") and "jobs of Slurm alone" in alone.stderr

    again = world.job()
    assert again.rc == 0, again.err
    assert {node["status"] for node in by_node(again).values()} == {"unchanged"}
    assert (world.submitted(), again.json["steps_run"]) == ([], 0)
    smoked = world.job(verb="smoke", timeout=LONG)
    assert smoked.rc == 0, smoked.err
    assert _names(world) == ["envbuild-smoke"] and sorted(by_node(smoked)) == ["gpu1", "gpu2"]
    _verified_in_a_job(world, file)


def _verified_in_a_job(world: JobWorld, file: Path) -> None:
    """`verify` is a job with pyxis; a node that sees another file is named, and `--repair` makes the file anew."""
    verified = world.job(verb="verify", timeout=LONG)
    assert (verified.rc, _names(world)) == (0, ["envbuild-verify"]), verified.err
    assert {node["status"] for node in by_node(verified).values()} == {"ok"}
    with file.open("r+b") as stream:
        stream.seek(-4096, os.SEEK_END)
        stream.write(b"damaged")
    broken = by_node(world.job(verb="verify", timeout=LONG))
    for node in broken.values():
        failed = [check["name"] for check in node["checks"] if check["status"] == "failed"]
        assert (node["exit"], failed) == (1, ["image/id"])
    repaired = world.job("--repair", timeout=LONG)
    assert repaired.rc == 0, repaired.err
    assert {node["status"] for node in by_node(repaired).values()} == {"ok"}


def test_a_slurm_without_pyxis_is_refused_with_what_to_do(world: JobWorld) -> None:
    stand_ins(world.cluster.top / "programs")
    (world.cluster.top / "programs" / "no-pyxis").touch()
    _target(world, runtime="pyxis")
    refused = world.job(timeout=LONG)
    for node in by_node(refused).values():
        assert (node["exit"], node["error"]["code"]) == (7, "container-no-runtime")
        assert "srun does not know --container-image" in node["error"]["why"]
        assert "plugstack.conf" in node["error"]["hint"]
    assert refused.rc == 7 and not (world.prefix / "images" / "tiny.json").exists()


def _real_enroot_runs_it(world: JobWorld, **container: Any) -> Done:
    _target(world, runtime="enroot", **container)
    done = world.job(timeout=LONG)
    nodes = by_node(done)
    assert done.rc == 0, (done.err, nodes)
    assert {name: node["status"] for name, node in nodes.items()} == {"gpu1": "ok", "gpu2": "ok"}
    words = [str(world.prefix / "bin" / "tiny"), "python", "-c", "import alpha; print(alpha.VERSION)"]
    said = completed(words, env=world.env)
    assert said.stdout == "1.0\n", said.stderr
    again = world.job()
    assert (again.rc, world.submitted(), again.json["steps_run"]) == (0, [], 0), again.err
    return done


@pytest.mark.skipif(bool(why_no_real()), reason=why_no_real())
def test_enroot_itself_runs_a_file_from_a_registry(world: JobWorld) -> None:
    with registry(world.top, world.cluster.gateway) as address:
        _real_enroot_runs_it(world, registry=f"{address}/tiny", insecure=True)
        verified = world.job(verb="verify", timeout=LONG)
        assert (verified.rc, world.submitted()) == (0, []), verified.err
