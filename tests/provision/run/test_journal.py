from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import ExitCode
from envbuild.provision.run import journal as journals
from envbuild.provision.run.journal import Event, EventKind, Journal, follow, read_journal
from tests.support.fails import fails


def test_events_are_numbered_stamped_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
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


def test_what_was_seen_is_on_the_disk_before_work_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
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


def test_a_torn_last_line_is_dropped_and_said_and_the_next_event_starts_a_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append(EventKind.RUN_STARTED)
        journal.append(EventKind.PLANNED)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    contents = read_journal(path)
    assert [event.kind for event in contents.events] == ["run-started"]
    assert "torn" in contents.remarks[0]
    with Journal(path) as journal:
        journal.append(EventKind.FAILED)
    contents = read_journal(path)
    assert [(event.seq, event.kind) for event in contents.events] == [(1, "run-started"), (2, "failed")]
    assert contents.remarks == ()


def test_a_journal_cut_anywhere_reads_as_a_prefix(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        for number in range(3):
            journal.append(EventKind.STEP_FINISHED, node="n", number=number, text="ä\n")
    whole = path.read_bytes()
    events = read_journal(path).events
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        got = read_journal(path).events
        assert got == events[: len(got)]
        assert len(got) == whole[:cut].count(b"\n")


@given(st.binary(max_size=200))
def test_any_bytes_can_be_read(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("j") / "journal.jsonl"
    path.write_bytes(raw)
    contents = read_journal(path)
    assert len(contents.events) <= raw.count(b"\n")
    assert bool(contents.remarks) == bool(raw.rpartition(b"\n")[2]) or raw.count(b"\n")


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
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


def test_a_killed_writer_loses_nothing_that_append_returned_for(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from envbuild.provision.run.journal import EventKind, Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "journal.append(EventKind.RUN_STARTED); journal.append(EventKind.PLANNED)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -9
    assert [event.kind for event in read_journal(path).events] == ["run-started", "planned"]


def test_secrets_do_not_reach_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDEX_TOKEN", "canary-0123456789")
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append(EventKind.FAILED, what="GET https://me:canary-0123456789@host/simple failed")
    assert "canary" not in path.read_text()
    assert json.loads(path.read_text())["data"]["what"].startswith("GET https://")


def test_a_full_disk_is_a_coded_error() -> None:
    if not os.access("/dev/full", os.W_OK):
        pytest.skip("this machine has no writable /dev/full to stand for a full disk")
    journal = Journal.__new__(Journal)
    journal.path, journal._lock, journal._on_event, journal._seq = Path("/dev/full"), threading.Lock(), None, 0
    journal._fd = os.open("/dev/full", os.O_WRONLY)
    with journal, fails("journal-unwritable") as caught:
        journal.append(EventKind.RUN_STARTED)
    assert caught.value.exit_code == ExitCode.TRY_AGAIN


def test_what_is_told_is_kept_and_shown_without_secrets_and_escapes(tmp_path: Path) -> None:
    path, seen = tmp_path / "journal.jsonl", list[Event]()
    with Journal(path, on_event=seen.append) as journal:
        journal.stage("asking 1 node")
        journal.now("gpu1", {"phase": "fetching https://me:hunter2@example.org/x", "what": "\x1b[2Jquick"})
    assert "hunter2" not in path.read_text() and seen[1].data["what"] == "\\x1b[2Jquick"
    assert list(read_journal(path).events) == seen and [event.seq for event in seen] == [1, 2]


def test_a_journal_takes_so_much_of_what_is_told_and_all_that_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "TOLD", 300)
    path, seen = tmp_path / "journal.jsonl", list[Event]()
    with Journal(path, on_event=seen.append) as journal:
        for number in range(20):
            journal.stage(f"stage {number}")
        journal.append(EventKind.RUN_FINISHED, exit=0)
    events = read_journal(path).events
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[-1].kind == "run-finished" and len(events) < 10 and len(seen) == 21


def test_what_is_only_told_fails_no_run_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    seen = list[Event]()
    with Journal(tmp_path / "journal.jsonl", on_event=seen.append) as journal:
        monkeypatch.setattr(os, "write", full)
        journal.stage("more")
        monkeypatch.undo()
        assert journal.append(EventKind.RUN_FINISHED).seq == 1
    assert [event.kind for event in seen] == ["stage", "run-finished"]


def test_who_follows_gets_every_event_until_the_run_has_ended(tmp_path: Path) -> None:
    path, seen = tmp_path / "journal.jsonl", list[Event]()
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
