"""A user's world whose target is a fleet of real SSH nodes, with an own toolchain file and a stack to build there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.world import Done, World
from tests.fleet.nodes import Node
from tests.fleet.standalone import write_toolchain

PREFIX = "/opt/envbuild"
STACK = "tiny"


class FleetWorld(World):
    """`work/nodes.yaml` is the target, `work/tiny.yaml` the locked stack, `top/toolchain.yaml` the one Python."""

    def __init__(self, top: Path, standalone: Path, *, locked: bool = True) -> None:
        """Make the stack: two wheels and a git source, on the standalone Python of the toolchain file.

        `locked=False`: without stack and lock, for who makes another one.
        """
        super().__init__(top)
        del self.env["ENVBUILD_PREFIX"]
        self.env["ENVBUILD_TOOLCHAIN"] = write_toolchain(top / "toolchain.yaml", standalone)
        self.wheel("alpha", "1.0")
        self.wheel("beta", "2.0", scripts={"beta-says": "beta:main"})
        self.source = self.repository("gamma", {"gamma.py": "import alpha\nVERSION = '3'\n"})
        profile: dict[str, Any] = {
            "packages": ["alpha==1.0", "beta==2.0"],
            "sources": [{**self.source, "install": "path"}],
            "imports": ["alpha", "beta", "gamma"],
            "environment": {"HF_GREETING": "hello $(id) 'you'"},
        }
        if locked:
            self.lock(self.stack(STACK, interpreters=["standalone"], **profile))

    def target(self, nodes: Sequence[Node], **more: Any) -> None:
        """Write `nodes.yaml` for these nodes; `connection` is merged, everything else replaced."""
        connection = nodes[0].connection().to_json_dict() | {"connect_timeout": 3.0} | more.pop("connection", {})
        hosts = [node.address for node in nodes]
        target = {"name": "nodes", "extends": "ssh", "hosts": hosts, "connection": connection, "prefix": PREFIX}
        path = self.work / "nodes.yaml"
        path.write_text(yaml.safe_dump({**target, "stack": f"./{STACK}.yaml", **more}))

    def fleet(self, verb: str, *args: str, **more: Any) -> Done:
        """`envbuild VERB --target ./nodes.yaml --json ARGS`."""
        return self.run(verb, "--target", "./nodes.yaml", "--json", *args, **more)

    @property
    def last_run(self) -> Path:
        """The folder of the newest run."""
        return max(path for path in self.runs.iterdir() if path.is_dir())


def by_node(done: Done) -> dict[str, dict[str, Any]]:
    """Evidence by node address; a provision that ended strangely shows what it said."""
    assert done.out.startswith("{"), f"exit {done.rc}\n{done.out[-2000:]}\n{done.err[-4000:]}"
    return {node["node"]: node for node in done.json["nodes"]}


def checks(evidence: dict[str, Any]) -> dict[str, str]:
    """Status by name of check."""
    return {check["name"]: check["status"] for check in evidence["checks"]}


def stamp(node: Node) -> dict[str, Any]:
    """The stamp of the environment in use on a node."""
    data = json.loads(node.run(["cat", f"{PREFIX}/current/{STACK}/.envbuild/stamp.json"]).stdout)
    assert isinstance(data, dict)
    return data


def listing(node: Node) -> str:
    """Every path that is not part of the system's own churn, with size, mode and times."""
    places = ["/opt", "/root", "/etc", "/usr", "/tmp", "/var/tmp", "/home"]
    return node.run(["find", *places, "-printf", "%p %y %m %s %T@\\n"]).stdout
