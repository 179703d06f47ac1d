"""`envbuild cache` on this machine: what it prints, and what it leaves."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.e2e.world import World


def made(path: Path, days: float) -> Path:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 5000)
    then = time.time() - days * 86400
    for each in (path, path.parent):
        os.utime(each, (then, then))
    return path


def test_d11_clean_says_first_and_then_does_here_and_on_the_nodes_of_a_target(world: World) -> None:
    own = world.home / ".cache" / "envbuild" / "artifacts" / "packages"
    old, young = made(own / "a" / "old.whl", 40), made(own / "b" / "young.whl", 3)
    delivered = made(world.prefix / "store" / ("c" * 12) / "x.whl", 40)
    shown = world.good("cache", "show", "--target", "local").out.splitlines()
    assert [line.split()[0] for line in shown] == ["this", "packages", "localhost:", "delivered"]
    assert shown[1].split()[1:5] == ["25", "kB", "in", "2"] and shown[1].endswith(str(own))

    said = world.good("cache", "clean", "--target", "local").out
    assert said.splitlines()[-1].startswith("would remove 2 items, ")
    assert old.exists() and delivered.exists()
    assert world.good("cache", "clean", "--yes").out.splitlines()[-1].startswith("removed 1 item, ")
    assert (old.exists(), young.exists(), delivered.exists()) == (False, True, True)
    gone = world.good("cache", "clean", "--target", "local", "--yes", "--json").json["caches"]
    assert [item["removed"] for item in gone] == [[], [str(delivered.parent)]]
    assert world.good("cache", "clean", "--target", "local").out.splitlines()[-1] == "no item is that old"
