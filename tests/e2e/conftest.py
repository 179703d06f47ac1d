"""A world with a stack in use, for the tests of a module; a prefix on a small disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.world import World
from tests.support.programs import completed


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> World:
    """`tiny`, provisioned once, as run one; each test takes back what it changes."""
    world = World(tmp_path_factory.mktemp("built"))
    world.tiny()
    world.built()
    return world


@pytest.fixture
def mount(world: World) -> Iterator[Callable[[str], None]]:
    """`mount(options)`: the prefix is a tmpfs, whatever it was before."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small tmpfs")

    def end() -> None:
        if world.prefix.is_mount():
            subprocess.run(["umount", "-l", str(world.prefix)], check=True)

    def mounted(options: str) -> None:
        end()
        world.prefix.mkdir(exist_ok=True)
        done = completed(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(world.prefix)])
        if done.returncode:
            pytest.skip(f"no tmpfs can be mounted here: {done.stderr}")

    yield mounted
    end()
