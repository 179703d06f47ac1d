"""`envbuild wheels` on this machine: what it prints, and how it ends."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from envbuild.node.wheels.store import Store, default_path
from tests.e2e.world import World
from tests.node.wheel_support import filled


@pytest.fixture
def stored(world: World) -> tuple[World, Path, str]:
    """A world whose prefix has one stored wheel; with it the store and the key."""
    store, key = filled(Path(default_path(str(world.prefix))), world.top)
    return world, Path(store.path), key


def damage(store: Path, key: str) -> None:
    (wheel,) = (store / key).glob("*.whl")
    wheel.write_bytes(b"x" + wheel.read_bytes()[1:])


def test_a_list_has_a_line_for_each_wheel_whatever_the_width(stored: tuple[World, Path, str]) -> None:
    world, _, key = stored
    world.env["COLUMNS"] = "40"
    heading, row, total = world.good("wheels", "list").out.splitlines()
    assert heading.split()[:4] == ["key", "source", "commit", "torch"]
    words = [key[:12], "apex", "a" * 12, "2.4.1+cu124", "12.4", "8.0", "9.0", "c++", "12.2.0", "1", "kB", "today"]
    assert row.split() == words
    assert total == "1 wheel, 1 kB"


def test_a_prefix_without_a_store_has_no_wheels_and_gets_none_by_looking(world: World) -> None:
    done = world.good("wheels", "list")
    assert done.out == "no wheels\n" and done.err.startswith("hint: `envbuild provision` keeps here what it builds")
    assert world.good("wheels", "verify").out == "0 of 0 wheels are what their records say\n"
    assert world.good("wheels", "prune").out == "nothing to remove\n"
    assert not world.prefix.exists()


def test_verify_ends_with_1_and_names_the_damaged_wheel(stored: tuple[World, Path, str]) -> None:
    world, store, key = stored
    assert world.good("wheels", "verify").out == "1 of 1 wheels are what their records say\n"
    damage(store, key)
    done = world.run("wheels", "verify")
    assert done.rc == 1
    assert f"damaged   {key[:12]}  apex: apex-0.1-py3-none-any.whl has sha256" in done.out
    told = world.run("wheels", "verify", "--json")
    assert (told.rc, told.json["ok"], told.json["stores"][0]["damaged"]) == (1, False, [key])
    assert "damaged" not in world.good("wheels", "list").out, "a list reads no wheel"


def test_prune_says_first_and_then_does(stored: tuple[World, Path, str]) -> None:
    world, store, key = stored
    then = time.time() - 100 * 86400
    os.utime(store / key / "build.json", (then, then))
    assert "100 days ago" in world.good("wheels", "list").out
    assert "would remove 1, 1 kB" in world.good("wheels", "prune", "--dry-run").out
    assert world.good("wheels", "prune", "--keep-days", "101").out == "nothing to remove\n"
    assert f"removed apex {key[:24]}\nremoved 1, 1 kB" in world.good("wheels", "prune").out
    assert Store(str(store)).folders() == []


def test_another_store_can_be_named_and_what_is_wrong_with_it_is_said(stored: tuple[World, Path, str]) -> None:
    world, store, key = stored
    world.env["ENVBUILD_PREFIX"] = str(world.top / "nowhere")
    assert world.good("wheels", "list", "--store", str(store), "--json").json["stores"][0]["entries"][0]["key"] == key
    done = world.run("wheels", "list", "--store", "relative")
    assert (done.rc, done.code) == (2, "store-invalid")
    store.chmod(0o777)
    assert "every user can write it (mode 0777)" in world.good("wheels", "list", "--store", str(store)).out
    done = world.run("wheels", "prune", "--store", str(store))
    assert (done.rc, done.code) == (7, "store-not-writable")


def test_the_store_of_a_target_is_the_one_that_is_asked(stored: tuple[World, Path, str]) -> None:
    world, store, key = stored
    world.env["ENVBUILD_PREFIX"] = str(world.top / "nowhere")
    (world.work / "mine.yaml").write_text(f"name: mine\nextends: local\nstore: {store}\n")
    assert key[:12] in world.good("wheels", "list", "--target", "./mine.yaml").out
    assert world.good("wheels", "list").out == "no wheels\n"
