"""The journal of every verb says how its run ended, whatever ended it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import EnvbuildError
from envbuild.provision import provision
from envbuild.provision.run.context import Settings, one_run
from envbuild.provision.run.run_dir import RunDir, list_runs
from tests.provision.ansible.test_play import unseen
from tests.provision.survey.test_up_to_date import prepared
from tests.support.fails import fails
from tests.support.programs import completed

CLUSTER = {"hosts": {"slurm": "gpu"}, "connection": {"kind": "job"}, "scheduler": {"kind": "slurm"}}
VERBS: dict[str, Callable[..., Any]] = {
    "smoke": provision.smoke,
    "verify": lambda *args: provision.verify(*args, deep=False),
    "provision": lambda *args: provision.provision(*args, show_plan=lambda *_: None),
}


def the_run(tmp_path: Path) -> RunDir:
    return next(run for run in list_runs(tmp_path / "runs") if run.path.name != "filler")


@pytest.mark.parametrize("verb", VERBS)
def test_d39_a_run_that_fails_is_listed_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without sbatch
    ready = prepared(prefix=str(tmp_path / "p"), placement="shared", **CLUSTER)
    with fails("scheduler-missing"):
        VERBS[verb](ready, Settings(tmp_path / "runs", command=("envbuild", verb)), unseen)
    run = the_run(tmp_path)
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
    assert the_run(tmp_path).status == "interrupted"


def test_d39_a_mistake_in_envbuild_is_a_failed_run_and_no_died_one(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), one_run("probe", Settings(tmp_path / "runs"), unseen):
        1 / 0  # noqa: B018 - any error that nobody expects
    run = the_run(tmp_path)
    assert (run.status, run.journal.events[-1].data["error"]["code"]) == ("failed", "internal")


@pytest.mark.parametrize(("exit_", "status"), [(0, "finished"), (8, "failed")])
def test_d39_a_run_ends_with_the_exit_that_it_was_given(tmp_path: Path, exit_: int, status: str) -> None:
    with one_run("probe", Settings(tmp_path / "runs"), unseen) as run:
        run.exit = exit_
    assert the_run(tmp_path).status == status


def test_d39_on_a_full_disk_the_reason_of_the_failure_is_what_is_raised(tmp_path: Path) -> None:
    small = tmp_path / "runs"
    small.mkdir()
    mounted = completed(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small])
    if mounted.returncode:
        pytest.skip(f"mounting a small tmpfs needs root: {mounted.stderr}")
    try:
        with pytest.raises(EnvbuildError, match="of the run itself"), one_run("probe", Settings(small), unseen):
            with pytest.raises(OSError, match="No space left"):
                (small / "filler").write_bytes(b"x" * 100_000)
            raise EnvbuildError("some-failure", "of the run itself", why="x" * 8192)
        assert [event.kind for event in the_run(tmp_path).journal.events] == ["run-started"]
    finally:
        subprocess.run(["umount", small], check=True)


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
