"""What goes wrong on nodes, at a known moment: a source waits there until it is told to go on."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld
from tests.fleet.nodes import Node
from tests.support.wheels import PACK

Moment = Literal["build", "import"]
DEADLINE_S = 240.0
# Built on the node by a backend of its own; waits at its build and at its import while `/srv/hold-<moment>` is there.
WAIT = """
import os, time
def wait(moment):
    until = time.monotonic() + 240
    while os.path.exists("/srv/hold-" + moment) and time.monotonic() < until:
        print("waiting at " + moment, flush=True)
        try:
            open("/srv/held-" + moment, "w").close()
        except OSError:
            pass
        time.sleep(0.1)
"""
_BACKEND = (
    PACK
    + WAIT
    + """
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    wait("build")
    files = {"pause/__init__.py": open("pause/__init__.py").read()}
    return write_wheel(Path(wheel_directory), "pause", "1.0", files).name
"""
)
PAUSE = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "backend.py": _BACKEND,
    "pause/__init__.py": WAIT + 'VERSION = "1.0"\nwait("import")\n',
}


class FaultWorld(FleetWorld):
    """Its stack has the wheel `alpha` and the source `pause`."""

    def __init__(self, top: Path, standalone: Path) -> None:
        """Lock the stack."""
        super().__init__(top, standalone)
        source = {**self.repository("pause", PAUSE), "install": "wheel"}
        self.locked(packages=["alpha==1.0"], sources=[source], imports=["alpha", "pause"])


def hold(node: Node, moment: Moment) -> None:
    """The next build or import of `pause` waits on this node."""
    node.run(["sh", "-c", f"mkdir -p /srv && rm -f /srv/held-{moment} && touch /srv/hold-{moment}"])


def release(node: Node, moment: Moment) -> None:
    """Let it go on."""
    node.run(["rm", "-f", f"/srv/hold-{moment}", f"/srv/held-{moment}"])


def wait_for(what: str, true: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Wait until something is so; a `process` that ends before shows what it said."""
    until = time.monotonic() + DEADLINE_S
    while not true():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"not {what}: {process.communicate()}")
        if time.monotonic() > until:
            if process is not None:
                process.kill()
            raise AssertionError(f"not {what} within {DEADLINE_S:g} s: {process and process.communicate()}")
        time.sleep(0.1)


def wait_held(nodes: Iterable[Node], moment: Moment, process: subprocess.Popen[str]) -> None:
    """Wait until `pause` waits on every one of these nodes."""
    for node in nodes:
        wait_for(f"held at {moment} on {node.address}", node.file(f"/srv/held-{moment}").exists, process)


def start(world: FleetWorld, *args: str, **more: object) -> subprocess.Popen[str]:
    """`provision` in the background."""
    return world.start("provision", "--target", "./nodes.yaml", "--json", *args, **more)  # type: ignore[arg-type]


def clear(node: Node) -> None:
    """Take away what was built; the toolchain stays, for bringing it costs most."""
    node.run(["sh", "-c", f"rm -rf {PREFIX}/envs {PREFIX}/current {PREFIX}/store {PREFIX}/cache {PREFIX}/lease.json"])


def working(node: Node, pattern: str = "envbuild-node") -> list[str]:
    """Processes on a node, ours or started by ours, by their command line; not the shell that waits for one."""
    lines = node.run(["ps", "-eo", "pid=,args="]).stdout.splitlines()
    return [line for line in lines if re.search(pattern, line) and not re.search("ps -eo|/bin/sh -c", line)]


def imports(node: Node) -> str:
    """What the environment in use says."""
    code = "import alpha, pause; print(alpha.VERSION, pause.VERSION)"
    return node.run([f"{PREFIX}/current/{STACK}/bin/python", "-c", code]).stdout
