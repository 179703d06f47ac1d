from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.run import run
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.node import identity
from envbuild.provision.run.context import Settings, one_run
from envbuild.provision.run.journal import EventKind
from envbuild.provision.run.run_dir import RunDir
from tests.support.patience import PATIENCE


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("ENVBUILD_RUNS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state" / "envbuild" / "runs"


def _make(runs: Path, **last: Any) -> RunDir:
    made = RunDir.create(runs)
    with made.open_journal() as journal:
        journal.append(EventKind.RUN_STARTED, **identity.here(), verb="provision", stack="torch-smoke", target="local")
        journal.append(EventKind.STEP_FINISHED, node="localhost", step="install", status="changed", seconds=2.04)
        journal.append(EventKind.RUN_FINISHED, **last)
    return made


@pytest.mark.parametrize("words", [["image"], ["run"]])
def test_a_group_alone_shows_what_it_has_and_is_a_mistake(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.startswith("Usage: "), "error[" in err) == ("", True, False)


def test_list_shows_how_each_run_ended(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "list"]) == 0
    none = capsys.readouterr()
    assert none.out.strip() == "" and "no runs yet" in none.err
    good, bad = _make(runs, exit=0), _make(runs, exit=4)
    assert run(["run", "list"]) == 0
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    words = {run_id: text.split() for run_id, text in lines.items()}
    assert lines["RUN"].split() == ["STATUS", "VERB", "STACK", "AND", "TARGET"]
    assert words[good.id] == ["finished", "provision", "torch-smoke", "on", "local"]
    assert words[bad.id] == ["failed", "provision", "torch-smoke", "on", "local"]
    assert run(["run", "list", "--json", "--count", "1"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (len(shown["runs"]), shown["count"]) == (1, 2)


def test_show_tells_the_journal_and_says_when_its_end_is_torn(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = _make(runs, exit=0)
    with made.journal_path.open("ab") as out:
        out.write(b'{"seq": 4, "t"')
    assert run(["run", "show", made.id[-4:]]) == 0
    said = capsys.readouterr()
    assert "step-finished      localhost  install  changed  2.0 s" in said.out
    assert "torn" in said.err
    assert run(["run", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [event["kind"] for event in shown["events"]] == ["run-started", "step-finished", "run-finished"]
    assert (shown["status"], shown["exit"], shown["files"]) == ("finished", 0, ["journal.jsonl"])
    for words in (["run", "show", "19990101"], ["report", "verify", str(runs)]):
        assert run(words) == 2
        assert "error[run-unknown]" in capsys.readouterr().err


def test_where_nobody_reads_errors_and_notes_a_command_goes_on_and_has_its_exit_code() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    notes = "import sys; from envbuild.cli.output import Ui; Ui().note('a'); Ui().warn('b'); print('done'); sys.exit(3)"
    for words, rc, out in ((["-m", "envbuild", "run", "show", "19990101"], 2, ""), (["-c", notes], 3, "done\n")):
        argv, more = [sys.executable, *words], {"stdout": subprocess.PIPE, "text": True, "timeout": PATIENCE}
        done = subprocess.run(argv, stderr=writer, check=False, **more)  # type: ignore[call-overload]
        assert (done.returncode, done.stdout) == (rc, out)
    os.close(writer)


def test_show_ends_with_the_steps_of_each_node_of_a_fleet(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = {"code": "step-overdue", "what": "n2: not done", "why": "last lines: \x1b[2Jcompiling", "exit": 3}
    made = RunDir.create(runs)
    with made.open_journal() as journal:
        journal.append(EventKind.RUN_STARTED, **identity.here(), verb="provision", stack="torch-smoke", target="lab")
        journal.append(EventKind.STEP_FINISHED, node="n1", step="install", status="changed", seconds=2.04)
        journal.append(EventKind.STEP_FINISHED, node="n2", step="install", status="overdue", seconds=None)
        journal.append(EventKind.STEP_FINISHED, node="n1", step="smoke", status="ok", seconds=1.0)
        journal.append(EventKind.NODE_FINISHED, node="n1", status="ok", exit=0, error=None)
        journal.append(EventKind.NODE_FINISHED, node="n2", status="unreachable", exit=3, error=error)
        journal.append(EventKind.STEP_STARTED, node="n3", step="install")
        journal.append(EventKind.RUN_FINISHED, exit=8)
    assert run(["run", "show"]) == 0
    shown = capsys.readouterr().out
    assert shown.partition("by node:\n")[2].splitlines() == [
        "n1  install 2.0 s, smoke 1.0 s, ok",
        "n2  install overdue, unreachable",
        "    error[step-overdue]: n2: not done",
        "    why: last lines: \\x1b[2Jcompiling",
        "n3  not finished",
    ]


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (EnvbuildError("prefix-locked", "no", exit_code=ExitCode.TRY_AGAIN), 75, "failed"),
        (EnvbuildError("interrupted", "no", exit_code=ExitCode.INTERRUPTED), 130, "interrupted"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError(), 70, "failed"),
    ],
)
def test_watching_ends_as_the_run_has_ended_also_with_an_error(
    runs: Path, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, status: str
) -> None:
    with pytest.raises(type(error)), one_run("provision", Settings(runs), lambda _: None, stack="s", target="local"):
        raise error
    assert run(["run", "show", "--follow", "--json"]) == code
    row = json.loads(capsys.readouterr().out)
    assert (row["exit"], row["status"]) == (code, status)
    with RunDir.create(runs).open_journal() as journal:  # died after its node was well
        journal.append(EventKind.RUN_STARTED, **{**identity.here(), "boot_id": "before"}, verb="provision")
        journal.append(EventKind.NODE_FINISHED, node="n1", status="ok", exit=0, error=None)
    assert run(["run", "show", "--follow", "--json"]) == 1
    row = json.loads(capsys.readouterr().out)
    assert ("exit" in row, row["status"]) == (False, "died")


@pytest.mark.parametrize("other", [{"host": "login9"}, {"pidns": "pid:[1]"}])
def test_a_run_of_another_machine_is_not_watched_for_ever(
    runs: Path, capsys: pytest.CaptureFixture[str], other: dict[str, str]
) -> None:
    made = RunDir.create(runs)
    with made.open_journal() as journal:
        journal.append(EventKind.RUN_STARTED, **{**identity.here(), **other}, verb="provision")
    ended = threading.Timer(30, lambda: made.journal_path.unlink())  # else a test that fails would watch for ever
    ended.start()
    assert run(["run", "show", "--follow"]) == 7
    ended.cancel()
    assert "error[run-elsewhere]" in capsys.readouterr().err
