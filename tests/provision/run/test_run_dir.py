from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import EnvbuildError
from envbuild.node import identity
from envbuild.provision.run.journal import EventKind
from envbuild.provision.run.run_dir import MAX_AGE, RunDir, keep, list_runs, open_run, read_recent
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
    (tmp_path / "runs").mkdir()
    for name in ("20260101T000000Z-aaaa", "20260102T000000Z-bbbb", "20260102T000001Z-cccc"):
        (tmp_path / "runs" / name).mkdir()
    assert [run.id[-4:] for run in list_runs(tmp_path / "runs")] == ["cccc", "bbbb", "aaaa"]
    assert open_run(tmp_path / "runs", "20260101").id == "20260101T000000Z-aaaa"
    assert open_run(tmp_path / "runs", "bbbb").id == "20260102T000000Z-bbbb"
    assert open_run(tmp_path / "runs", "last").id == "20260102T000001Z-cccc"
    with fails("run-unknown"):
        open_run(tmp_path / "runs", "20260102")
    with fails("run-unknown") as caught:
        open_run(tmp_path / "runs", "20260101T000000Z-aaab")
    assert caught.value.hint == "did you mean 20260101T000000Z-aaaa?"


def test_no_runs_is_an_empty_list(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "runs") == []
    with pytest.raises(EnvbuildError):
        open_run(tmp_path / "runs", "last")


@pytest.mark.parametrize(
    ("kind", "data", "status"),
    [
        (EventKind.RUN_FINISHED, {"exit": 0}, "finished"),
        (EventKind.RUN_FINISHED, {"exit": 8}, "failed"),
        (EventKind.FAILED, {}, "failed"),
        (EventKind.INTERRUPTED, {}, "interrupted"),
    ],
)
def test_status_follows_from_the_last_event(tmp_path: Path, kind: EventKind, data: dict[str, Any], status: str) -> None:
    run = RunDir.create(tmp_path / "runs")
    with run.open_journal() as journal:
        journal.append(EventKind.RUN_STARTED, **identity.here())
        journal.append(kind, **data)
    assert run.status == status


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


def test_a_run_that_never_wrote_a_journal_died(tmp_path: Path) -> None:
    assert RunDir.create(tmp_path / "runs").status == "died"


def test_d107_a_root_that_cannot_be_written_is_no_error_that_another_try_ends(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    for folder in (blocked, blocked / "home", Path("/proc/1/runs")):
        with fails("not-writable", 7):
            RunDir.create(folder)
    assert os.listdir(tmp_path) == ["file"]


def test_names_are_in_the_order_of_time(tmp_path: Path) -> None:
    made = [RunDir.create(tmp_path).id for _ in range(50)]
    assert made == sorted(set(made))
    assert [run.id for run in list_runs(tmp_path)] == made[::-1]


def test_what_is_kept_comes_back_for_a_week(tmp_path: Path) -> None:
    path = tmp_path / "nodes" / "x.json"
    keep(path, {"a": [1]})
    written = path.stat().st_mtime
    assert read_recent(path) == read_recent(path, now=written + MAX_AGE - 1) == {"a": [1]}
    assert read_recent(path, now=written + MAX_AGE + 1) is None
    # A clock that was set back says nothing about age.
    assert read_recent(path, now=written - 3600) is None
    assert path.parent.stat().st_mode & 0o777 == 0o700


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
