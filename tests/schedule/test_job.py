"""A job says what it costs, refuses what directives cannot carry, is waited for, and names how it ended."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence

import pytest
from pydantic import ValidationError

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.target import Connection, Login, Target
from envbuild.node.proc import Finished
from envbuild.schedule import cluster, wait
from envbuild.schedule.cluster import Runner, Scheduler
from envbuild.schedule.job import Failure, Gres, Job, JobState, Phase, SchedulerUnavailableError, job_error, seconds_of
from envbuild.schedule.pbs import Pbs
from envbuild.schedule.slurm import Slurm
from envbuild.schedule.wait import wait_for
from tests.schedule.jobs import job, training
from tests.support.fails import fails


def test_a_job_says_what_it_costs_before_it_is_submitted() -> None:
    hours = "4 nodes of hpc for at most 25:00:00, 800 GPU-hours (8 GPUs a node)"
    assert training().cost() == f"{hours}, whole nodes, account proj-1"
    small = job(nodes=1, time_limit=1800, gpus_per_node=1, gres=Gres())
    assert small.cost() == "1 node for at most 0:30:00, 0.5 GPU-hours (1 GPU a node)"
    assert small.model_copy(update={"gpus_on_node": 8}).cost() == small.cost(), "others use the rest"
    assert job().cost() == "2 nodes for as long as the site allows"
    for there, hours in (
        (8, "16 GPU-hours (8 GPUs a node, 4 requested)"), (4, "8 GPU-hours (4 GPUs a node)"),
        (0, "at least 8 GPU-hours (4 GPUs a node)"),
    ):  # fmt: skip
        for more in ({"exclusive": True, "gres": Gres()}, {"gres": None}):
            whole = job(time_limit=3600, gpus_per_node=4, gpus_on_node=there, **more)
            assert whole.cost() == f"2 nodes for at most 1:00:00, {hours}, whole nodes"
    assert [seconds_of(text) for text in ("90s", "40m", "2h")] == [90, 2400, 7200]
    unknown, asked = job(gpus_per_node=8), job(gpus_per_node=8, gres=Gres())
    assert unknown.whole_nodes and "no GRES" in unknown.warnings()[0], "GPUs that nobody can ask for"
    assert not asked.whole_nodes and asked.warnings() == job(gpus_per_node=8, exclusive=True).warnings() == ()


@pytest.mark.parametrize(
    "field", [{"queue": "a b"}, {"queue": "x\n#SBATCH --wrap"}, {"account": "-p"}, {"constraints": "$(id)"},
              {"name": "a b"}, {"name": "-x"}, {"output": "relative"}, {"variables": {"A": "x\ny"}}, {"nodes": 0},
              {"steps": ()}],
)  # fmt: skip
def test_what_could_leave_its_directive_is_refused(field: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        job(**field)


@pytest.mark.parametrize(
    ("state", "code", "exit_code", "summary"),
    [
        (JobState(Phase.DONE, exit=3), "job-failed", ExitCode.JOB_FAILED, "done, exit 3"),
        (JobState(Phase.FAILED, failure=Failure.TIMEOUT), "job-timeout", ExitCode.JOB_FAILED, "failed: timeout"),
        (JobState(Phase.FAILED, failure=Failure.NODE_FAIL, reason="NodeDown"), "job-node-fail", ExitCode.JOB_FAILED,
         "failed: node-fail (NodeDown)"),
        (JobState(Phase.FAILED, failure=Failure.PREEMPTED), "job-preempted", ExitCode.TRY_AGAIN, "failed: preempted"),
        (JobState(Phase.LOST), "job-lost", ExitCode.JOB_FAILED, "lost"),
    ],
)  # fmt: skip
def test_each_end_of_a_job_has_its_code(state: JobState, code: str, exit_code: ExitCode, summary: str) -> None:
    assert not state.good
    error = job_error("17", state, "the last line\n")
    assert (error.code, error.exit_code) == (code, exit_code)
    assert error.why.endswith("the last line")
    assert error.hint
    assert state.summary() == summary


@pytest.mark.parametrize("where", ["here", "login"])
def test_what_a_shell_carries_does_not_reach_a_job(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    lost = ("SECRET_TOKEN", "PYTHONPATH", "VIRTUAL_ENV", "CUDA_HOME")
    for name in (*lost, "SLURM_CONF"):
        monkeypatch.setenv(name, "value")
    monkeypatch.setenv("https_proxy", "http://it's:$(id)@proxy")
    monkeypatch.setenv("PATH", "/home/you/cuda-11.3/bin", prepend=":")
    if where == "here":
        said = Runner().run(["env"]).out
    else:
        text = cluster._script(["env"], None, "0" * 32)
        said = subprocess.run(["/bin/sh", "-s"], input=text, capture_output=True, text=True, check=True).stdout
    assert "SLURM_CONF=value" in said
    assert "https_proxy=http://it's:$(id)@proxy\n" in said
    assert "\nPATH=/home/you/cuda-11.3/bin:" in f"\n{said}", "a toolkit of the user's own needs no module"
    for name in lost:
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
    cut_off = cluster._finished(Finished(out="\nbegin abc\nhalf", timed_out=True), "abc")
    assert (cut_off.rc, cut_off.timed_out, cut_off.ok) == (None, True, False), "that is no success"


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


PENDING = JobState(Phase.PENDING, reason="Resources", word="PENDING")
AGAIN = JobState(Phase.PENDING, reason="BeginTime", restarts=1)
BOOTING = JobState(Phase.CONFIGURING, word="CONFIGURING")
RUNNING = JobState(Phase.RUNNING, word="RUNNING")
DONE = JobState(Phase.DONE, exit=0, word="COMPLETED")


def test_the_runs_of_a_job_are_counted_where_its_script_can_count_them() -> None:
    assert [scheduler(Runner()).attempt(AGAIN) for scheduler in (Slurm, Pbs)] == [1, 0]


class FakeClock:
    """The module `time`, as far as waiting needs it."""

    def __init__(self) -> None:
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.time += seconds


class Script:
    """A scheduler that says what it is told to: (until when, state or None for silence)."""

    def __init__(self, clock: FakeClock, answers: Iterable[tuple[float, JobState | None]]) -> None:
        self.clock, self.answers = clock, list(answers)
        self.asked: list[float] = []
        self.cancelled: list[str] = []

    def poll(self, job: Job, number: str) -> JobState:
        self.asked.append(self.clock.time)
        for until, state in self.answers:
            if self.clock.time < until:
                if state is None:
                    raise SchedulerUnavailableError("connect failure")
                return state
        return DONE

    def cancel(self, number: str) -> None:
        self.cancelled.append(number)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    monkeypatch.setattr(wait, "time", clock := FakeClock())
    return clock


@pytest.mark.parametrize(
    ("answers", "ends", "asked"),
    [
        ([(200, RUNNING)], None, [0, 2, 6, 14, 74, 134, 194, 254]),
        ([(100, PENDING), (139, RUNNING)], None, [0, 2, 6, 14, 74, 134, 136, 140]),
        ([(40, RUNNING)], 41, [0, 2, 6, 14, 41]),
        ([(70, RUNNING), (86, None)], None, [0, 2, 6, 14, 74, 76, 80, 88]),
    ],
    ids=["soon, then once a minute", "soon again after a change", "a status file", "d102: soon after a silence"],
)
def test_how_often_the_scheduler_is_asked(
    clock: FakeClock, answers: list[tuple[float, JobState | None]], ends: float | None, asked: list[int]
) -> None:
    """`ends`: when the job leaves its status file, where that can be seen."""
    script, seen = Script(clock, answers), list[Phase]()
    peek = None if ends is None else lambda: clock.time >= ends
    assert wait_for(script, job(), "1", on_change=lambda state: seen.append(state.phase), peek=peek).good
    assert script.asked == asked
    assert seen == [*dict.fromkeys(state.phase for _, state in answers if state), Phase.DONE]


def test_a_job_that_asks_for_more_than_its_partition_has_is_not_waited_for(clock: FakeClock) -> None:
    script = Script(clock, [(1, PENDING), (1e9, JobState(Phase.PENDING, reason="PartitionTimeLimit", word="PENDING"))])
    with fails("job-refused", ExitCode.REFUSED) as caught:
        wait_for(script, job(), "1", start=2400)
    assert "less time than it asks for" in caught.value.why and "--run-timeout" in caught.value.hint
    assert (script.asked, script.cancelled) == ([0, 2], ["1"])


def test_a_job_that_has_not_begun_by_its_deadline_is_cancelled(clock: FakeClock) -> None:
    script = Script(clock, [(1e9, PENDING)])
    with fails("job-not-started", ExitCode.TRY_AGAIN) as caught:
        wait_for(script, job(), "1", start=100)
    assert "Resources" in caught.value.why
    assert script.cancelled == ["1"]
    assert clock.time == pytest.approx(100)


@pytest.mark.parametrize(
    ("answers", "start"),
    [([(80, BOOTING), (5000, RUNNING)], 100), ([(300, RUNNING), (450, AGAIN)], 200)],
    ids=["nodes that are being started, and then time does not matter", "a requeued job has its whole time again"],
)
def test_a_job_that_begins_in_time_is_not_cancelled(
    clock: FakeClock, answers: list[tuple[float, JobState | None]], start: float
) -> None:
    script = Script(clock, answers)
    assert wait_for(script, job(), "1", start=start).good
    assert script.cancelled == []


def test_a_silent_scheduler_is_asked_again_and_given_up_after_a_long_time(clock: FakeClock) -> None:
    back = Script(clock, [(10, RUNNING), (900, None)])
    assert wait_for(back, job(), "1").good
    gone = Script(clock, [(clock.time + 10, RUNNING), (1e9, None)])
    with fails("scheduler-silent"):
        wait_for(gone, job(), "1")
    assert gone.cancelled == []
    script, end = Script(clock, [(1e9, RUNNING)]), clock.time + 5
    with pytest.raises(KeyboardInterrupt):
        wait_for(script, job(), "1", cancelled=lambda: clock.time > end)
    assert script.cancelled == [], "an interrupt leaves the job alone"
    failed = JobState(Phase.FAILED, failure=Failure.NODE_FAIL)
    assert wait_for(Script(clock, [(1e9, failed)]), job(), "1") == failed


def test_a_login_host_out_of_reach_is_a_silent_scheduler_and_any_other_error_ends_the_waiting(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(clock, [(900, RUNNING)])
    poll, error = script.poll, EnvbuildError("node-unreachable", "login1 cannot be reached", why="no route to host")

    def unreachable_for_a_while(job: Job, number: str) -> JobState:
        if 10 < clock.time < 800:
            raise error
        return poll(job, number)

    monkeypatch.setattr(script, "poll", unreachable_for_a_while)
    assert wait_for(script, job(), "1").good
    clock.time, error = 0.0, EnvbuildError("not-writable", "no")
    with pytest.raises(EnvbuildError, match="not-writable"):
        wait_for(script, job(), "1")


@pytest.mark.parametrize(
    ("scheduler", "asked", "status", "match"),
    [
        (
            Slurm,
            Finished(out="JobId=7 JobName=x JobState=COMPLETED Reason=None", timed_out=True),
            None,
            "no answer in time",
        ),
        (Pbs, Finished(out="Job Id: 7.head\n    job_state = F\n", timed_out=True), None, "no answer in time"),
        (Slurm, Finished(rc=1, err="Invalid job id specified"), Finished(), "login1"),
    ],
    ids=[
        "the beginning of Slurm's answer",
        "of that of PBS",
        "a forgotten job whose status file nobody could look for",
    ],
)
def test_what_is_no_whole_answer_says_nothing_of_the_job(
    scheduler: type[Scheduler], asked: Finished, status: Finished | None, match: str
) -> None:
    class CutOff:
        host = "login1"

        def run(self, argv: Sequence[str], *, stdin: bytes | None = None, timeout: float = 60.0) -> Finished:
            return status if status and argv[0] == "cat" else asked

    with pytest.raises(SchedulerUnavailableError, match=match):
        scheduler(CutOff()).poll(job(), "7")
