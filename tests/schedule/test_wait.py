"""Waiting for a job, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.node.proc import Finished
from envbuild.schedule.job import Failure, Job, JobState, Phase, SchedulerUnavailableError
from envbuild.schedule.slurm import Slurm
from envbuild.schedule.wait import Clock, Limits, wait_for
from tests.schedule.jobs import job
from tests.support.fails import fails

PENDING = JobState(Phase.PENDING, reason="Resources", word="PENDING")
BOOTING = JobState(Phase.CONFIGURING, word="CONFIGURING")
RUNNING = JobState(Phase.RUNNING, word="RUNNING")
DONE = JobState(Phase.DONE, exit=0, word="COMPLETED")


class FakeClock(Clock):
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.time += seconds


class Script:
    """A scheduler that says what it is told to: (until when, state or None for silence)."""

    kind = "script"

    def __init__(self, clock: FakeClock, answers: Iterable[tuple[float, JobState | None]]) -> None:
        self.clock, self.answers = clock, list(answers)
        self.asked: list[float] = []
        self.cancelled: list[str] = []

    def render(self, job: Job) -> str:
        return ""

    def submit(self, job: Job) -> str:
        return "1"

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

    def logs(self, job: Job, number: str, limit: int = 65536) -> str:
        return ""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_job_is_asked_for_soon_at_first_and_then_once_a_minute(clock: FakeClock) -> None:
    script = Script(clock, [(200, RUNNING)])
    assert wait_for(script, job(), "1", clock=clock).good
    assert script.asked == [0, 2, 6, 14, 74, 134, 194, 254]


def test_a_change_makes_the_next_questions_come_soon_again(clock: FakeClock) -> None:
    script = Script(clock, [(100, PENDING), (139, RUNNING)])
    seen: list[Phase] = []
    wait_for(script, job(), "1", clock=clock, on_change=lambda state: seen.append(state.phase))
    assert script.asked == [0, 2, 6, 14, 74, 134, 136, 140]
    assert seen == [Phase.PENDING, Phase.RUNNING, Phase.DONE]


def test_a_status_file_ends_the_waiting_without_asking_the_scheduler(clock: FakeClock) -> None:
    script = Script(clock, [(40, RUNNING)])
    wait_for(script, job(), "1", clock=clock, peek=lambda: clock.time >= 41)
    assert script.asked == [0, 2, 6, 14, 41]


def test_a_job_that_asks_for_more_than_its_partition_has_is_not_waited_for(clock: FakeClock) -> None:
    script = Script(clock, [(1, PENDING), (1e9, JobState(Phase.PENDING, reason="PartitionTimeLimit", word="PENDING"))])
    with fails("job-refused", ExitCode.REFUSED) as caught:
        wait_for(script, job(), "1", clock=clock, limits=Limits(start=2400))
    assert "less time than it asks for" in caught.value.why and "--run-timeout" in caught.value.hint
    assert (script.asked, script.cancelled) == ([0, 2], ["1"])


def test_a_job_that_has_not_begun_by_its_deadline_is_cancelled(clock: FakeClock) -> None:
    script = Script(clock, [(1e9, PENDING)])
    with fails("job-not-started", ExitCode.TRY_AGAIN) as caught:
        wait_for(script, job(), "1", clock=clock, limits=Limits(start=100))
    assert "Resources" in caught.value.why
    assert script.cancelled == ["1"]
    assert clock.time == pytest.approx(100)


def test_nodes_that_are_being_started_are_waited_for_and_then_time_does_not_matter(clock: FakeClock) -> None:
    script = Script(clock, [(80, BOOTING), (5000, RUNNING)])
    assert wait_for(script, job(), "1", clock=clock, limits=Limits(start=100)).good
    assert script.cancelled == []


def test_a_requeued_job_has_its_whole_time_to_begin_again(clock: FakeClock) -> None:
    again = JobState(Phase.PENDING, reason="BeginTime", restarts=1)
    script = Script(clock, [(300, RUNNING), (450, again)])
    assert wait_for(script, job(), "1", clock=clock, limits=Limits(start=200)).good


def test_a_silent_scheduler_is_asked_again_and_given_up_after_a_long_time(clock: FakeClock) -> None:
    back = Script(clock, [(10, RUNNING), (900, None)])
    assert wait_for(back, job(), "1", clock=clock).good
    gone = Script(clock, [(clock.time + 10, RUNNING), (1e9, None)])
    with fails("scheduler-silent"):
        wait_for(gone, job(), "1", clock=clock)
    assert gone.cancelled == []


def test_d102_a_scheduler_that_was_lost_is_heard_soon_after_it_is_back(clock: FakeClock) -> None:
    script = Script(clock, [(70, RUNNING), (86, None)])
    assert wait_for(script, job(), "1", clock=clock).good
    assert script.asked == [0, 2, 6, 14, 74, 76, 80, 88]


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
    assert wait_for(script, job(), "1", clock=clock).good
    clock.time, error = 0.0, EnvbuildError("not-writable", "no")
    with pytest.raises(EnvbuildError, match="not-writable"):
        wait_for(script, job(), "1", clock=clock)


def test_a_forgotten_job_whose_status_file_nobody_could_look_for_is_not_lost() -> None:
    class CutOff:
        host = "login1"

        def run(self, argv: Sequence[str], *, stdin: bytes | None = None, timeout: float = 60.0) -> Finished:
            return Finished() if argv[0] == "cat" else Finished(rc=1, err="Invalid job id specified")

    with pytest.raises(SchedulerUnavailableError, match="login1"):
        Slurm(CutOff()).poll(job(), "7")


def test_an_interrupt_leaves_the_job_alone(clock: FakeClock) -> None:
    script = Script(clock, [(1e9, RUNNING)])
    with pytest.raises(KeyboardInterrupt):
        wait_for(script, job(), "1", clock=clock, cancelled=lambda: clock.time > 5)
    assert script.cancelled == []


def test_a_failure_is_an_end(clock: FakeClock) -> None:
    failed = JobState(Phase.FAILED, failure=Failure.NODE_FAIL)
    assert wait_for(Script(clock, [(1, failed)]), job(), "1", clock=clock) == failed
