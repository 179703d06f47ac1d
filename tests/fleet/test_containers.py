"""`engine: container` on real nodes: built once, carried to two, run by podman there, repaired where it was lost."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.container.storage import BASE, PYTHON, Storage, registry
from tests.e2e.world import Done, World
from tests.fleet.faults import wait_for, working
from tests.fleet.fleet_world import PREFIX, checks
from tests.fleet.nodes import Fleet, Node, StartNodes
from tests.support.patience import PATIENCE
from tests.support.torch_stack import LIGHT, torch_stack
from tests.test_snippets import of, run

pytestmark = [pytest.mark.slow, pytest.mark.nodes, pytest.mark.timeout(1200)]
LONG = 400.0
# What an administrator of such a node has set: its kernel has cgroups of version 1, and nobody may raise limits. The
# variables are podman's own, and one thread as in conftest.py.
_CONTAINERS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
env = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm", "OMP_NUM_THREADS=1"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
_STORAGE = '[storage]\ndriver = "overlay"\ngraphroot = "/nodeetc/images"\nrunroot = "/run/images"\n'
_CGROUPS = """\
mount -t tmpfs cgroups /sys/fs/cgroup
for each in cpu cpuacct cpuset memory devices freezer blkio pids; do
    mkdir "/sys/fs/cgroup/$each"
    mount -t cgroup -o "$each" cgroups "/sys/fs/cgroup/$each" || rmdir "/sys/fs/cgroup/$each"
done
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroups /sys/fs/cgroup/systemd
"""


@pytest.fixture
def world(tmp_path: Path, storage: Storage) -> World:
    """A controller that builds images, and a wheel."""
    world = World(tmp_path)
    del world.env["ENVBUILD_PREFIX"]
    world.env |= storage.env
    storage.house(tmp_path)
    world.wheel("alpha", "1.0")
    return world


def _stack(world: World, greeting: str) -> dict[Path, str]:
    """Stack file and lock, which are written, with their texts."""
    stack = world.stack(python=[PYTHON], imports=["alpha"], environment={"HF_GREETING": greeting})
    return {path: path.read_text() for path in (stack, world.lock(stack))}


def _write(texts: dict[Path, str]) -> None:
    for path, text in texts.items():
        path.write_text(text)


def _target(world: World, nodes: list[Node], more: dict[str, Any] | None = None, **container: Any) -> None:
    section = {
        "base": BASE, "fetch_image": BASE, "python": f"/usr/bin/python{PYTHON}", "glibc": "2.36",
        "wheelhouse": [str(world.top / "house")], **container,
    }  # fmt: skip
    connection = nodes[0].connection().to_json_dict() | {"connect_timeout": 3.0}
    target = {
        "name": "nodes", "extends": "ssh", "hosts": [node.address for node in nodes], "connection": connection,
        "prefix": PREFIX, "engine": "container", "placement": "image", "stack": "./tiny.yaml", "container": section,
        **(more or {}),
    }  # fmt: skip
    (world.work / "nodes.yaml").write_text(yaml.safe_dump(target))


def _ready(nodes: list[Node]) -> None:
    """The settings of podman that these nodes need."""
    for node in nodes:
        for path, text in (("containers.conf", _CONTAINERS), ("storage.conf", _STORAGE)):
            node.run(["sh", "-c", f"cat > /etc/containers/{path}"], stdin=text)
        node.run(["sh", "-e"], stdin=_CGROUPS)


def _run(world: World, verb: str, *more: str, rc: int | None = None) -> Done:
    return world.run(verb, "--target", "./nodes.yaml", "--json", *more, timeout=LONG, rc=rc)


def _ids(done: Done) -> set[str]:
    return {node["image"]["id"] for node in done.json["nodes"]}


def _containers(node: Node) -> list[str]:
    return node.run(["podman", "ps", "--quiet"]).stdout.split()


def test_nodes_run_one_image_which_comes_back_where_it_was_lost_or_from_a_registry(
    fleet: StartNodes, fleet_network: Fleet, world: World
) -> None:
    nodes = fleet(2, kind="podman")
    _ready(nodes)
    first, second = nodes
    other, another = _stack(world, "good morning"), _stack(world, "another")
    torch_stack(world, light=True, python=[PYTHON], environment={"HF_GREETING": "hello $(id) 'you'"})
    _target(world, nodes, {"floors": {"multi_node_busbw_gbps": 0.0001}})
    done = _run(world, "provision", rc=0)
    found = done.nodes
    (image,) = _ids(done)
    roots = {each["root"] for each in found.values()}
    assert len(roots) == 1 and None not in roots
    for node in nodes:
        assert found[node.address]["status"] == "ok"
        assert {"image/id", "smoke/sound"} <= set(checks(found[node.address]))
        assert set(checks(found[node.address]).values()) == {"passed"}
        assert node.run(["podman", "images", "-q", "--no-trunc"]).stdout.split() == [f"sha256:{image}"]
        code = "import torch, os; print(torch.__version__, os.getuid(), os.environ['HF_GREETING'])"
        said = node.run([f"{PREFIX}/bin/tiny", "python", "-c", code]).stdout
        assert said == f"{LIGHT}+cpu 10001 hello $(id) 'you'\n"
        assert node.run(["ls", f"{PREFIX}/images"]).stdout == "tiny.json\n", "the file that came is gone"
    assert "not measured: multi_node_busbw_gbps" in str(done.json["warnings"])

    _nothing_to_do(world)
    _killed(world, nodes)
    image = _changed(world, nodes, image, other)
    _lost(world, first, second, image)
    _launcher_changed(world, first)
    _tampered(world, first, second, image)
    _pulled(world, first, *fleet(1, kind="full"), fleet_network.gateway, another)


def _nothing_to_do(world: World) -> None:
    again = _run(world, "provision")
    assert (again.rc, again.json["steps_run"]) == (0, 0), again.err
    assert {node["status"] for node in again.json["nodes"]} == {"unchanged"}
    assert len(_ids(again)) == 1
    assert "nothing to do" in again.err
    ((_, command, code),) = of("nodes")
    documented = run(world, command, T="./nodes.yaml")
    assert (documented.rc, "was already in place on 2 nodes" in documented.out) == (code, True), documented
    smoked = _run(world, "smoke", "--only", "sound", rc=0)
    assert all("smoke/sound" in checks(node) for node in smoked.json["nodes"])


def _killed(world: World, nodes: list[Node]) -> None:
    """While nodes test inside the image, envbuild is killed: the containers end at once."""
    process = world.start("smoke", "--target", "./nodes.yaml", "--json")
    inside = r"^ *\d+ \S+/bin/python -I -S -c .* smoke$"
    # Podman forwards no signal to a container before it calls it running.
    wait_for("the smoke test", lambda: any(working(node, inside) and _containers(node) for node in nodes), process)
    process.kill()
    killed = time.monotonic()
    process.communicate(timeout=PATIENCE)
    wait_for("the end of the containers", lambda: not any(_containers(node) for node in nodes))
    assert time.monotonic() - killed < 40


def _changed(world: World, nodes: list[Node], before: str, stack: dict[Path, str]) -> str:
    """Another lock gives another image, one node at a time; the one before stays where it is."""
    _write(stack)
    (image,) = _ids(_run(world, "provision", "--batch", "1", rc=0))
    assert world.waves == [[node.address] for node in nodes]
    assert image != before
    for node in nodes:
        code = "import os; print(os.environ['HF_GREETING'])"
        assert node.run([f"{PREFIX}/bin/tiny", "python", "-c", code]).stdout == "good morning\n"
        there = node.run(["podman", "images", "-q", "--no-trunc"]).stdout.split()
        assert sorted(there) == sorted([f"sha256:{image}", f"sha256:{before}"])
    return image


def _lost(world: World, good: Node, other: Node, image: str) -> None:
    """The image is gone on one node: `verify` says so, `provision` touches that node alone."""
    other.run(["podman", "rmi", "--all", "--force"])
    verified = _run(world, "verify")
    assert verified.rc in (1, 8)
    assert checks(verified.nodes[other.address])["image/id"] == "failed"
    assert set(checks(verified.nodes[good.address]).values()) == {"passed"}
    assert _ids(_run(world, "provision", rc=0)) == {image}
    assert {*world.steps} == {other.address}


def _launcher_changed(world: World, node: Node) -> None:
    node.run(["sh", "-c", f"echo 'echo no' > {PREFIX}/bin/tiny"])
    assert checks(_run(world, "verify").nodes[node.address])["image/launcher"] == "failed"
    _run(world, "provision", rc=0)
    assert {*world.steps} == {node.address}
    assert node.run([f"{PREFIX}/bin/tiny", "python", "-c", "print(1)"]).stdout == "1\n"


def _tampered(world: World, node: Node, other: Node, image: str) -> None:
    """One file of the image was changed in podman's storage: named by node and file, and repaired there."""
    record = json.loads(node.run(["cat", f"{PREFIX}/images/tiny.json"]).stdout)
    name = record["environment"].rpartition("/")[2]
    find = f"find /nodeetc/images -path '*/{name}/*/site-packages/alpha/*.py' | head -1"
    where = node.run(["sh", "-c", find]).stdout.strip()
    assert where.endswith(".py")
    node.run(["sh", "-c", f"echo 'x = 1' >> {where}"])
    verified = _run(world, "verify")
    assert verified.rc in (1, 8)
    drift = [row["path"] for row in verified.nodes[node.address]["drift"]]
    assert drift == [where.partition("/envs/")[2].partition("/")[2]]
    assert verified.nodes[other.address]["exit"] == 0
    assert _ids(_run(world, "provision", "--repair", "--limit", node.address, rc=0)) == {image}
    _run(world, "verify", rc=0)


def _pulled(world: World, node: Node, other: Node, gateway: str, another: dict[Path, str]) -> None:
    """A node pulls by its digest what was pushed; one without a runtime is refused."""
    node.run(["sh", "-c", f"podman rmi --all --force; rm -r {PREFIX}"])
    with registry(world.top, gateway) as address:
        world.env["no_proxy"] = world.env["NO_PROXY"] = gateway
        _target(world, [node, other], registry=f"{address}/tiny", insecure=True)
        found = _run(world, "provision", rc=7).nodes
        error = found[other.address]["error"]
        assert (error["code"], error["exit"]) == ("container-no-runtime", 7)
        assert "podman is not there; docker is not there" in error["why"]
        assert found[node.address]["status"] == "ok", found[node.address]
        image = found[node.address]["image"]
        assert image["digest"].startswith("sha256:") and image["digest"] != f"sha256:{image['id']}"

        # The same image, now named as one that is only pulled: nothing is built, and its labels say what it is.
        _target(world, [node], image=f"{address}/tiny@{image['digest']}", insecure=True)
        pulled = _run(world, "provision", rc=0)
        assert pulled.nodes[node.address]["image"]["id"] == image["id"]
        assert "building" not in pulled.err
        _write(another)
        assert _run(world, "provision", rc=7).code == "image-of-another-lock"
    assert _run(world, "provision", rc=75).code == "registry-unreachable"
