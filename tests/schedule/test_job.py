"""A job says what it costs, refuses what directives cannot carry, and names how it ended."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from envbuild.errors import ExitCode
from envbuild.schedule.job import Failure, Gres, JobState, Phase, clock_text, job_error, seconds_of
from tests.schedule.jobs import job, training


def test_a_job_says_what_it_costs_before_it_is_submitted() -> None:
    assert training().cost() == "4 nodes of hpc for at most 25:00:00, 800 GPU-hours"
    assert job(nodes=1, time_limit=1800, gpus_per_node=1).cost() == "1 node for at most 0:30:00, 0.5 GPU-hours"
    assert job().cost() == "2 nodes for as long as the site allows"


@pytest.mark.parametrize(
    "field", [{"queue": "a b"}, {"queue": "x\n#SBATCH --wrap"}, {"account": "-p"}, {"constraints": "$(id)"},
              {"name": "a b"}, {"name": "-x"}, {"output": "relative"}, {"variables": {"A": "x\ny"}}, {"nodes": 0},
              {"steps": ()}],
)  # fmt: skip
def test_what_could_leave_its_directive_is_refused(field: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        job(**field)


def test_gpus_that_nobody_can_ask_for_make_a_job_take_whole_nodes_and_say_so() -> None:
    unknown = job(gpus_per_node=8)
    assert unknown.whole_nodes
    assert "no GRES" in unknown.warnings()[0]
    asked = job(gpus_per_node=8, gres=Gres())
    assert not asked.whole_nodes
    assert asked.warnings() == ()
    assert job(gpus_per_node=8, exclusive=True).warnings() == ()


def test_durations_become_seconds_and_clocks() -> None:
    assert [seconds_of(text) for text in ("90s", "40m", "2h")] == [90, 2400, 7200]
    assert [clock_text(seconds) for seconds in (59, 3600, 90061)] == ["0:00:59", "1:00:00", "25:01:01"]


@pytest.mark.parametrize(
    ("state", "code", "exit_code"),
    [
        (JobState(Phase.DONE, exit=3), "job-failed", ExitCode.JOB_FAILED),
        (JobState(Phase.FAILED, failure=Failure.TIMEOUT), "job-timeout", ExitCode.JOB_FAILED),
        (JobState(Phase.FAILED, failure=Failure.NODE_FAIL), "job-node-fail", ExitCode.JOB_FAILED),
        (JobState(Phase.FAILED, failure=Failure.PREEMPTED), "job-preempted", ExitCode.TRY_AGAIN),
        (JobState(Phase.LOST), "job-lost", ExitCode.JOB_FAILED),
    ],
)
def test_each_end_of_a_job_has_its_code(state: JobState, code: str, exit_code: ExitCode) -> None:
    error = job_error("17", state, "the last line\n")
    assert (error.code, error.exit_code) == (code, exit_code)
    assert error.why.endswith("the last line")
    assert error.hint


def test_a_state_is_told_in_one_line() -> None:
    assert JobState(Phase.PENDING, reason="Resources").summary() == "pending (Resources)"
    assert (
        JobState(Phase.FAILED, failure=Failure.NODE_FAIL, reason="NodeDown").summary() == "failed: node-fail (NodeDown)"
    )
    assert JobState(Phase.DONE, exit=3).summary() == "done, exit 3"
    assert JobState(Phase.DONE, exit=0).good
    assert not JobState(Phase.LOST).good
