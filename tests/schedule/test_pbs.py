"""The PBS adapter against a small fake of its programs; a real PBS is not to be had where these tests run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError
from envbuild.schedule.job import Failure, Job, JobStep, Phase, SchedulerUnavailableError
from envbuild.schedule.pbs import Pbs
from envbuild.schedule.pbs_answers import parse_json, parse_text
from envbuild.schedule.run import Here
from envbuild.schedule.wait import wait_for
from tests.schedule.fake_pbs import FakePbs
from tests.schedule.jobs import job


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePbs:
    made = FakePbs(tmp_path, sys.executable)
    monkeypatch.setenv("PATH", f"{made.bin}{os.pathsep}{os.environ['PATH']}")
    return made


@pytest.fixture
def pbs(fake: FakePbs) -> Pbs:
    return Pbs(Here())


def shell(fake: FakePbs, code: str, **more: object) -> Job:
    return job(steps=(JobStep(argv=("bash", "-c", code)),), output=str(fake.top.parent / "jobs"), **more)


@pytest.mark.parametrize("broken", [False, True])
def test_a_job_runs_on_every_node_and_its_end_is_read_from_json_or_text(fake: FakePbs, pbs: Pbs, broken: bool) -> None:
    if broken:
        fake.say("broken")
    asked = shell(fake, 'echo "$NODE_RANK of $NNODES at $MASTER_ADDR"; exit "$NODE_RANK"', nodes=3)
    number = pbs.submit(asked)
    state = wait_for(pbs, asked, number)
    assert (state.phase, state.exit, state.nodes) == (Phase.DONE, 2, ("x3001", "x3002", "x3003"))
    assert pbs.logs(asked, number).splitlines() == [f"{rank} of 3 at x3001" for rank in range(3)]


def test_broken_json_is_asked_for_once_only(fake: FakePbs, pbs: Pbs) -> None:
    fake.say("broken")
    fake.say("hold")
    asked = shell(fake, "true")
    number = pbs.submit(asked)
    assert pbs.poll(asked, number).phase is Phase.PENDING
    assert pbs._json is False
    assert pbs.poll(asked, number).reason == "Not Running: Not enough free nodes available"


def test_a_job_deleted_in_the_queue_was_cancelled(fake: FakePbs, pbs: Pbs) -> None:
    fake.say("hold")
    asked = shell(fake, "true")
    number = pbs.submit(asked)
    pbs.cancel(number)
    state = pbs.poll(asked, number)
    assert (state.phase, state.failure) == (Phase.FAILED, Failure.CANCELLED)
    assert "deleted" in state.reason
    pbs.cancel(number)
    pbs.cancel("77777")


def test_a_job_that_pbs_has_forgotten_is_known_by_its_status_file(fake: FakePbs, pbs: Pbs) -> None:
    asked = shell(fake, "exit 7")
    number = pbs.submit(asked)
    fake.forget(number)
    assert pbs.poll(asked, number).exit == 7
    Path(asked.output, f"status-{number}").unlink()
    assert pbs.poll(asked, number).phase is Phase.LOST


def test_a_server_that_is_away_says_nothing_about_the_job(fake: FakePbs, pbs: Pbs) -> None:
    asked = shell(fake, "true")
    number = pbs.submit(asked)
    fake.say("down")
    with pytest.raises(SchedulerUnavailableError, match="cannot connect"):
        pbs.poll(asked, number)
    with pytest.raises(EnvbuildError) as caught:
        pbs.submit(asked)
    assert caught.value.code == "scheduler-unreachable"
    fake.stop("down")
    assert pbs.poll(asked, number).good


def test_what_pbs_refuses_is_refused_in_its_words(fake: FakePbs, pbs: Pbs) -> None:
    with pytest.raises(EnvbuildError) as caught:
        pbs.submit(shell(fake, "true", queue="nope"))
    assert (caught.value.code, caught.value.why) == ("job-refused", "qsub: Unknown queue")


def test_a_host_without_pbs_is_told_from_one_that_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mkdir").symlink_to("/bin/mkdir")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvbuildError) as caught:
        Pbs(Here()).submit(job(output=str(tmp_path / "jobs")))
    assert caught.value.code == "scheduler-missing"


TEXT = """\
Job Id: 12.polaris-pbs-01
    Job_Name = envbuild
    job_state = {state}
    Exit_status = {status}
    exec_host = x3001c0s13b0n0/0*64+x3001c0s13b1n0/0*64
    comment = {comment}
    run_count = {runs}
    Variable_List = PBS_O_HOME=/home/me,FN=() {{ a; }},
\tNOTE=x
    job_state = F
"""


@pytest.mark.parametrize(
    ("state", "status", "comment", "failure", "code"),
    [
        ("F", "0", "finished", None, 0),
        ("F", "3", "finished", None, 3),
        ("F", "271", "Job deleted at request of me", Failure.CANCELLED, 143),
        ("F", "271", "job killed: walltime 3600 exceeded limit", Failure.TIMEOUT, 143),
        ("F", "-29", "Job exceeded walltime", Failure.TIMEOUT, -29),
        ("F", "265", "Job preempted by high priority", Failure.PREEMPTED, 137),
        ("F", "-11", "job lost", Failure.NODE_FAIL, -11),
    ],
)
def test_each_end_has_its_name(state: str, status: str, comment: str, failure: Failure | None, code: int) -> None:
    found = parse_text(TEXT.format(state=state, status=status, comment=comment, runs=2), "12")
    assert found is not None
    assert (found.failure, found.exit, found.restarts) == (failure, code, 1)
    assert found.nodes == ("x3001c0s13b0n0", "x3001c0s13b1n0")


@pytest.mark.parametrize(("word", "phase"), [("Q", "pending"), ("H", "pending"), ("R", "running"), ("E", "completing")])
def test_a_job_that_lives_has_a_phase_and_no_exit(word: str, phase: str) -> None:
    found = parse_text(TEXT.format(state=word, status="", comment="", runs=1), "12")
    assert found is not None
    assert (found.phase, found.exit) == (Phase(phase), None)


def test_another_job_and_no_json_are_no_answer() -> None:
    assert parse_text(TEXT.format(state="F", status="0", comment="", runs=1), "13") is None
    assert parse_text("", "12") is None
    for text in ("", "{", "[]", '{"Jobs": {}}', '{"Jobs": {"12.x": {}}}', '{"Jobs": {"12.x": "a"b"}}'):
        assert parse_json(text, "12") is None
