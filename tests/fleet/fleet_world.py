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
    """`work/nodes.yaml` is the target, `work/tiny.yaml` the stack, `top/toolchain.yaml` the one Python."""

    def __init__(self, top: Path, standalone: Path) -> None:
        """Make what its stacks are made of: two wheels and a git source, and the toolchain file with one Python."""
        super().__init__(top)
        del self.env["ENVBUILD_PREFIX"]
        self.env["ENVBUILD_TOOLCHAIN"] = write_toolchain(top / "toolchain.yaml", standalone)
        self.wheel("alpha", "1.0")
        self.wheel("beta", "2.0", scripts={"beta-says": "beta:main"})
        self.source = self.repository("gamma", {"gamma.py": "import alpha\nVERSION = '3'\n"})

    def locked(self, **profile: Any) -> Path:
        """The stack on the standalone Python, locked: of the two wheels and the source, or as `profile` has it."""
        usual: dict[str, Any] = {
            "packages": ["alpha==1.0", "beta==2.0"], "sources": [{**self.source, "install": "path"}],
            "imports": ["alpha", "beta", "gamma"], "environment": {"HF_GREETING": "hello $(id) 'you'"},
        }  # fmt: skip
        return self.lock(self.stack(STACK, interpreters=["standalone"], **(profile or usual)))

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
