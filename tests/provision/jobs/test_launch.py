"""A launched job as it is waited for: its log here, and what the journal says of its end. Real jobs: tests/slurm."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.node.proc import Finished
from envbuild.provision.gpu_use import Taken
from envbuild.provision.jobs import answers, launch
from envbuild.provision.jobs.launch import Asked, _bounded, _Follow, make_jobs
from envbuild.provision.jobs.site import JobSite
from envbuild.provision.run.context import Settings, one_run
from envbuild.provision.run.run_dir import list_runs
from envbuild.schedule.job import Job, JobState, JobStep, Phase
from envbuild.schedule.script import log_name
from tests.launch.support import stack
from tests.provision.ansible.test_play import unseen
from tests.provision.jobs.test_parts import site


@pytest.mark.parametrize("gpus", [{}, {("gpu", None): 8}])
def test_a_launch_knows_whether_its_nodes_have_gpus_as_gres(
    gpus: dict[tuple[str, str | None], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = site({"idle": 2}, gpus)
    facts = SimpleNamespace(prefix=SimpleNamespace(path="/shared/envbuild"))
    monkeypatch.setattr(JobSite, "of", lambda _: found)
    monkeypatch.setattr(launch, "login_facts", lambda *_: facts)
    asked = Asked({}, gpus_per_node=8, environment="/e", time_limit="1h")
    _, place, make = make_jobs(found.target, stack("megatron-deepspeed-slurm"), "exact", asked, None)
    job, made = make(place, "one")
    assert (job.whole_nodes, "--gpus-per-node" in made.commands[0].argv) == (not gpus, bool(gpus))


def test_all_of_a_long_log_is_said_and_no_letter_is_torn(tmp_path: Path) -> None:
    job = Job(name="launch-x", steps=(JobStep(argv=("true",)),), output=str(tmp_path))
    said: list[str] = []
    follow = _Follow(site({"idle": 1}), job, said.append)
    follow("7")
    assert said == [], "it has not begun"
    text = "é" * 1_700_000 + "\n"
    log = tmp_path / log_name(job, "7")
    log.write_bytes(text.encode()[:1001])
    follow("7")
    log.write_bytes(text.encode())
    follow("7")
    assert "".join(said) == text


def test_of_a_job_whose_login_host_is_gone_since_it_ended_nothing_is_told_of_gpus() -> None:
    def gone(*_: Any, **__: Any) -> Finished:
        raise EnvbuildError("node-unreachable", "login cannot be reached", exit_code=ExitCode.UNREACHABLE)

    lost = replace(site({"idle": 1}), runner=SimpleNamespace(host="login", run=gone))
    assert launch.taken_by(lost, "/out") == (Taken(), [], [])


@pytest.mark.parametrize(("code", "status"), [(0, "finished"), (3, "failed")])
def test_the_journal_says_how_what_was_waited_for_ended(tmp_path: Path, code: int, status: str) -> None:
    with one_run("launch", Settings(tmp_path), unseen, target="cluster") as run:
        run.exit = code
    (found,) = list_runs(tmp_path)
    assert (found.journal.events[-1].data["exit"], found.status) == (code, status)


def test_nodes_of_a_job_are_asked_what_they_do_while_it_runs_and_not_while_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks: dict[str, Callable[[], str]] = {}
    told: list[str] = []

    def to_end(*_: object, on_state: Callable[[JobState], None]) -> tuple[str, JobState]:
        for phase in (Phase.PENDING, Phase.RUNNING, Phase.PENDING, Phase.DONE):
            on_state(JobState(phase))
            told.append(asks[str(tmp_path)]())
        return "7", JobState(Phase.DONE)

    def followed(ask: dict[str, Callable[[], str]], *_: object) -> nullcontext[None]:
        asks.update(ask)
        return nullcontext()

    monkeypatch.setattr(answers, "run_to_end", to_end)
    monkeypatch.setattr(answers, "followed", followed)
    monkeypatch.setattr(answers, "progress_of", lambda *_: "asked")
    job = Job(name="x", steps=(JobStep(argv=("true",)),), output=str(tmp_path))
    work: Any = None
    assert answers._followed(work, site({"idle": 1}), job)[0] == "7"
    assert told == ["\n", "asked\n", "\n", "asked\n"]


def test_more_nodes_than_a_partition_has_are_refused_with_the_number_that_it_has() -> None:
    with pytest.raises(EnvbuildError) as caught:
        _bounded(site({"idle": 5, "drained": 2}, {("gpu", None): 8}), Asked({}, nodes=6))
    assert (caught.value.code, caught.value.hint) == ("launch-does-not-fit", "--nodes 5")
