"""Places, stacks and recorded command lines for the tests of launch recipes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from envbuild.catalog.yaml_load import load_yaml
from envbuild.launch.recipes import launch
from envbuild.launch.request import Place
from envbuild.model.launch import Launch
from envbuild.model.stack import Stack
from tests.support.stacks import shipped_stack

ENVIRONMENT = "/data/envbuild/current/x"
OUTPUT = "/data/runs/1"


@cache
def stack(name: str) -> Stack:
    return shipped_stack(name).stack


@cache
def recorded() -> dict[str, Any]:
    """What the documents' own scripts emitted; see the head of the file."""
    return dict(load_yaml(Path(__file__).parent / "recorded.yaml"))


def place(nodes: int = 1, gpus: int = 8, **fields: Any) -> Place:
    fields = {"environment": ENVIRONMENT, "output": OUTPUT, "master": "10.0.0.1" if nodes > 1 else None, **fields}
    return Place(nodes=nodes, gpus_per_node=gpus, **fields)


def started(name: str, where: Place, /, profile: str = "exact", **values: str) -> Launch:
    return launch(stack(name), profile, values, where)
