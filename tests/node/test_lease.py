"""The lease: one run at a time changes a prefix, and a dead owner holds nobody up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import identity, lease
from envbuild.node.protocol import NodeError


def dead_pid() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def write(prefix: Path, age: float = 0.0, **changes: Any) -> None:
    owner = {**identity.here(), "run": "other", "controller": {}, "token": "t", **changes}
    (prefix / "lease.json").write_text(json.dumps(owner))
    then = time.time() - age
    os.utime(prefix / "lease.json", (then, then))


def test_another_run_is_refused_and_told_whose_it_is(tmp_path: Path) -> None:
    held = lease.acquire(str(tmp_path), "one", None, 0)
    with pytest.raises(NodeError) as found:
        lease.acquire(str(tmp_path), "two", None, 0)
    assert (found.value.code, found.value.exit_code) == ("prefix-busy", 75)
    assert found.value.details["run"] == "one"
    assert str(os.getpid()) in found.value.why
    held.release()
    lease.acquire(str(tmp_path), "two", None, 0).release()
    assert list(tmp_path.iterdir()) == []


def test_a_waiting_run_gets_the_lease_when_it_is_released(tmp_path: Path) -> None:
    held = lease.acquire(str(tmp_path), "one", None, 0)
    threading.Timer(0.3, held.release).start()
    begun = time.monotonic()
    second = lease.acquire(str(tmp_path), "two", None, 20)
    assert 0.2 < time.monotonic() - begun < 15
    assert second.held()


def test_the_same_run_enters_again_and_resumes(tmp_path: Path) -> None:
    first = lease.acquire(str(tmp_path), "one", None, 0)
    assert lease.acquire(str(tmp_path), "one", None, 0).owner["token"] == first.owner["token"]
    assert lease.resume(str(tmp_path), "one").held()
    with pytest.raises(NodeError) as found:
        lease.resume(str(tmp_path), "two")
    assert (found.value.code, found.value.exit_code) == ("lease-lost", 75)


def test_a_dead_owner_is_replaced_at_once(tmp_path: Path) -> None:
    write(tmp_path, pid=dead_pid(), started="1")
    assert lease.acquire(str(tmp_path), "mine", None, 0).held()
    assert [path.name for path in tmp_path.iterdir()] == ["lease.json"]


def test_a_process_id_that_was_used_again_is_not_the_owner(tmp_path: Path) -> None:
    write(tmp_path, started="1")
    assert lease.acquire(str(tmp_path), "mine", None, 0).held()


def test_a_live_controller_keeps_the_lease_between_steps(tmp_path: Path) -> None:
    me = identity.here()
    controller = {key: me[key] for key in ("host", "boot_id", "pid")}
    write(tmp_path, age=900, pid=dead_pid(), started="1", controller=controller)
    with pytest.raises(NodeError, match="another envbuild"):
        lease.acquire(str(tmp_path), "mine", None, 0)


@pytest.mark.parametrize(("age", "taken"), [(60, False), (130, True)])
def test_an_owner_on_another_machine_counts_by_its_heartbeat(tmp_path: Path, age: float, taken: bool) -> None:
    write(tmp_path, age=age, host="elsewhere", boot_id="x")
    if taken:
        assert lease.acquire(str(tmp_path), "mine", None, 0).held()
    else:
        with pytest.raises(NodeError, match="another envbuild"):
            lease.acquire(str(tmp_path), "mine", None, 0)


@pytest.mark.parametrize(("age", "taken"), [(60, False), (130, True)])
def test_a_damaged_lease_counts_by_its_age(tmp_path: Path, age: float, taken: bool) -> None:
    (tmp_path / "lease.json").write_text("{")
    then = time.time() - age
    os.utime(tmp_path / "lease.json", (then, then))
    if taken:
        assert lease.acquire(str(tmp_path), "mine", None, 0).held()
    else:
        with pytest.raises(NodeError, match="another envbuild"):
            lease.acquire(str(tmp_path), "mine", None, 0)


def test_an_owner_that_lost_its_lease_is_fenced_off_and_does_not_release_the_others(tmp_path: Path) -> None:
    held = lease.acquire(str(tmp_path), "slept", None, 0)
    (tmp_path / "lease.json").unlink()
    other = lease.acquire(str(tmp_path), "other", None, 0)
    with pytest.raises(NodeError) as found:
        held.check()
    assert "other" in found.value.why
    held.release()
    assert other.held()


def test_the_heartbeat_is_touched_while_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.05)
    with lease.acquire(str(tmp_path), "one", None, 0):
        os.utime(tmp_path / "lease.json", (1, 1))
        deadline = time.monotonic() + 10
        while (tmp_path / "lease.json").stat().st_mtime < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    assert (tmp_path / "lease.json").stat().st_mtime > 2


def test_of_many_at_once_exactly_one_takes_over(tmp_path: Path) -> None:
    write(tmp_path, pid=dead_pid(), started="1")
    code = (
        "import sys, time\nfrom envbuild.node import lease\n"
        "try:\n    lease.acquire(sys.argv[1], sys.argv[2], None, 0)\n    print('won', flush=True); time.sleep(4)\n"
        "except Exception as error:\n    print(type(error).__name__, flush=True)\n"
    )
    many = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), f"run{n}"], stdout=subprocess.PIPE, text=True)
        for n in range(6)
    ]
    said = sorted(each.communicate(timeout=60)[0].strip() for each in many)
    assert said == ["NodeError"] * 5 + ["won"]


def test_a_controller_in_another_container_of_this_machine_is_not_taken_for_dead() -> None:
    me = identity.here()
    dead = {**me, "pid": 2**22 + 1}
    assert lease.is_abandoned({**dead, "controller": dead}, age=0)
    elsewhere = {**dead, "pidns": "pid:[1]"}
    assert not lease.is_abandoned({**dead, "controller": elsewhere}, age=0)
    assert lease.is_abandoned({**dead, "controller": elsewhere}, age=lease.STALE_AFTER + 1)
