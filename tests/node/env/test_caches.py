"""The verb `cache`: what lies beside environments is told by kind; what is old goes, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import lease
from envbuild.node.env import caches
from tests.support.fails import fails
from tests.support.files import write_file, write_files

DAY = 86400.0
FILES = {
    "delivered": f"store/{'a' * 12}/wheels/x.whl",
    "jobs": "jobs/20260101T000000Z-dead/status-17",  # D107
    "waiting jobs": "jobs/20260102T000000Z-beef/run.sh",
    "temporary": "tmp/envbuild-install-0123abcd/file",
    "tools": "tools/uv-1/uv",
}
GOES = {"delivered", "jobs", "temporary", "waiting jobs"}


def aged(path: Path, days: float) -> None:
    """Everything from the path down, and the path itself, was last changed and read so many days ago."""
    then = time.time() - days * DAY
    for each in sorted(path.rglob("*"), reverse=True):
        os.utime(each, (then, then), follow_symlinks=False)
    os.utime(path, (then, then))


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """One file of each kind, forty days old, and an environment as old."""
    write_files(tmp_path, dict.fromkeys((*FILES.values(), "envs/mine/bin/python"), b"x" * 5000))
    aged(tmp_path, 40)
    return tmp_path


def ask(prefix: Path, **args: Any) -> dict[str, Any]:
    changed, result = caches.run({"verb": "cache", "run": "r", "prefix": str(prefix), "args": args})
    assert changed == bool(result["removed"])
    return result


def left(prefix: Path) -> set[str]:
    return {kind for kind, name in FILES.items() if (prefix / name).exists()}


def test_d11_every_kind_is_told_and_what_is_old_goes_while_nobody_else_changes_the_prefix(
    prefix: Path, tmp_path: Path
) -> None:
    (tmp_path / "cache" / "archive").mkdir(parents=True)
    places = {row["kind"]: row for row in ask(prefix, cache=str(tmp_path / "cache"))["places"]}
    assert places.pop("uv")["path"] == str(tmp_path / "cache")
    assert set(places) == set(FILES) == left(prefix)
    assert all(row["items"] == 1 and row["bytes"] >= 8192 for row in places.values())
    assert {kind for kind, row in places.items() if row["old"]} == GOES
    assert {kind for kind, row in places.items() if row["note"]} == set(FILES) - GOES
    held = lease.acquire(str(prefix), "another", None, 0)
    with fails("prefix-busy"):
        ask(prefix, dry_run=False)
    held.release()
    for days in (-1, True, "30", float("nan")):
        with fails("request-invalid"):
            ask(prefix, dry_run=False, keep_days=days)
    assert left(prefix) == set(FILES)
    result = ask(prefix, dry_run=False)
    assert left(prefix) == set(FILES) - GOES
    assert (prefix / "envs/mine/bin/python").exists()
    assert len(result["removed"]) == 4 and result["bytes"] >= 4 * 8192
    assert ask(prefix, dry_run=False)["removed"] == []
    assert not (prefix / "lease.json").exists()


def test_files_of_a_user_below_a_prefix_are_neither_told_nor_removed(prefix: Path) -> None:
    mine = (
        *("tmp/mine/data.txt", "tmp/install-notes/a.txt", "tmp/smoke-results/x", "store/mine/a", "envs/work/a.txt"),
        *("jobs/mine/a.txt", "jobs/other/status-1", "jobs/todo.txt", "logs/a.log", "bin/a", "outputs/a", "launches/a"),
    )
    write_files(prefix, dict.fromkeys(mine, "x"))
    aged(prefix, 60)
    result = ask(prefix, dry_run=False, keep_days=0)
    assert {row["kind"] for row in result["places"]} == set(FILES)
    assert len(result["removed"]) == len(GOES)
    assert [name for name in mine if not (prefix / name).exists()] == []


def test_the_folder_of_each_kind_of_job_goes(prefix: Path) -> None:
    run = "20260101T000000Z-dead"
    names = (run, "20260101-000000", f"torch-smoke-{run}-3", f"{run}.trash-7", f"{run}-again")
    folders = {str(write_file(prefix / "jobs" / name / "status-1").parent) for name in names}
    aged(prefix, 40)
    assert folders <= set(ask(prefix, dry_run=False)["removed"])


def test_d107_the_folder_of_a_job_that_has_not_ended_stays_for_a_month(prefix: Path) -> None:
    aged(prefix, 20)
    ask(prefix, dry_run=False, keep_days=1)
    assert set(FILES) - left(prefix) == GOES - {"waiting jobs"}


def test_d100_what_is_left_of_environments_is_told_and_goes_and_what_a_user_wrote_there_is_kept(prefix: Path) -> None:
    name = f"demo-exact-{'a' * 12}"
    left_behind = [f"{name}.old-20260101T000000Z-dead", f"{name}.trash-123"]
    for each in (*left_behind, name, f"{name}.2"):
        write_file(prefix / "envs" / each / ".envbuild" / "files.json", "{}")
        (prefix / "envs" / each / "checkpoint.pt").write_text(each)
    aged(prefix, 40)
    (row,) = (row for row in ask(prefix)["places"] if row["kind"] == "leftovers")
    assert sorted(os.path.basename(path) for path in row["old"]) == sorted(left_behind)
    result = ask(prefix, dry_run=False)
    assert sorted(path.name for path in (prefix / "envs").iterdir()) == sorted([name, f"{name}.2", "mine"])
    kept = [path.read_text() for path in (prefix / "kept").rglob("checkpoint.pt")]
    assert sorted(kept) == sorted(left_behind)
    assert len(result["notes"]) == 2 and all(str(prefix / "kept") in note for note in result["notes"])
    aged(prefix, 40)
    (row,) = (row for row in ask(prefix, dry_run=False)["places"] if row["kind"] == "kept")
    assert (row["items"], row["old"]) == (2, [])


@pytest.mark.parametrize("moment", ["changed", "read"])
def test_d11_what_was_used_lately_stays_however_short_the_time_asked_for(prefix: Path, moment: str) -> None:
    then, now = time.time() - 40 * DAY, time.time() - 0.5 * DAY
    for kind in GOES:
        os.utime(prefix / FILES[kind], (then, now) if moment == "changed" else (now, then))
    assert ask(prefix, dry_run=False, keep_days=0)["removed"] == []
    assert left(prefix) == set(FILES)


def test_d11_a_link_is_removed_and_not_followed(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other") / "file"
    other.write_bytes(b"x" * 10**6)
    link = prefix / "tmp" / "smoke-0123abcd"
    link.symlink_to(other.parent)
    os.utime(link, (0, 0), follow_symlinks=False)
    places = {row["kind"]: row for row in ask(prefix, dry_run=False)["places"]}
    assert places["temporary"]["bytes"] < 10**6
    assert not link.is_symlink() and other.exists()


def test_d11_a_prefix_that_is_not_there_has_nothing_and_is_not_made(tmp_path: Path) -> None:
    assert ask(tmp_path / "none", dry_run=False)["places"] == []
    assert not (tmp_path / "none").exists()
