"""A node whose environments stand on conda packages of a channel in a folder."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.node.env_support import Node, make_variant
from tests.support.conda import Channel, Package

__all__ = ["CondaNode", "conda_node"]


def rattler_folder() -> str:
    """The folder that holds the package `rattler`."""
    found = pytest.importorskip("rattler", reason="py-rattler is a dependency of the controller")
    return str(Path(found.__file__).parent.parent)


class CondaNode(Node):
    """A node with a channel that has a Python."""

    def __init__(self, top: Path, python: Path | None) -> None:
        super().__init__(top)
        self.channel = Channel(top / "channel")
        self.tools = {"rattler": rattler_folder(), "rattler_python": sys.executable}
        self.packages = []
        if python is not None:
            archive = next((python / "linux-64").iterdir())
            place = self.channel.folder / "linux-64" / archive.name
            place.symlink_to(archive)
            self.packages.append(self.channel.take(place, json.loads((python / "index.json").read_text())))

    def add(self, *packages: Package) -> list[dict[str, Any]]:
        return [self.channel.add(package) for package in packages]

    def variant(self, conda: list[dict[str, Any]], wheels: list[dict[str, Any]] = [], **more: Any) -> dict[str, Any]:  # noqa: B006
        locked = {"packages": [*self.packages, *conda], "provides": {}, "link_scripts": more.pop("link_scripts", [])}
        return make_variant(wheels, engine="conda", conda=locked, **more)

    def install_request(self, variant: dict[str, Any], **more: Any) -> dict[str, Any]:
        request = super().install_request(variant, **more)
        args = request["args"]
        args["interpreter"] = None
        args["tools"].update(self.tools)
        args["artifacts"].setdefault("conda", {"channels": {"conda-forge": [self.channel.url]}})
        return request


@pytest.fixture
def conda_node(node: Node, conda_python: Path) -> CondaNode:
    """A node with a real CPython in its channel."""
    shutil.rmtree(node.wheels)
    return CondaNode(node.top, conda_python)
