"""An environment that was installed from a bundle in a shared folder, and what that folder says of it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from envbuild.node.bundle import archive, index
from envbuild.node.env import stamp
from envbuild.node.hashing import digest_of
from envbuild.node.shared import ensure, look
from tests.node.env_support import Node, make_variant, make_wheel


def bundle_of(folder: Path, to: Path) -> str:
    """Write a bundle of the wheels in a folder; its digest."""
    paths = {f"wheels/{path.name}": str(path) for path in folder.glob("*.whl")}
    rows = [
        {"path": name, "sha256": digest_of(path), "bytes": os.path.getsize(path), "what": "wheel"}
        for name, path in paths.items()
    ]
    made = index.make("demo", "exact", [os.uname().machine], ["v"], rows)
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.open("wb") as out:
        archive.to_tar(out, made, paths)
    return str(made["digest"])


class Published:
    """`wipe` removes the node's whole prefix, as another node has nothing of it."""

    def __init__(self, node: Node) -> None:
        self.node, self.shared = node, node.top / "shared"
        files = {"alpha/__init__.py": b"def main():\n    print(1)\n", "alpha/data": b"data"}
        self.variant = make_variant([make_wheel(node.wheels, files=files, scripts={"alpha": "alpha:main"})])
        self.bundle = self.shared / "store" / ("0" * 12) / "bundle.tar"
        digest = bundle_of(node.wheels, self.bundle)
        artifacts = {"bundle": {"file": str(self.bundle), "digest": digest}, "sources": {}}
        request = node.install_request(self.variant, artifacts=artifacts)["args"]
        node.install(self.variant, artifacts=artifacts)
        self.more = node.top / "job" / "requests" / "ensure.json"
        told = {"folder": str(self.shared / "ensure"), "script": "#!/bin/sh\n", "requests": [str(self.more)]}
        publish = {**told, "install": request}
        node.activate(self.variant, variables={"A": "1"}, evidence={"hardware": ["none"]}, publish=publish)
        self.environment = node.environment(self.variant)
        self.stamp: dict[str, Any] = stamp.read(str(self.environment)) or {}
        shutil.rmtree(node.wheels)

    def wipe(self) -> None:
        shutil.rmtree(self.node.prefix)

    def request(self) -> dict[str, Any]:
        """What every later job sends."""
        found = json.loads((self.shared / "ensure" / "demo.json").read_text())
        assert isinstance(found, dict)
        return found

    def ensure(self) -> tuple[bool, dict[str, Any]]:
        request = self.request()
        return ensure.run({**request, "args": {**request["args"], "wait": 30}})

    def verify(self) -> dict[str, Any]:
        return look.verify({**self.node.request("verify", stack="demo", deep=True), "prefix": str(self.shared)})[1]
