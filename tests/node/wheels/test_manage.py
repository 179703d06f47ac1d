"""The verb `wheels`: what it shows, what it calls damaged, and what pruning leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import identity
from envbuild.node.wheels import manage
from envbuild.node.wheels.store import Store, default_path
from tests.node.wheel_support import filled, inputs, wheel
from tests.support.fails import fails
from tests.support.files import write_file

DAY = 86400


def ask(prefix: Path, action: str, **args: Any) -> dict[str, Any]:
    request = {"protocol": 1, "verb": "wheels", "run": "r", "prefix": str(prefix), "args": {"action": action, **args}}
    changed, result = manage.run(request)
    assert changed == (action == "prune" and bool(result["removed"]) and not args.get("dry_run"))
    return result


def aged(path: Path, days: float) -> Path:
    then = time.time() - days * DAY
    os.utime(path, (then, then), follow_symlinks=False)
    return path


@pytest.fixture
def store(tmp_path: Path) -> tuple[Store, str]:
    return filled(Path(default_path(str(tmp_path))), tmp_path)


def test_a_list_shows_what_each_wheel_was_built_from(
    tmp_path: Path, store: tuple[Store, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = ask(tmp_path, "list")
    (entry,) = result["entries"]
    assert {key: entry[key] for key in ("key", "source", "commit", "torch", "python", "arch_list", "wheel")} == {
        "key": store[1],
        "source": "apex",
        "commit": "a" * 40,
        "torch": "2.4.1+cu124",
        "python": "3.11",
        "arch_list": ["8.0", "9.0"],
        "wheel": "apex-0.1-py3-none-any.whl",
    }
    assert (entry["cuda"], entry["compiler"]) == ("release 12.4, V12.4.131", "c++ (Debian) 12.2.0")
    assert entry["size"] == Path(store[0].path, store[1], entry["wheel"]).stat().st_size
    assert abs(entry["last_used"] - time.time()) < 60
    assert (result["store"], result["notes"]) == (store[0].path, [])
    based = {**inputs(), "torch": ["", ""], "packages": {"torch": "2.11.0+cu130"}}
    key = store[0].put(based, str(wheel(tmp_path / "new")), {}).key
    torch = {entry["key"]: entry["torch"] for entry in ask(tmp_path, "list")["entries"]}
    assert torch == {store[1]: "2.4.1+cu124", key: "2.11.0+cu130"}, "it may be the torch of a base"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(ask(Path("/nowhere"), "list", store="{home}/store/wheels")["entries"]) == 2


def test_looking_writes_nothing_and_a_store_that_is_not_there_is_empty(
    tmp_path: Path, store: tuple[Store, str]
) -> None:
    record = aged(Path(store[0].path, store[1], "build.json"), 3)
    before = sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    ask(tmp_path, "list")
    assert ask(tmp_path, "verify")["ok"] is True
    ask(tmp_path, "prune", keep_days=0, dry_run=True)
    assert record.exists()
    assert sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
    for action in ("list", "verify", "prune"):
        assert ask(tmp_path / "none", action).get("entries", []) == []
    assert not (tmp_path / "none").exists()


def test_verify_names_what_is_damaged_and_leaves_it_where_it_is(tmp_path: Path, store: tuple[Store, str]) -> None:
    _, other = filled(Path(store[0].path), tmp_path, commit="9" * 40)
    wheel = next(Path(store[0].path, other).glob("*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"x")
    result = ask(tmp_path, "verify", store=store[0].path)
    assert (result["ok"], result["damaged"]) == (False, [other])
    states = {entry["entry"]: entry["state"] for entry in result["entries"]}
    assert states == {store[1]: "good", other: "damaged"}
    assert "has sha256" in next(entry["why"] for entry in result["entries"] if entry["entry"] == other)
    assert wheel.exists()


def test_prune_removes_what_was_not_used_for_long_and_says_how_much(tmp_path: Path, store: tuple[Store, str]) -> None:
    _, old = filled(Path(store[0].path), tmp_path, commit="9" * 40)
    aged(Path(store[0].path, old, "build.json"), 40)
    size = sum(path.stat().st_size for path in Path(store[0].path, old).iterdir())
    dry = ask(tmp_path, "prune", keep_days=30, dry_run=True)
    assert ([each["name"] for each in dry["removed"]], dry["bytes"]) == ([old], size)
    result = ask(tmp_path, "prune", keep_days=30)
    assert ([each["name"] for each in result["removed"]], result["bytes"]) == ([old], size)
    assert result["kept"] == [{"name": store[1], "why": "used since"}]
    assert Store(store[0].path).folders() == [store[1]]
    assert os.listdir(store[0].place("tmp")) == os.listdir(store[0].place("leases")) == []


def test_prune_leaves_alone_what_a_living_builder_holds(tmp_path: Path, store: tuple[Store, str]) -> None:
    place = Path(store[0].path)
    aged(place / store[1] / "build.json", 40)
    lease = place / "leases" / f"{store[1]}.json"
    half = place / "tmp" / f"{store[1]}.abc"
    half.mkdir()
    aged(half, 40)
    lease.write_text(json.dumps({**identity.here(), "run": "builds", "token": uuid.uuid4().hex}))
    for dry in (True, False):
        result = ask(tmp_path, "prune", keep_days=0, dry_run=dry)
        assert result["removed"] == []
        assert {each["name"] for each in result["kept"]} == {store[1], f"tmp/{store[1]}.abc"}
        assert all("held by run builds" in each["why"] for each in result["kept"])
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    lease.write_text(json.dumps({**identity.here(), "pid": done.pid, "started": "1", "run": "dead", "token": "t"}))
    result = ask(tmp_path, "prune", keep_days=0)
    assert {each["name"] for each in result["removed"]} == {store[1], f"tmp/{store[1]}.abc"}
    assert store[0].folders() == []


def test_prune_empties_the_quarantine_and_what_killed_builders_left(tmp_path: Path, store: tuple[Store, str]) -> None:
    place = Path(store[0].path)
    store[0].quarantine(store[1], "for the test")
    moved, _reason = sorted((place / "quarantine").iterdir())
    half = place / "tmp" / f"{'0' * 64}.half"
    half.mkdir()
    fresh = place / "tmp" / f"{'1' * 64}.half"
    fresh.mkdir()
    (place / "leases" / ".lease-0a_left9").write_text("")
    mine = [write_file(place / name) for name in ("quarantine/mine", "tmp/mine", "leases/mine", "mine/a")]
    for path in (moved, half, place / "leases" / ".lease-0a_left9", *mine):
        aged(path, 100)
    result = ask(tmp_path, "prune")
    assert [each["name"] for each in result["removed"]] == [f"quarantine/{moved.name}", f"tmp/{half.name}"]
    assert result["bytes"] > 100
    assert [path for path in mine if not path.exists()] == []
    for path in mine:
        path.unlink()
    left = {folder: os.listdir(place / folder) for folder in ("quarantine", "tmp", "leases")}
    assert left == {"quarantine": [], "tmp": [fresh.name], "leases": []}


def test_what_makes_no_sense_or_is_not_ours_to_prune_is_a_coded_error(tmp_path: Path, store: tuple[Store, str]) -> None:
    for args in ({"action": "burn"}, {"action": "prune", "keep_days": -1}, {"action": "prune", "keep_days": "all"}):
        with fails("request-invalid"):
            ask(tmp_path, **args)
    with fails("store-invalid", match="not an absolute path"):
        ask(tmp_path, "list", store="wheels")
    Path(store[0].path).chmod(0o777)
    with fails("not-writable", 7) as found:
        ask(tmp_path, "prune", keep_days=0)
    assert "every user can write it" in found.value.why
