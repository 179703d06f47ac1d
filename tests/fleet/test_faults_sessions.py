"""Connections and controllers that end in the middle of a step, several controllers at once, and clocks that differ."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.killing import descendants
from tests.e2e.world import ended
from tests.fleet import faults
from tests.fleet.faults import FaultWorld, hold, imports, release, start, wait_for, wait_held
from tests.fleet.fleet_world import PREFIX, STACK
from tests.fleet.nodes import Node, StartNodes
from tests.node.forge import need_compiler
from tests.support.patience import PATIENCE
from tests.support.programs import completed

pytestmark = [pytest.mark.slow, pytest.mark.nodes, pytest.mark.timeout(900)]
Place = tuple[FaultWorld, list[Node]]
SHARED = "/shared/envbuild"
# The clock that programs read; files keep the time of the file system, as they do on a server.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long off(void) { const char *text = getenv("CLOCK_OFF_BY"); return text ? atol(text) : 0; }
int clock_gettime(clockid_t which, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(which, out);
    if (!code && which == CLOCK_REALTIME) out->tv_sec += off();
    return code;
}
int gettimeofday(struct timeval *out, void *zone) {
    struct timespec now;
    int code = clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec, out->tv_usec = now.tv_nsec / 1000;
    return code;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""
DAY = 86400


@pytest.fixture(scope="module")
def placed(lasting_fleet: StartNodes, tmp_path_factory: pytest.TempPathFactory, standalone_python: Path) -> Place:
    """Two nodes, and a world whose stack waits on them when it is told to."""
    world = FaultWorld(tmp_path_factory.mktemp("world"), standalone_python)
    return world, lasting_fleet(2, kind="full", tools=True)


@pytest.fixture
def two(placed: Place) -> Iterator[Place]:
    """The same with nothing built."""
    world, nodes = placed
    for node in nodes:
        faults.clear(node)
    world.target(nodes)
    yield placed
    for node in nodes:
        release(node, "build")
        release(node, "import")


def _kill(process: subprocess.Popen[str], which: str) -> None:
    """`kill -9` for a controller, for all that it has started here, and for ssh's masters, which are nobody's child."""
    victims = [process.pid]
    if which != "alone":
        victims += descendants(process.pid)
    if which == "with its connections":
        argv = ["pgrep", "-f", f"^ssh.*eb-ssh-{process.pid}[.]"]
        masters = completed(argv).stdout.split()
        assert masters, "connections are shared"
        victims += map(int, masters)
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)


def _assert_quiet(node: Node, prefix: str = PREFIX) -> None:
    """Nothing of ours runs there, nothing is held, and there is one environment."""
    wait_for("quiet", lambda: faults.working(node) == [])
    assert node.run(["ls", "-A", f"{prefix}/tmp"]).stdout == ""
    assert node.run(["test", "-e", f"{prefix}/lease.json"], check=False).returncode == 1
    assert len(node.run(["ls", "-A", f"{prefix}/envs"]).stdout.split()) == 1


def test_a_session_that_is_killed_in_the_middle_of_steps_is_opened_again_and_no_step_runs_twice_at_once(
    two: Place,
) -> None:
    world, (node, _) = two
    world.target([node])
    hold(node, "build")
    hold(node, "import")
    process = start(world)
    for moment, verb in (("build", "install"), ("import", "smoke")):
        wait_held([node], moment, process)  # type: ignore[arg-type]
        (before,) = faults.working(node)
        assert before.endswith(verb)
        node.run(["pkill", "-KILL", "-f", "sshd: root@notty"], check=False)  # the one that runs this, too
        wait_for("ended", lambda old=before: old not in faults.working(node), process)  # type: ignore[misc]
        wait_for("begun again", lambda: len(faults.working(node)) == 1, process)
        release(node, moment)  # type: ignore[arg-type]
    done = ended(process)
    assert done.rc == 0, done.err
    assert imports(node) == "1.0 1.0\n"
    _assert_quiet(node)


def test_after_kill_9_of_the_controller_the_same_command_ends_what_was_left_and_converges(two: Place) -> None:
    world, (node, _) = two
    world.target([node])
    for which in ("alone", "with its children", "with its connections"):
        faults.clear(node)
        hold(node, "build")
        process = start(world)
        wait_held([node], "build", process)
        (left,) = faults.working(node)
        _kill(process, which)
        if which == "with its connections":
            wait_for("ended", lambda: faults.working(node) == [])
            assert node.run(["test", "-e", f"{PREFIX}/lease.json"], check=False).returncode == 1
        begun = time.monotonic()
        again = start(world)
        wait_for("ended", lambda old=left: old not in faults.working(node), again)  # type: ignore[misc]
        release(node, "build")
        done = ended(again)
        assert done.rc == 0, done.err
        assert time.monotonic() - begun < 60, "the lease of a controller that is gone is not waited for"
        assert imports(node) == "1.0 1.0\n"
        _assert_quiet(node)

    # D100: in a repair the environment in use imports, and a plain rerun converges. Each repair comes to a node where
    # another one was killed and mended.
    for which in ("alone", "with its connections", "the node too"):
        hold(node, "import")
        process = start(world, "--repair")
        wait_held([node], "import", process)
        _kill(process, which)
        if which == "the node too":
            node.run(["pkill", "-KILL", "-f", "envbuild-node"], check=False)
        release(node, "import")
        assert imports(node) == "1.0 1.0\n"
        wait_for("ended", lambda: faults.working(node) == [])
        for more in ([], ["--repair"]):
            assert world.fleet("provision", *more, rc=0).node["root"] == done.node["root"]
            assert imports(node) == "1.0 1.0\n"
        _assert_quiet(node)


def test_of_two_controllers_one_waits_or_is_told_and_there_is_one_environment(two: Place) -> None:
    world, nodes = two
    for node in nodes:
        hold(node, "build")
    first = start(world)
    wait_for("a build", lambda: any(node.file("/srv/held-build").exists() for node in nodes), first)
    (builder, *_) = [node for node in nodes if node.file("/srv/held-build").exists()]
    told = world.fleet("provision", "--wait", "0s", "--host", builder.address, rc=75)
    assert told.error["code"] == "prefix-busy", told.err
    assert builder.run(["hostname"]).stdout.strip() in told.error["why"]
    second = start(world)
    time.sleep(2)
    for node in nodes:
        release(node, "build")
    one, two_ = ended(first), ended(second)
    assert (one.rc, two_.rc) == (0, 0), one.err + two_.err
    assert len({item["root"] for done in (one, two_) for item in done.nodes.values()}) == 1
    for node in nodes:
        _assert_quiet(node)
    world.fleet("verify", rc=0)


@pytest.fixture(scope="module")
def clock_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library to preload that moves the clock by `CLOCK_OFF_BY` seconds."""
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK)
    library = folder / "clock.so"
    argv = [need_compiler(), "-shared", "-fPIC", "-o", str(library), str(folder / "clock.c"), "-ldl"]
    subprocess.run(argv, check=True)
    return library


def _skew(node: Node, seconds: int, library: Path) -> None:
    """Every new session of a node gets a clock that is off by so much."""
    config = node.folder / "etc" / "sshd_config"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("SetEnv")]
    shutil.copy(library, node.folder / "etc" / "clock.so")
    lines.append(f"SetEnv LD_PRELOAD=/nodeetc/clock.so CLOCK_OFF_BY={seconds}")
    config.write_text("\n".join([*lines, ""]))
    node.run(["kill", "-HUP", "1"])
    wait_for("the new clock", lambda: _is_off(node, seconds))


def _is_off(node: Node, seconds: int) -> bool:
    done = node.run(["date", "+%s"], check=False)
    return done.returncode == 0 and abs(int(done.stdout) - time.time() - seconds) < 600


@pytest.mark.parametrize("off", [DAY, -DAY])
def test_nodes_on_one_prefix_whose_clocks_differ_by_a_day_take_no_lease_from_each_other(
    two: Place, clock_library: Path, off: int
) -> None:
    world, (right, wrong) = two
    right.run(["sh", "-c", f"rm -rf {SHARED}/envs {SHARED}/current {SHARED}/store {SHARED}/lease.json"])
    world.target([right, wrong], prefix=SHARED)
    _skew(wrong, off, clock_library)
    try:
        hold(right, "build")
        first = start(world, "--host", right.address)
        wait_held([right], "build", first)
        told = world.fleet("provision", "--wait", "1s", "--host", wrong.address, rc=75)
        assert told.error["code"] == "prefix-busy", told.error
        second = start(world, "--host", wrong.address)
        time.sleep(1)
        release(right, "build")
        done = [ended(first), ended(second)]
        assert [each.rc for each in done] == [0, 0], done
        assert len({item["root"] for each in done for item in each.nodes.values()}) == 1
        _assert_quiet(wrong, SHARED)

        owner = {"run": "died", "host": "elsewhere", "boot_id": "x", "pid": 1, "controller": {}, "token": "t"}
        right.run(["sh", "-c", f"cat > {SHARED}/lease.json"], stdin=json.dumps(owner))
        right.run(["touch", "-d", "3 minutes ago", f"{SHARED}/lease.json"])
        right.run(["rm", "-r", f"{SHARED}/current"])
        late = world.fleet("provision", "--wait", "5s", "--host", wrong.address, rc=0)
        assert late.statuses == {wrong.address: "ok"}
        assert wrong.run(["readlink", f"{SHARED}/current/{STACK}"]).stdout.startswith("../envs/")
    finally:
        _skew(wrong, 0, clock_library)
