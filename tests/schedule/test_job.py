"""A job says what it costs, refuses what directives cannot carry, names how it ended; where it is submitted."""

from __future__ import annotations

import subprocess

import pytest
from pydantic import ValidationError

from envbuild.errors import ExitCode
from envbuild.model.target import Connection, Login, Target
from envbuild.node.proc import Finished
from envbuild.schedule import cluster
from envbuild.schedule.cluster import Here
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


def test_what_a_shell_carries_does_not_reach_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECRET_TOKEN", "PYTHONPATH", "VIRTUAL_ENV", "SLURM_CONF", "https_proxy"):
        monkeypatch.setenv(name, "value")
    said = Here().run(["env"]).out
    assert "SLURM_CONF=value" in said
    assert "https_proxy=value" in said
    for name in ("SECRET_TOKEN", "PYTHONPATH", "VIRTUAL_ENV"):
        assert name not in said


@pytest.mark.parametrize("stdin", [None, b"", b"text\x00with\nall $(id)"])
def test_a_login_host_runs_argument_lists_and_gives_streams_and_exit_code_back(stdin: bytes | None) -> None:
    argv = ["sh", "-c", 'printf "[%s]" "$@"; cat; printf err >&2; exit 3', "x", "$(id)", "it's", "a\nb", ""]
    text = cluster._script(argv, stdin, "0" * 32)
    done = subprocess.run(["/bin/sh", "-s"], input=b"echo noise\n" + text.encode(), capture_output=True, check=False)
    found = cluster._finished(Finished(out=done.stdout.decode(), err=done.stderr.decode()), "0" * 32)
    assert found.rc == 3
    assert found.out == "[$(id)][it's][a\nb][]" + (stdin or b"").decode()
    assert found.err == "err"


def test_an_answer_that_was_cut_off_is_no_success() -> None:
    found = cluster._finished(Finished(out="\nbegin abc\nhalf", timed_out=True), "abc")
    assert (found.rc, found.timed_out, found.ok) == (None, True, False)


def test_jobs_are_submitted_on_the_login_host_of_the_target_or_here() -> None:
    given = {"name": "x", "prefix": "/p", "scheduler": {"kind": "slurm"}, "hosts": {"slurm": "hpc"}}
    here = Target.from_plain({**given, "connection": {"kind": "job"}})
    assert cluster.submit_host(here).host == "localhost"
    login = Login(host="scheduler", user="me", port=2222)
    there = here.model_copy(update={"connection": Connection(kind="job", login=login, identity="~/key")})
    assert cluster.submit_host(there).host == "scheduler"
    connection = cluster.login_connection(there)
    assert connection is not None
    assert (connection.kind, connection.user, connection.port, connection.identity) == ("ssh", "me", 2222, "~/key")
