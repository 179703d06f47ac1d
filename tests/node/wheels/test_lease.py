"""Two builders of one wheel: one builds, the other waits and uses it; a dead one is taken over, on every clock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild.node.wheels.build_key import build_key
from envbuild.node.wheels.store import Store
from tests.node.wheel_support import inputs
from tests.support.patience import PATIENCE, until

ROOT = Path(__file__).resolve().parents[3]


class Process:
    """A builder process."""

    def __init__(self, top: Path, name: str, **options: Any) -> None:
        given = {"store": str(top / "store"), "tmp": str(top / name), "run": name, **options}
        self.out, self.err = top / f"{name}.out", top / f"{name}.err"
        argv = [sys.executable, "-m", "tests.node.wheel_builder", json.dumps(given)]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(argv, stdout=out, stderr=err, cwd=ROOT, start_new_session=True)

    def until(self, words: str) -> None:
        """It has said them, and goes on."""
        until(lambda: words in self.out.read_text() + self.err.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.err.read_text()

    def end(self) -> dict[str, Any]:
        self.process.wait(timeout=PATIENCE)
        result = json.loads(self.out.read_text().splitlines()[-1])
        assert isinstance(result, dict)
        return result


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Process] = []

    def one(name: str, building: str = "", waits: bool = False, **options: Any) -> Process:
        """Start a builder; `building` until that file is there, or one that `waits` for another, is met at that."""
        running.append(Process(tmp_path, name, **options, **({"until": str(tmp_path / building)} if building else {})))
        if building or waits:
            running[-1].until("building" if building else "waiting for")
        return running[-1]

    yield one
    for each in running:
        each.process.kill()
        each.process.wait()


def set_clock(clock: Path, now: float) -> None:
    """By rename: the builders read it all the time."""
    new = clock.with_suffix(".new")
    new.write_text(str(now))
    new.rename(clock)


def intact(store: Path) -> None:
    """One entry, good; nothing half there, nobody's lease, nothing in quarantine."""
    opened = Store(str(store))
    (name,) = opened.folders()
    assert name == build_key(inputs())
    assert opened.find(name) is not None
    assert opened.notes == []
    left = {folder: sorted(each.name for each in (store / folder).iterdir()) for folder in ("tmp", "leases")}
    assert left == {"tmp": [], "leases": []}
    assert list((store / "quarantine").iterdir()) == []


def test_one_builds_and_the_other_waits_says_for_whom_and_uses_it(tmp_path: Path, start: Start) -> None:
    one = start("one", building="go")
    two = start("two", waits=True)
    (tmp_path / "go").touch()
    assert one.end()["built"] is True
    result = two.end()
    assert (result["built"], result["by"]) == (False, "one")
    assert f"waiting for run one on {os.uname().nodename}, process {one.process.pid}, which builds apex" in (
        two.err.read_text()
    )
    intact(tmp_path / "store")


def test_of_many_at_once_exactly_one_builds(tmp_path: Path, start: Start) -> None:
    many = [start(f"n{number}", content=f"N = {number}\n") for number in range(5)]
    results = [process.end() for process in many]
    assert sorted(result["built"] for result in results) == [False] * 4 + [True]
    assert len({result["sha256"] for result in results}) == 1
    intact(tmp_path / "store")


def test_a_builder_that_fails_does_not_stop_those_who_wait(tmp_path: Path, start: Start) -> None:
    one = start("one", building="go", fails=4)
    two = start("two", waits=True)
    (tmp_path / "go").touch()
    assert one.end()["exit"] == 4
    assert two.end()["built"] is True
    intact(tmp_path / "store")


def test_a_deadline_ends_the_waiting_with_try_again(tmp_path: Path, start: Start) -> None:
    start("one", building="never")
    two = start("two", wait=0.2)
    result = two.end()
    assert (result["code"], result["exit"], two.process.returncode) == ("build-busy", 75, 75)
    assert "run one on" in result["why"]


@pytest.mark.parametrize("in_put", [False, True], ids=["while it builds", "while it stores"])
def test_a_builder_that_is_killed_is_taken_over_at_once_and_the_store_is_intact(
    tmp_path: Path, start: Start, in_put: bool
) -> None:
    one = start("one", building="never", in_put=in_put)
    two = start("two", waits=True)
    half = list((tmp_path / "store" / "tmp").iterdir())
    assert bool(half) == in_put
    os.killpg(one.process.pid, signal.SIGKILL)
    one.process.wait()
    result = two.end()
    assert (result["built"], result["by"]) == (True, "two")
    assert "took over the lease of run one" in two.err.read_text()
    intact(tmp_path / "store")


def test_a_builder_that_wakes_up_late_uses_what_its_successor_stored(tmp_path: Path, start: Start) -> None:
    clock = tmp_path / "clock"
    set_clock(clock, 1000000)
    one = start("one", building="go", clock=str(clock), host="elsewhere", content="LATE = 1\n")
    one.process.send_signal(signal.SIGSTOP)
    set_clock(clock, 1000500)
    two = start("two", clock=str(clock), host="here")
    second = two.end()
    assert (second["built"], second["by"]) == (True, "two")
    (tmp_path / "go").touch()
    one.process.send_signal(signal.SIGCONT)
    assert one.end()["sha256"] == second["sha256"]
    intact(tmp_path / "store")
