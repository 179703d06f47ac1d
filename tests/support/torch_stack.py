"""A user's stack with torch for the processor, which comes from where packages come from on this machine.

`light`: with the stand-in of `light_torch`, for images, which are made in seconds with it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import World
from tests.node.torch_env import find_links
from tests.support.wheels import write_wheel

TORCH = "2.13.0"
LIGHT, NUMPY = "2.1.0", "numpy==1.26.4"
NOT_HERE = ("index-unreachable", "package-not-found", "resolution-failed")
SMOKE = [{"name": "sound", "deadline": 300}, {"name": "machine", "deadline": 300}]


def torch_stack(world: World, name: str = "tiny", *, light: bool = False, **profile: Any) -> None:
    """`work/<name>.yaml`, locked; the test is skipped where torch is not available."""
    version, packages = (LIGHT, [NUMPY]) if light else (TORCH, [])
    if light:
        folder = Path(__file__).with_name("light_torch")
        files = {f"torch/{path.relative_to(folder)}": path.read_bytes() for path in sorted(folder.rglob("*.py"))}
        write_wheel(world.wheels, "torch", f"{version}+cpu", files)
    (world.home / ".config" / "uv" / "uv.toml").unlink(missing_ok=True)
    world.env |= {"PIP_FIND_LINKS": " ".join((str(world.wheels), *find_links()))}
    world.env |= {key: value for key, value in os.environ.items() if key.startswith("UV_") or key == "PIP_CERT"}
    given = {"torch": {"version": version, "flavours": ["cpu"]}, "smoke": SMOKE, "imports": ["torch"], **profile}
    stack = world.stack(name, **{"packages": packages, **given})
    done = world.run("lock", "create", f"./{stack.name}", timeout=280)
    if any(f"error[{code}]" in done.err for code in NOT_HERE):
        pytest.skip(f"torch {version} is not available here: {done.err[-400:]}")
    assert done.rc == 0, done.err
