"""`envbuild store`: what is kept on this machine and on nodes, what is removed of it, and what is never."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import identity
from envbuild.node.wheels.store import Store, default_path
from envbuild.provision.run.journal import EventKind
from envbuild.provision.run.run_dir import RunDir
from tests.e2e.world import World
from tests.node.wheel_support import filled
from tests.support.files import write_file

DAY = 86400


def made(path: Path, days: float) -> Path:
    write_file(path, b"x" * 5000)
    then = time.time() - days * DAY
    for each in (path, path.parent):
        os.utime(each, (then, then))
    return path


@pytest.fixture
def stored(world: World) -> tuple[World, Path, str]:
    """A world whose prefix has one stored wheel; with it the store and the key."""
    store, key = filled(Path(default_path(str(world.prefix))), world.top)
    return world, Path(store.path), key


def places(world: World, *words: str) -> list[tuple[str, str, int]]:
    """Machine, kind and number of items of what `store list` or `clean` names."""
    found: list[dict[str, Any]] = world.good("store", *words, "--json").json["places"]
    return [(row["where"], row["kind"], row["items"]) for row in found]


def test_d11_clean_says_first_and_then_does_here_and_on_the_nodes_of_a_target(world: World) -> None:
    assert world.good("store", "list").out == "nothing is kept\n"
    assert world.good("store", "verify").out == "localhost: 0 of 0 wheels are what their records say\n"
    assert world.good("store", "clean").out == "nothing is that old\n"
    assert not world.prefix.exists()
    own = world.home / ".cache" / "envbuild" / "artifacts" / "packages"
    old, young = made(own / "a" / "old.whl", 40), made(own / "b" / "young.whl", 3)
    delivered = made(world.prefix / "store" / ("c" * 12) / "x.whl", 40)
    told = [row for row in places(world, "list") if row[2]]
    assert told == [("this machine", "packages", 2), ("localhost", "delivered", 1)]
    head, first, second = world.good("store", "list").out.splitlines()
    assert head.split() == ["WHERE", "KIND", "SIZE", "ITEMS", "PATH"]
    assert first.split()[2:] == ["packages", "25", "kB", "2", str(own)] and second.startswith("localhost")

    said = world.good("store", "clean").out
    assert said.splitlines()[-1].startswith("would remove 2 items, ")
    assert old.exists() and delivered.exists()
    assert world.good("store", "clean", "--keep", "41d").out == "nothing is that old\n"
    assert world.good("store", "clean", "--only", "runs", "--yes").out == "nothing is that old\n"
    gone = world.good("store", "clean", "--yes", "--json").json
    assert gone["removed"] and {path for row in gone["places"] for path in row["old"]} == {
        str(old.parent), str(delivered.parent),
    }  # fmt: skip
    assert (old.exists(), young.exists(), delivered.exists()) == (False, True, False)
    assert world.good("store", "clean").out.splitlines()[-1] == "nothing is that old"


def test_old_runs_go_but_never_what_runs_nor_the_newest(world: World) -> None:
    for number in range(4):
        run = RunDir(world.runs / f"2026010{number}T000000Z-aaaa")
        run.path.mkdir(parents=True)
        with run.open_journal() as journal:
            journal.append(EventKind.RUN_STARTED, **identity.here(), verb="provision", stack="tiny", target="local")
            if number != 2:
                journal.append(EventKind.RUN_FINISHED, exit=0)
        for path in (run.journal_path, run.path):
            os.utime(path, (0, 0))
    said = world.good("store", "clean", "--only", "runs").out.splitlines()
    assert said[0].startswith(f"this machine: runs, 2 in {world.runs}, ")
    assert said[-1].startswith("would remove 2 items, ") and said[-1].endswith("; `--yes` does it")
    world.good("store", "clean", "--only", "runs", "--yes")
    left = sorted(path.name for path in world.runs.iterdir())
    assert left == ["20260102T000000Z-aaaa", "20260103T000000Z-aaaa"]


def test_wheels_are_listed_in_a_line_each_verified_and_removed_when_they_are_old(
    stored: tuple[World, Path, str],
) -> None:
    world, store, key = stored
    world.env["COLUMNS"] = "40"
    lines = world.good("store", "list", "--only", "wheels").out.splitlines()
    assert lines[1].split()[1:4] == ["wheels", "1", "kB"] and lines[1].endswith(str(store))
    heading, row = lines[-2:]
    assert heading.split()[:4] == ["key", "source", "commit", "torch"]
    words = [key[:12], "apex", "a" * 12, "2.4.1+cu124", "12.4", "8.0", "9.0", "c++", "12.2.0", "1", "kB", "today"]
    assert row.split() == words
    assert world.good("store", "verify").out == "localhost: 1 of 1 wheels are what their records say\n"
    (wheel,) = (store / key).glob("*.whl")
    wheel.write_bytes(b"x" + wheel.read_bytes()[1:])
    done = world.run("store", "verify")
    assert done.rc == 1
    assert f"damaged   {key[:12]}  apex: apex-0.1-py3-none-any.whl has sha256" in done.out
    told = world.run("store", "verify", "--json")
    assert (told.rc, told.json["ok"], told.json["stores"][0]["damaged"]) == (1, False, [key])
    assert "damaged" not in world.good("store", "list").out, "a list reads no wheel"
    then = time.time() - 100 * DAY
    os.utime(store / key / "build.json", (then, then))
    assert "100 days ago" in world.good("store", "list").out
    only = ("--only", "wheels")
    assert "would remove 1 item, 2 kB" in world.good("store", "clean", *only).out
    assert world.good("store", "clean", *only, "--keep", "101d").out == "nothing is that old\n"
    assert world.good("store", "clean", *only, "--yes").out.endswith(f"  {key}\nremoved 1 item, 2 kB\n")
    assert Store(str(store)).folders() == []


def test_the_store_of_a_target_is_asked_and_what_is_wrong_with_it_is_said(stored: tuple[World, Path, str]) -> None:
    world, store, key = stored
    world.env["ENVBUILD_PREFIX"] = str(world.top / "nowhere")
    (world.work / "mine.yaml").write_text(f"name: mine\nextends: local\nstore: {store}\n")
    mine = ("--target", "./mine.yaml")
    assert key[:12] in world.good("store", "list", *mine).out
    assert world.good("store", "list").out == "nothing is kept\n"
    store.chmod(0o777)
    assert "every user can write it (mode 0777)" in world.good("store", "list", *mine).out
    done = world.run("store", "clean", *mine, "--yes", "--json")
    assert (done.rc, done.json["errors"]["localhost"]["code"]) == (7, "not-writable")
