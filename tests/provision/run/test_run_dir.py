"""Folders of runs and their journals: private, whole after kill -9, found by any clear part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.node import identity
from envbuild.provision import provision
from envbuild.provision.run import journal as journals
from envbuild.provision.run.context import Settings, one_run
from envbuild.provision.run.journal import Event, EventKind, Journal, follow, read_journal
from envbuild.provision.run.run_dir import MAX_AGE, RunDir, keep, list_runs, open_run, read_recent
from tests.provision.ansible.test_play import unseen
from tests.provision.survey.test_up_to_date import prepared
from tests.support.canary import CANARY
from tests.support.fails import fails


def test_a_run_directory_is_private_and_has_its_folders(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "runs")
    assert run.path.parent == tmp_path / "runs"
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert (run.path / "ansible").stat().st_mode & 0o777 == 0o700
    assert (run.path / "logs").is_dir()
    run.write_json(run.plan, {"a": "ä"})
    assert json.loads(run.plan.read_text()) == {"a": "ä"}
    assert run.plan.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in run.path.iterdir()) == ["ansible", "logs", "plan.json", "staging"]


def test_runs_are_listed_newest_first_and_found_by_any_clear_part(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "runs") == []
    with fails("run-unknown"):
        open_run(tmp_path / "runs", "last")
    # The setting may name a folder in which a user keeps others.
    for name in ("20260101T000000Z-aaaa", "20260102T000000Z-bbbb", "20260102T000001Z-cccc", "mine", "20260102T000002Z"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert [run.id[-4:] for run in list_runs(tmp_path / "runs")] == ["cccc", "bbbb", "aaaa"]
    assert open_run(tmp_path / "runs", "20260101").id == "20260101T000000Z-aaaa"
    assert open_run(tmp_path / "runs", "bbbb").id == "20260102T000000Z-bbbb"
    assert open_run(tmp_path / "runs", "last").id == "20260102T000001Z-cccc"
    with fails("run-unknown"):
        open_run(tmp_path / "runs", "20260102")
    with fails("run-unknown") as caught:
        open_run(tmp_path / "runs", "20260101T000000Z-aaab")
    assert caught.value.hint == "did you mean 20260101T000000Z-aaaa?"
    made = [RunDir.create(tmp_path / "many").id for _ in range(50)]
    assert made == sorted(set(made)), "names are in the order of time"
    assert [run.id for run in list_runs(tmp_path / "many")] == made[::-1]


def test_a_run_without_an_end_is_running_while_its_process_lives_and_died_after(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from envbuild.node import identity\n"
        "from envbuild.provision.run.run_dir import RunDir\n"
        "from envbuild.provision.run.journal import EventKind\n"
        "run = RunDir(Path(sys.argv[1])); run.open_journal().append(EventKind.RUN_STARTED, **identity.here())\n"
        "print('ready', flush=True); time.sleep(600)\n"
    )
    run = RunDir.create(tmp_path / "runs")
    assert run.status == "died", "it has no journal"
    with subprocess.Popen([sys.executable, "-c", code, str(run.path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert RunDir(run.path).status == "running"
        process.kill()
        process.wait()
        assert RunDir(run.path).status == "died"


def test_a_run_of_another_container_is_not_taken_for_dead(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "runs")
    with run.open_journal() as journal:
        journal.append(EventKind.RUN_STARTED, **identity.here() | {"pid": 2**22 + 1, "pidns": "pid:[1]"})
    assert run.status == "running"


def test_d107_a_root_that_cannot_be_written_is_no_error_that_another_try_ends(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    for folder in (blocked, blocked / "home", Path("/proc/1/runs")):
        with fails("not-writable", 7):
            RunDir.create(folder)
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_kept_comes_back_for_a_week(tmp_path: Path) -> None:
    path = tmp_path / "nodes" / "x.json"
    keep(path, {"a": [1]})
    # A clock that was set back says nothing about age.
    for age, known in ((0, True), (MAX_AGE - 60, True), (MAX_AGE + 1, False), (-3600, False)):
        os.utime(path, (time.time() - age,) * 2)
        assert read_recent(path) == ({"a": [1]} if known else None)
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_d48_of_two_runs_that_keep_something_at_once_one_is_kept_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename = tmp_path / "x.json", os.rename

    def other_first(*names: str) -> None:
        monkeypatch.setattr("os.rename", rename)
        keep(path, "of the other")
        assert read_recent(path) == "of the other"
        rename(*names)

    monkeypatch.setattr("os.rename", other_first)
    keep(path, "mine")
    assert read_recent(path) == "mine" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(13, "Permission denied"), OSError(28, "No space left on device")])
def test_what_cannot_be_kept_is_no_error_and_leaves_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    path = tmp_path / "x.json"
    keep(path, "before")

    def broken(*_: str) -> None:
        raise error

    monkeypatch.setattr("os.rename", broken)
    keep(path, "after")
    assert read_recent(path) == "before" and list(tmp_path.iterdir()) == [path]
    keep(path / "below a file" / "y.json", {})


CLUSTER = {"hosts": {"slurm": "gpu"}, "connection": {"kind": "job"}, "scheduler": {"kind": "slurm"}}


VERBS: dict[str, Callable[..., Any]] = {
    "smoke": provision.smoke,
    "verify": lambda *args: provision.verify(*args, deep=False),
    "provision": lambda *args: provision.provision(*args, show_plan=lambda *_: None),
}


@pytest.mark.parametrize("verb", VERBS)
def test_d39_a_run_that_fails_is_listed_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without sbatch
    ready = prepared(prefix=str(tmp_path / "p"), placement="shared", **CLUSTER)
    with fails("scheduler-missing"):
        VERBS[verb](ready, Settings(tmp_path / "runs", command=("envbuild", verb)), unseen)
    run = list_runs(tmp_path / "runs")[0]
    assert run.status == "failed"
    first, last = run.journal.events[0], run.journal.events[-1]
    assert first.data["verb"] == verb
    assert first.data | {"stack": "demo", "profile": "exact", "target": "here"} == first.data
    assert last.data["error"]["code"] == "scheduler-missing"


@pytest.mark.parametrize("verb", ["smoke", "verify", "provision"])
def test_d39_a_run_that_is_interrupted_is_listed_as_interrupted(tmp_path: Path, verb: str) -> None:
    ready = prepared(prefix=str(tmp_path / "p"))
    with pytest.raises(KeyboardInterrupt):
        VERBS[verb](ready, Settings(tmp_path / "runs", cancel=lambda: True), unseen)
    assert list_runs(tmp_path / "runs")[0].status == "interrupted"


def test_d39_a_mistake_in_envbuild_is_a_failed_run_and_no_died_one(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), one_run("probe", Settings(tmp_path / "runs"), unseen):
        1 / 0  # noqa: B018 - any error that nobody expects
    run = list_runs(tmp_path / "runs")[0]
    assert (run.status, run.journal.events[-1].data["error"]["code"]) == ("failed", "internal")


@pytest.mark.parametrize(("exit_", "status"), [(0, "finished"), (8, "failed")])
def test_d39_a_run_ends_with_the_exit_that_it_was_given(tmp_path: Path, exit_: int, status: str) -> None:
    with one_run("probe", Settings(tmp_path / "runs"), unseen) as run:
        run.exit = exit_
    assert list_runs(tmp_path / "runs")[0].status == status


@pytest.mark.parametrize(
    "error", [None, EnvbuildError("x", "x"), KeyboardInterrupt()], ids=["good", "failed", "stopped"]
)
def test_what_was_on_its_way_to_nodes_goes_when_the_run_ends(tmp_path: Path, error: BaseException | None) -> None:
    with suppress(type(error) if error else EnvbuildError), one_run("provision", Settings(tmp_path), unseen) as run:
        (run.run.staging / "toolchain-1.sh").write_bytes(b"x" * 100)
        if error:
            raise error
    (made,) = list_runs(tmp_path)
    assert sorted(path.name for path in made.path.iterdir()) == ["ansible", "journal.jsonl", "logs"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a journal."""
    return tmp_path / "journal.jsonl"


def test_events_are_numbered_stamped_and_read_back(path: Path) -> None:
    seen: list[Event] = []
    with Journal(path, on_event=seen.append) as journal:
        journal.append(EventKind.RUN_STARTED, pid=7)
        journal.append(EventKind.STEP_STARTED, node="gpu1", step="install")
    contents = read_journal(path)
    assert [(e.seq, e.kind, e.node, e.data) for e in contents.events] == [
        (1, "run-started", None, {"pid": 7}),
        (2, "step-started", "gpu1", {"step": "install"}),
    ]
    assert contents.remarks == ()
    assert list(contents.events) == seen
    assert all(event.t.endswith("Z") for event in contents.events)
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_was_seen_is_on_the_disk_before_work_begins(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synchronised: list[int] = []
    with Journal(path) as journal:
        monkeypatch.setattr(os, "fsync", lambda fd: synchronised.append(os.fstat(fd).st_size))
        for kind in (EventKind.RUN_STARTED, EventKind.CONTACTED, EventKind.RESOLVED, EventKind.PLANNED):
            journal.append(kind)
        assert synchronised == []
        for kind in (EventKind.STEP_STARTED, EventKind.STEP_FINISHED):
            journal.append(kind)
            assert synchronised.pop() == path.stat().st_size
        journal.append(EventKind.NODE_FINISHED)
        journal.append(EventKind.RUN_FINISHED)
        assert synchronised == [path.stat().st_size]


def test_a_journal_cut_anywhere_reads_as_a_prefix_and_says_so(path: Path) -> None:
    with Journal(path) as journal:
        for number in range(3):
            journal.append(EventKind.STEP_FINISHED, node="n", number=number, text="ä\n")
    whole = path.read_bytes()
    events = read_journal(path).events
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        got = read_journal(path)
        assert got.events == events[: len(got.events)]
        assert len(got.events) == whole[:cut].count(b"\n")
        assert ["torn" in remark for remark in got.remarks] == [True] * (not (b"\n" + whole[:cut]).endswith(b"\n"))


@given(st.binary(max_size=200))
def test_any_bytes_can_be_read(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("j") / "journal.jsonl"
    path.write_bytes(raw)
    contents = read_journal(path)
    assert len(contents.events) <= raw.count(b"\n")
    assert bool(contents.remarks) == bool(raw.rpartition(b"\n")[2]) or raw.count(b"\n")


def test_threads_write_whole_lines(path: Path) -> None:
    with Journal(path) as journal:
        threads = [
            threading.Thread(target=lambda: [journal.append(EventKind.STEP_STARTED, x="y" * 500) for _ in range(10)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [event.seq for event in read_journal(path).events] == list(range(1, 41))


def test_what_is_told_is_kept_and_shown_without_secrets_and_escapes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INDEX_TOKEN", CANARY)
    seen = list[Event]()
    with Journal(path, on_event=seen.append) as journal:
        journal.stage("asking 1 node")
        journal.now("gpu1", {"phase": "fetching https://me:hunter2@example.org/x", "what": "\x1b[2Jquick"})
        journal.append(EventKind.FAILED, what=f"GET https://me:{CANARY}@host/simple failed")
    assert "hunter2" not in path.read_text() and CANARY not in path.read_text()
    assert seen[1].data["what"] == "\\x1b[2Jquick" and seen[2].data["what"].startswith("GET https://")
    assert list(read_journal(path).events) == seen and [event.seq for event in seen] == [1, 2, 3]


def test_a_journal_takes_so_much_of_what_is_told_and_all_that_is_done(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "TOLD", 300)
    seen = list[Event]()
    with Journal(path, on_event=seen.append) as journal:
        for number in range(20):
            journal.stage(f"stage {number}")
        journal.append(EventKind.RUN_FINISHED, exit=0)
    events = read_journal(path).events
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[-1].kind == "run-finished" and len(events) < 10 and len(seen) == 21


def full(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_on_a_full_disk_a_run_fails_and_not_for_what_is_only_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Event]()
    with Journal(path, on_event=seen.append) as journal:
        monkeypatch.setattr(os, "write", full)
        journal.stage("more")
        with fails("journal-unwritable", ExitCode.TRY_AGAIN):
            journal.append(EventKind.RUN_STARTED)
        monkeypatch.undo()
        journal.append(EventKind.RUN_FINISHED)
    assert [event.kind for event in seen] == ["stage", "run-finished"]


def test_d39_on_a_full_disk_the_reason_of_the_failure_is_what_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fails("some-failure"), one_run("probe", Settings(tmp_path / "runs"), unseen):
        monkeypatch.setattr(os, "write", full)
        raise EnvbuildError("some-failure", "of the run itself")
    (run,) = list_runs(tmp_path / "runs")
    assert [event.kind for event in run.journal.events] == ["run-started"]


def test_who_follows_gets_every_event_until_the_run_has_ended(path: Path) -> None:
    seen = list[Event]()
    with Journal(path) as journal:
        journal.stage("asking 1 node")
        looks = iter([True, False])

        def running() -> bool:
            if seen:
                journal.append(EventKind.RUN_FINISHED, exit=0)
            return next(looks)

        for event in follow(path, running):
            seen.append(event)
    assert [event.kind for event in seen] == ["stage", "run-finished"]
