"""A node whose disk has no room, no inodes or takes no writes: before the work, and in the middle of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.world import ended
from tests.fleet.faults import PAUSE, hold, release, start, wait_held
from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld
from tests.fleet.nodes import Node, StartNodes

pytestmark = [pytest.mark.slow, pytest.mark.nodes, pytest.mark.timeout(900)]
BALLAST = f"{PREFIX}/ballast"
FILL = {
    "space": f"head -c 900m /dev/zero > {BALLAST} 2>/dev/null; test -s {BALLAST}",
    "inodes": f"mkdir -p {BALLAST}; cd {BALLAST}; i=0; while true > $i; do i=$((i+1)); done 2>/dev/null; true",
    "read-only": f"mount -o remount,ro {PREFIX}",
}
# A file system with files that are being written cannot be made read-only; what is opened from now on can.
CLOSED = f"mount --bind {PREFIX}/envs {PREFIX}/envs && mount -o remount,bind,ro {PREFIX}/envs"
EMPTY = f"umount -l {PREFIX}/envs 2>/dev/null; mount -o remount,rw {PREFIX}; rm -rf {BALLAST}"
BEFORE = {"space": (7, "disk-space"), "inodes": (7, "disk-inodes"), "read-only": (7, "prefix-usable")}
DURING = {"space": (75, "disk-full"), "inodes": (75, "disk-full"), "read-only": (7, "not-writable")}


@pytest.fixture(scope="module")
def small(
    lasting_fleet: StartNodes, tmp_path_factory: pytest.TempPathFactory, standalone_python: Path
) -> tuple[FleetWorld, Node]:
    """A node whose prefix is a small disk with version 1.0 in use; the stack is then changed to 2.0, with `pause`."""
    (node,) = lasting_fleet(1, kind="full")
    world = FleetWorld(tmp_path_factory.mktemp("world"), standalone_python)
    world.locked()
    node.run(["mkdir", PREFIX])
    node.run(["mount", "-t", "tmpfs", "-o", "size=400m,nr_inodes=9000", "tmpfs", PREFIX])
    world.target([node])
    world.fleet("provision", rc=0)
    world.wheel("alpha", "2.0")
    source = {**world.repository("pause", PAUSE), "install": "wheel"}
    world.locked(packages=["alpha==2.0"], sources=[source], imports=["alpha", "pause"])
    return world, node


def _in_use(node: Node) -> str:
    code = "import alpha; print(alpha.VERSION)"
    return node.run([f"{PREFIX}/current/{STACK}/bin/python", "-c", code]).stdout.strip()


@pytest.mark.parametrize("what", BEFORE)
def test_a_prefix_without_room_is_refused_with_numbers_before_anything_is_done(
    small: tuple[FleetWorld, Node], what: str
) -> None:
    world, node = small
    node.run(["sh", "-c", FILL[what]])
    try:
        done = world.fleet("provision")
        error = done.error
        assert (done.rc, error["code"]) == BEFORE[what], error
        decisions = done.node["resolution"]["decisions"]
        (against,) = [each for each in decisions if each["verdict"] == "refuse"]
        if what == "read-only":
            assert "read-only" in error["what"].lower()
        else:
            assert "free" in against["compared"][0]
            assert "needed" in against["compared"][1]
        assert done.json["steps_run"] == 0
        assert (_in_use(node), len(node.run(["ls", f"{PREFIX}/envs"]).stdout.split())) == ("1.0", 1)
    finally:
        node.run(["sh", "-c", EMPTY])


@pytest.mark.parametrize("what", DURING)
def test_a_disk_that_fills_while_it_is_installed_leaves_what_is_in_use(
    small: tuple[FleetWorld, Node], what: str
) -> None:
    world, node = small
    hold(node, "build")
    process = start(world)
    wait_held([node], "build", process)
    try:
        node.run(["sh", "-c", CLOSED if what == "read-only" else FILL[what]])
        release(node, "build")
        done = ended(process)
        assert (done.rc, done.error["code"]) == DURING[what], done.error
        assert (done.node["status"], _in_use(node)) == ("refused" if done.rc == 7 else "failed", "1.0")
        assert "building the environment failed" in done.err
    finally:
        node.run(["sh", "-c", EMPTY])
        release(node, "build")


def test_the_same_command_works_once_there_is_room(small: tuple[FleetWorld, Node]) -> None:
    world, node = small
    assert _in_use(node) == "1.0"
    world.fleet("provision", rc=0)
    assert _in_use(node) == "2.0"
    assert node.run(["ls", "-A", f"{PREFIX}/tmp"]).stdout == ""
    assert node.run(["test", "-e", f"{PREFIX}/lease.json"], check=False).returncode == 1
    world.fleet("verify", rc=0)
