"""A user's stack with torch for the processor, which comes from where packages come from on this machine."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.e2e.world import World
from tests.node.torch_env import find_links

TORCH = "2.13.0"
SMOKE = [{"name": "sound", "deadline": 300}, {"name": "machine", "deadline": 300}]


def torch_stack(world: World, name: str = "tiny", **profile: Any) -> None:
    """`work/<name>.yaml`, locked; the test is skipped where torch is not to be had."""
    (world.home / ".config" / "uv" / "uv.toml").unlink(missing_ok=True)
    world.env |= {"PIP_FIND_LINKS": " ".join((str(world.wheels), *find_links()))}
    world.env |= {key: value for key, value in os.environ.items() if key.startswith("UV_") or key == "PIP_CERT"}
    given = {"torch": {"version": TORCH, "flavours": ["cpu"]}, "smoke": SMOKE, "imports": ["torch"], **profile}
    stack = world.stack(name, packages=[], **given)
    done = world.run("lock", "create", f"./{stack.name}", timeout=280)
    if done.rc:
        pytest.skip(f"torch {TORCH} is not to be had here: {done.err[-400:]}")
