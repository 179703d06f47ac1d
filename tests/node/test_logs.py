"""The verb `log`: the end of what a run wrote down on a node; and what it tells while it works."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import logs, protocol
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.patience import until


def _ask(prefix: Path, **args: object) -> dict[str, object]:
    changed, result = logs.run({"prefix": str(prefix), "args": args})
    assert not changed
    return result


def test_the_newest_log_is_told_line_by_line_and_torn_lines_as_they_are(tmp_path: Path) -> None:
    log = protocol.Log()
    for run, text in (("run-1", "old"), ("run-2", "output of a build:\nfirst\nlast")):
        log.path = str(tmp_path / "logs" / f"{run}.log")
        log(text)
        os.utime(log.path, (int(run[-1]) * 10**9,) * 2)
    (tmp_path / "logs" / "run-3.log").symlink_to(tmp_path / "nowhere")  # one that goes meanwhile hides no other
    result = _ask(tmp_path, lines=2)
    assert (result["file"], result["lines"]) == (str(tmp_path / "logs" / "run-2.log"), ["first", "last"])
    assert _ask(tmp_path, log_of="run-1")["lines"] == ["old"]
    assert stat.S_IMODE(os.stat(str(result["file"])).st_mode) == 0o600
    whole = json.dumps({"t": 1, "message": "whole"}).encode()
    (tmp_path / "logs" / "torn.log").write_bytes(b'{"t": 1, "mess\xff\n' + whole + b"\n[1]\n")
    assert _ask(tmp_path, log_of="torn")["lines"] == ['{"t": 1, "mess\ufffd', "whole", "[1]"]


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path) -> None:
    write_file(tmp_path / "logs" / "r.log", "x" * 3 * logs.READ_BYTES + "\nlast\n")
    lines = _ask(tmp_path)["lines"]
    assert isinstance(lines, list)
    assert lines[-1] == "last"
    assert sum(map(len, lines)) < logs.READ_BYTES


@pytest.mark.parametrize(
    ("args", "code"),
    [({}, "log-unknown"), ({"log_of": "none"}, "log-unknown"), ({"log_of": "../x"}, "request-invalid"),
     ({"lines": 0}, "request-invalid"), ({"lines": "5"}, "request-invalid")],
)  # fmt: skip
def test_what_is_not_there_or_no_log_is_refused(tmp_path: Path, args: dict[str, object], code: str) -> None:
    with fails(code):
        _ask(tmp_path, **args)


def test_old_logs_make_room_for_new_ones(tmp_path: Path) -> None:
    mine = [write_file(tmp_path / "logs" / name) for name in ("mine.log", "my.progress.txt")]
    for path in mine:
        os.utime(path, (0, 0))
    logs._sweep(str(tmp_path / "logs"))
    log = protocol.Log()
    for number in range(protocol.LOGS_KEPT + 5):
        log.path = str(tmp_path / "logs" / f"20260302T1000{number:02}Z-abcd.log")
        log("one")
        log("two")
    assert [path for path in mine if not path.exists()] == []
    left = sorted(name for name in os.listdir(tmp_path / "logs") if name.startswith("2026"))
    assert len(left) == protocol.LOGS_KEPT
    assert left[0] == "20260302T100005Z-abcd.log"
    assert _ask(tmp_path)["lines"] == ["one", "two"]


def test_the_digest_of_a_log_is_over_its_file_and_a_run_without_one_has_none(tmp_path: Path) -> None:
    write_file(tmp_path / "logs" / "r1.log", b"built\n")
    found = logs.digest(str(tmp_path), "r1")
    assert found is not None
    assert (found["bytes"], found["sha256"]) == (6, hashlib.sha256(b"built\n").hexdigest())
    assert [logs.digest(str(tmp_path), name) for name in ("r2", "../x", None)] == [None, None, None]


def _told(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_progress_is_told_while_a_step_works_and_gone_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "BEAT", 0.01)
    progress, path = logs.Progress(), tmp_path / "logs" / f"r1.progress.{os.uname().nodename}"
    asked = iter([{"done": 3}, ZeroDivisionError, {"done": 4, "what": "token=hunter2hunter2"}])

    def ask() -> dict[str, Any]:
        found = next(asked, {"done": 5})
        if isinstance(found, type):
            raise found
        return found

    before = os.umask(0)
    try:
        with progress.following(str(tmp_path / "logs" / "r1.progress"), "install"):
            progress("compiling", done=2, total=9, unit="files", ask=ask)
            until(lambda: _told(path)[-1:] != [] and _told(path)[-1]["done"] == 5)
            rows = _told(path)
    finally:
        os.umask(before)
    assert [row["done"] for row in rows] == [3, 4, 5]
    assert {row["step"] for row in rows} == {"install"} and len({row["seq"] for row in rows}) == 3
    assert "hunter2" not in json.dumps(rows)
    assert not path.exists()
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o755, "D25: nobody else can write into it"


def test_progress_is_bounded_and_a_file_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "BEAT", 0.001)
    monkeypatch.setattr(logs, "FULL", 1000)
    count = iter(range(10**9))
    progress, most = logs.Progress(), 0
    path = tmp_path / f"r1.progress.{os.uname().nodename}"
    with progress.following(str(tmp_path / "r1.progress"), "install"):
        progress("compiling", ask=lambda: {"done": next(count)})
        while next(count) < 200:
            until(path.exists)
            most = max(most, path.stat().st_size)
            time.sleep(0.005)
    assert 0 < most <= 1300
    (tmp_path / "file").write_text("")
    with progress.following(str(tmp_path / "file" / "r1.progress"), "install"):
        progress("compiling", ask=lambda: {"done": next(count)})
        until(lambda: next(count) > 1000)


def test_what_is_asked_for_longer_than_its_step_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "BEAT", 0.01)
    progress, asked, over = logs.Progress(), threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def slow() -> dict[str, Any]:
        threads.append(threading.current_thread())
        asked.set()
        over.wait(60)
        return {"done": 3}

    with progress.following(str(tmp_path / "r1.progress"), "install"):
        progress("compiling", ask=slow)
        assert asked.wait(60)
    over.set()
    threads[0].join(60)
    assert list(tmp_path.iterdir()) == []
