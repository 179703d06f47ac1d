"""The lease: one run at a time changes a prefix, and a dead owner holds nobody up."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import identity, lease, paths
from envbuild.node.protocol import NodeError
from tests.support.fails import fails
from tests.support.patience import PATIENCE


def dead_pid() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def dated(path: Path, age: float, text: str) -> None:
    path.write_text(text)
    os.utime(path, (time.time() - age,) * 2)


def write(prefix: Path, age: float = 0.0, **changes: Any) -> None:
    owner = {**identity.here(), "run": "other", "controller": {}, "token": "t", **changes}
    dated(prefix / "lease.json", age, json.dumps(owner))


def test_another_run_is_refused_and_told_whose_it_is(tmp_path: Path) -> None:
    held = lease.acquire(str(tmp_path), "one", None, 0)
    with fails("prefix-busy", 75) as found:
        lease.acquire(str(tmp_path), "two", None, 0)
    assert found.value.details["run"] == "one"
    assert str(os.getpid()) in found.value.why
    held.release()
    lease.acquire(str(tmp_path), "two", None, 0).release()
    assert list(tmp_path.iterdir()) == []


def test_a_lease_that_is_taken_while_it_is_looked_for_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(path: str) -> Any:
        owner = read_json(path)
        if owner is None:
            write(tmp_path)
        return owner

    read_json = paths.read_json
    monkeypatch.setattr(paths, "read_json", late)
    assert (lease.read(str(tmp_path)) or {})["run"] == "other"


def lost_reply(monkeypatch: pytest.MonkeyPatch, call: str, error: OSError) -> list[str]:
    """What NFS makes of a lost reply: the server has done it, and the second request finds it done."""
    done, real = [], getattr(os, call)

    def twice(path: str, name: str) -> None:
        real(path, name)
        if not done:
            done.append(name)
            raise error

    monkeypatch.setattr(os, call, twice)
    return done


@pytest.mark.parametrize("error", [FileExistsError(17, "File exists"), TimeoutError(110, "Connection timed out")])
def test_d41_a_lost_reply_to_a_link_does_not_lock_its_own_process_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    lost = lost_reply(monkeypatch, "link", error)
    held = lease.acquire(str(tmp_path), "one", None, 0)
    assert lost == [held.path]
    assert held.held()
    assert [path.name for path in tmp_path.iterdir()] == ["lease.json"]
    with pytest.raises(NodeError):
        lease.acquire(str(tmp_path), "two", None, 0)


def test_d41_a_lost_reply_to_a_rename_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, pid=dead_pid(), started="1")
    taking_over = lost_reply(monkeypatch, "rename", FileNotFoundError(2, "No such file or directory"))
    assert lease.acquire(str(tmp_path), "mine", None, 0).held()
    assert ".stale-" in taking_over[0]
    assert [path.name for path in tmp_path.iterdir()] == ["lease.json"]
    monkeypatch.undo()
    entering_again = lost_reply(monkeypatch, "rename", FileNotFoundError(2, "No such file or directory"))
    assert lease.acquire(str(tmp_path), "mine", None, 0).held()
    assert entering_again == [lease.of_prefix(str(tmp_path))]


def test_a_waiting_run_says_for_whom_and_gets_the_lease_when_it_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, str]] = []
    monkeypatch.setattr(lease, "progress", lambda phase, what: shown.append((phase, what)))
    held = lease.acquire(str(tmp_path), "one", None, 0)
    begun = time.monotonic()
    threading.Timer(0.3, held.release).start()
    second = lease.acquire(str(tmp_path), "two", None, 2 * PATIENCE)
    assert 0.2 < time.monotonic() - begun < PATIENCE
    assert second.held()
    assert shown == [("waiting for another run of envbuild", lease.describe(held.owner))]


def test_a_later_step_of_the_same_run_enters_again_and_what_its_controller_knows_is_not_written_down(
    tmp_path: Path,
) -> None:
    controller = {**identity.here(), "pid": 7}
    first = lease.acquire(str(tmp_path), "one", {**controller, "ended": ["other"]}, 0)
    for again in (None, {**controller, "ended": ["other"]}):
        entered = lease.acquire(str(tmp_path), "one", again, 0)
        assert (entered.owner["token"], entered.owner["controller"]) == (first.owner["token"], controller)
        assert "ended" not in json.dumps(lease.read(str(tmp_path)))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"run": "other", "pid": 1}'])
def test_d104_a_damaged_lease_is_called_so_and_taken_over_soon(tmp_path: Path, content: str) -> None:
    dated(tmp_path / "lease.json", 1, content)
    assert lease.read(str(tmp_path)) == {}
    with fails("prefix-busy") as caught:
        lease.acquire(str(tmp_path), "mine", None, 0)
    assert "the lease is damaged" in caught.value.why
    dated(tmp_path / "lease.json", 6, content)
    assert lease.acquire(str(tmp_path), "mine", None, 0).held()


def test_an_owner_that_lost_its_lease_is_fenced_off_and_does_not_release_the_others(tmp_path: Path) -> None:
    held = lease.acquire(str(tmp_path), "slept", None, 0)
    (tmp_path / "lease.json").unlink()
    other = lease.acquire(str(tmp_path), "other", None, 0)
    with pytest.raises(NodeError) as found:
        held.check()
    assert "other" in found.value.why
    held.release()
    assert other.held()


def test_of_many_at_once_exactly_one_takes_over(tmp_path: Path) -> None:
    write(tmp_path, pid=dead_pid(), started="1")
    code = (
        "import sys, time\nfrom envbuild.node import lease\n"
        "try:\n    lease.acquire(sys.argv[1], sys.argv[2], None, 0)\n    print('won', flush=True); sys.stdin.read()\n"
        "except Exception as error:\n    print(type(error).__name__, flush=True)\n"
    )
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", code, str(tmp_path)]
    many = [subprocess.Popen([*argv, f"run{n}"], stdin=pipe, stdout=pipe, text=True) for n in range(6)]
    # Who has won holds it until all have said how they ended.
    said = sorted(each.stdout.readline().strip() for each in many if each.stdout)
    for each in many:
        each.communicate(timeout=PATIENCE)
    assert said == ["NodeError"] * 5 + ["won"]


ME = identity.here()
FAR = {"host": "controller", "boot_id": "y", "pid": 7}
ENDED = {"pid": 2**22 + 1, "started": "1"}  # no process has that id
NEAR = {key: ME[key] for key in ("host", "boot_id", "pid")}
DEAD = {**ME, "pid": ENDED["pid"]}
ELSEWHERE = {**DEAD, "pidns": "pid:[1]"}
OWNERS: dict[str, tuple[float, dict[str, Any], bool]] = {
    "one that is dead": (0, ENDED, False),
    "a process id that was used again": (0, {"started": "1"}, False),
    "one whose controller is dead too": (0, {**DEAD, "controller": DEAD}, False),
    "one whose controller is in another container": (0, {**DEAD, "controller": ELSEWHERE}, True),
    "one whose controller was in another container": (
        lease.STALE_AFTER + 1,
        {**DEAD, "controller": ELSEWHERE},
        False,
    ),
    "one between the steps of a controller that lives": (900, {**ENDED, "controller": NEAR}, True),
    "one on another machine whose heartbeat is fresh": (60, {"host": "elsewhere", "boot_id": "x"}, True),
    "one on another machine whose heartbeat is old": (130, {"host": "elsewhere", "boot_id": "x"}, False),
    "one that is over, on a machine just restarted": (20, {"boot_id": "b", "controller": FAR, "run": "over"}, True),
    "one that is over, on a machine restarted before": (40, {"boot_id": "b", "controller": FAR, "run": "over"}, False),
    "one that is over here, by a far controller": (0, {**ENDED, "controller": FAR, "run": "over"}, False),
    "one that is not known to be over": (0, {**ENDED, "controller": FAR}, True),
    "one that is over, and what it started is still at work": (0, {"controller": FAR, "run": "over"}, True),
    "one that is over, elsewhere": (40, {"host": "x", "boot_id": "b", "controller": FAR, "run": "over"}, True),
}


@pytest.mark.parametrize(("age", "owner", "busy"), OWNERS.values(), ids=OWNERS)
def test_a_lease_is_taken_over_from(tmp_path: Path, age: float, owner: dict[str, Any], busy: bool) -> None:
    write(tmp_path, age=age, **owner)
    with fails("prefix-busy") if busy else contextlib.nullcontext():
        lease.acquire(str(tmp_path), "mine", {**identity.here(), "ended": ["over"]}, 0).release()
    assert [path.name for path in tmp_path.iterdir()] == ["lease.json"] * busy


def test_a_step_whose_connection_broke_is_ended_before_it_is_done_again(tmp_path: Path) -> None:
    me = identity.here()
    code = "import time; print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as earlier:
        assert earlier.stdout is not None
        earlier.stdout.readline()
        reaper = threading.Thread(target=earlier.wait)
        reaper.start()
        write(tmp_path, pid=earlier.pid, started=identity.start_time(earlier.pid), run="mine", controller=me)
        held = lease.acquire(str(tmp_path), "mine", me, 0)
        reaper.join(PATIENCE)
        assert earlier.returncode == -15
    assert held.held()
    assert held.owner["pid"] == os.getpid()
