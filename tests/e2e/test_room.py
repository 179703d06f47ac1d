"""A file system of exactly the planned size is enough; one 5 % smaller is refused before any work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import World

BLOCK = 4096
Mount = Callable[[int], None]


@pytest.fixture
def mount(mount: Callable[[str], None]) -> Mount:
    """`mount(size)`: the prefix is a tmpfs of that many bytes."""
    return lambda size: mount(f"size={-(-size // BLOCK) * BLOCK}")


def used(folder: Path) -> int:
    """Bytes in use on the file system of a folder."""
    facts = os.statvfs(folder)
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


class Peak:
    """The most bytes in use on a file system while a block of code runs, looked at every 5 ms."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bytes, self._ended = folder, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self.bytes = max(self.bytes, used(self.folder))


def planned(world: World, *args: str) -> dict[str, Any]:
    done = world.good("plan", "--target", "local", "--stack", "./tiny.yaml", "--json", *args)
    node = done.json["plan"]["nodes"][0]
    assert isinstance(node, dict)
    return node


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["node", "controller"])
def test_d11_the_planned_size_is_enough_and_five_percent_less_is_refused_before_any_work(
    world: World, mount: Mount, delivery: str
) -> None:
    # Half of it is easily packed, half is not; and a thousand small files, which take a block each.
    large = {f"alpha/{number}.bin": os.urandom(6_000_000) + bytes(6_000_000) for number in range(3)}
    small = {f"alpha/part{number % 20}/m{number}.py": b"X = 1\n" * (number % 50) for number in range(1000)}
    world.wheel(files={"alpha/__init__.py": b"VERSION = '1.0'\n", **large, **small})
    world.tiny()
    (world.work / "here.yaml").write_text(
        f"name: here\nextends: local\nconnection: {{kind: local}}\ndelivery: {delivery}\n"
    )
    target = ("--target", "./here.yaml")
    node = planned(world, *target)

    mount(int(node["peak_bytes"] * 0.95))
    world.fails(7, "disk-space", *target)
    assert list(world.prefix.iterdir()) == [], "nothing was begun"

    mount(node["peak_bytes"])
    with Peak(world.prefix) as most:
        assert world.provision(*target).rc == 0
    assert node["lasting_bytes"] * 0.95 <= used(world.prefix) <= node["lasting_bytes"]
    assert node["peak_bytes"] * 0.95 <= most.bytes <= node["peak_bytes"]
