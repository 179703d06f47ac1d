"""The adapter against a real Slurm: states and their reasons, cancelling, logs, requeueing, restarts of slurmctld."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.errors import ExitCode
from envbuild.schedule import wait
from envbuild.schedule.job import Failure, Gres, Job, JobState, JobStep, JobText, Phase, SchedulerUnavailableError
from envbuild.schedule.script import AGAIN
from envbuild.schedule.slurm import Slurm
from envbuild.schedule.wait import wait_for
from tests.slurm.cluster import GPUS, NODES, Cluster
from tests.support import patience
from tests.support.fails import fails

pytestmark = pytest.mark.slow


def shell(cluster: Cluster, code: str, **more: Any) -> Job:
    """A job that runs `code` with bash on every node."""
    given: dict[str, Any] = {
        "name": "test", "nodes": 1, "queue": "gpu", "time_limit": 300, "output": str(cluster.shared / "my jobs 100%"),
        "steps": (JobStep(argv=("bash", "-c", code)),),
    }  # fmt: skip
    return Job(**{**given, **more})


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time runs ten times as fast, so that no minute between two questions has to be waited for."""
    fast = SimpleNamespace(monotonic=lambda: time.monotonic() * 10, sleep=lambda seconds: time.sleep(seconds / 10))
    monkeypatch.setattr(wait, "time", fast)


def until(slurm: Slurm, job: Job, number: str, wanted: Callable[[JobState], bool], seconds: float = 120) -> JobState:
    """Poll without mercy until a state is there."""

    def state() -> JobState | None:
        now = slurm.poll(job, number)
        return now if wanted(now) else None

    found = patience.until(state, seconds)
    assert found is not None
    return found


def ended(slurm: Slurm, job: Job, number: str, seconds: float = 120) -> JobState:
    """The state in which a job ends."""
    return until(slurm, job, number, lambda state: state.ended, seconds)


def ran(slurm: Slurm, job: Job) -> tuple[JobState, str]:
    """The state in which a job ends that is submitted now, and its log."""
    number = slurm.submit(job)
    return ended(slurm, job, number), slurm.logs(job, number)


def running(slurm: Slurm, job: Job, number: str) -> JobState:
    return until(slurm, job, number, lambda state: state.phase is Phase.RUNNING)


def test_a_job_runs_once_on_every_node_with_its_gpus_and_leaves_its_log(cluster: Cluster, slurm: Slurm) -> None:
    code = 'printf "%s %s %s %s\\n" "$SLURMD_NODENAME" "$CUDA_VISIBLE_DEVICES" "$MASTER_ADDR" "$GREETING"; pwd'
    gres = slurm.partition("gpu").gres()
    job = shell(cluster, code, nodes=3, gpus_per_node=4, gres=gres, variables={"GREETING": "it's $(id)"})
    state, log = ran(slurm, job)
    assert state.good, log
    assert len(state.nodes) == 3
    lines = log.splitlines()
    assert {line for line in lines if line.startswith("gpu")} == {
        f"{node} 0,1,2,3 {state.nodes[0]} it's $(id)" for node in state.nodes
    }
    assert lines.count(job.output) == 3


def test_a_run_s_own_srun_starts_several_tasks_a_node_where_the_job_is_one_with_all_processors(
    cluster: Cluster, slurm: Slurm
) -> None:
    gres = slurm.partition("gpu").gres()
    # That srun is older than 22.05: from then on it reads the number of processors under another name.
    own = 'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK-}"\n[ "$SRUN_CPUS_PER_TASK" ] || unset SRUN_CPUS_PER_TASK\n'
    steps = (JobText(text=f"{own}srun --immediate=5 --nodes 1 --ntasks 8 echo task\n", each="batch"),)
    job = shell(cluster, "", gpus_per_node=8, gres=gres, cpus_per_node=8, steps=steps)
    state, log = ran(slurm, job)
    assert state.good, log
    assert log.splitlines().count("task") == 8 and "honor" not in log, log
    # GPUs of a shared node come with their part of its processors.
    partition, code = slurm.partition("gpu"), 'echo "has $SLURM_CPUS_ON_NODE"'
    for gpus in (4, 8):
        share = partition.share(gpus, exclusive=False)
        more = {"gpus_per_node": gpus, "gres": partition.gres(), "cpus_per_node": share.cpus}
        state, log = ran(slurm, shell(cluster, code, nodes=2, **more))
        assert state.good, log
        assert log.splitlines().count(f"has {gpus}") == 2


def test_sinfo_says_how_gpus_are_asked_for_and_which_partitions_there_are(slurm: Slurm) -> None:
    partition = slurm.partition("gpu")
    assert (partition.nodes, partition.gpus_per_node) == (NODES, GPUS)
    assert partition.gres() == Gres(name="gpu", type="a100")
    bare = slurm.partition("bare")
    assert (bare.nodes, bare.gres()) == (1, None)
    with fails("partition-unknown") as caught:
        slurm.partition("htc")
    assert "bare, cloud, gpu, hpc, low" in caught.value.why


def test_without_gres_whole_nodes_are_taken(cluster: Cluster, slurm: Slurm) -> None:
    job = shell(cluster, "sleep 30", queue="bare", gpus_per_node=8, gres=slurm.partition("bare").gres())
    first = slurm.submit(job)
    running(slurm, job, first)
    second = slurm.submit(job)
    state = until(slurm, job, second, lambda state: bool(state.reason))
    assert (state.phase, state.reason) == (Phase.PENDING, "Resources")


def test_the_exit_code_of_a_program_is_that_of_its_job_and_other_nodes_finish(cluster: Cluster, slurm: Slurm) -> None:
    for code in (1, 3, 130):
        state, _ = ran(slurm, shell(cluster, f"exit {code}"))
        assert (state.phase, state.exit, state.good) == (Phase.DONE, code, False)
    program = 'if [ "$NODE_RANK" = 1 ]; then exit 4; fi; sleep 1; echo "$NODE_RANK finished"'
    state, log = ran(slurm, shell(cluster, program, nodes=3))
    assert state.exit == 4
    assert "0 finished" in log
    assert "2 finished" in log


def test_what_slurm_refuses_is_refused_in_its_words(cluster: Cluster, slurm: Slurm) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"queue": "nope"}, "invalid partition"),
        ({"gpus_per_node": 1, "gres": Gres(type="v100")}, "not available"),
        ({"constraints": "ib"}, "feature"),
    ]
    for more, says in refused:
        with fails("job-refused") as caught:
            slurm.submit(shell(cluster, "true", **more))
        assert caught.value.exit_code is ExitCode.REFUSED
        assert says in caught.value.why.lower()
    # More nodes than there are it queues, and says why the job will wait for ever.
    job = shell(cluster, "true", nodes=NODES + 1)
    state = until(slurm, job, slurm.submit(job), lambda state: bool(state.reason))
    assert state.phase is Phase.PENDING
    assert state.reason


def test_a_cancelled_job_says_so_and_its_programs_end(cluster: Cluster, slurm: Slurm) -> None:
    job = shell(cluster, "echo $$ > pid; sleep 300", output=str(cluster.shared / "cancelled"))
    number = slurm.submit(job)
    pid = Path(job.output, "pid")
    until(slurm, job, number, lambda _: pid.exists() and bool(pid.read_text()))
    slurm.cancel(number)
    state = ended(slurm, job, number)
    assert (state.phase, state.failure) == (Phase.FAILED, Failure.CANCELLED)
    slurm.cancel(number)
    slurm.cancel("99999")


@pytest.mark.usefixtures("hurried")
def test_a_job_that_is_cancelled_elsewhere_or_asks_for_too_much_time_is_noticed(cluster: Cluster, slurm: Slurm) -> None:
    job = shell(cluster, "true", nodes=NODES + 1)
    number = slurm.submit(job)
    states: list[JobState] = []
    threading.Timer(1.0, lambda: cluster.run("scancel", number)).start()
    state = wait_for(slurm, job, number, on_change=states.append)
    assert state.failure is Failure.CANCELLED
    assert states[0].phase is Phase.PENDING
    # Its partition gives less.
    job = shell(cluster, "true", time_limit=2 * 3600)
    number = slurm.submit(job)
    with fails("job-refused", ExitCode.REFUSED):
        wait_for(slurm, job, number)
    assert ended(slurm, job, number).failure is Failure.CANCELLED


def test_a_job_that_does_not_begin_in_time_is_cancelled_with_its_reason(cluster: Cluster, slurm: Slurm) -> None:
    cluster.run("scontrol", "update", f"nodename=gpu[1-{NODES}]", "state=drain", "reason=broken fan")
    job = shell(cluster, "true")
    number = slurm.submit(job)
    with fails("job-not-started", ExitCode.TRY_AGAIN) as caught:
        wait_for(slurm, job, number, start=3.0)
    assert "DRAINED" in caught.value.why.upper()
    assert ended(slurm, job, number).failure is Failure.CANCELLED


def test_a_requeued_job_begins_again_and_only_its_last_end_counts(cluster: Cluster, slurm: Slurm) -> None:
    code = 'echo "run {RUN_ID}."; [ -n "${SLURM_RESTART_COUNT:-}" ] || sleep 300'
    job = shell(cluster, code)
    number = slurm.submit(job)
    until(slurm, job, number, lambda _: "run " in slurm.logs(job, number))
    cluster.run("scontrol", "requeue", number)
    until(slurm, job, number, lambda state: state.restarts == 1 and state.phase is Phase.PENDING)
    # A requeued job waits for two minutes: long enough for the end of its first run to arrive. Here it takes a moment.
    time.sleep(2)
    cluster.run("scontrol", "update", f"jobid={number}", "starttime=now")
    state = ended(slurm, job, number)
    assert (state.good, state.restarts) == (True, 1), (state, slurm.logs(job, number))
    first, second = slurm.logs(job, number).split(f"{AGAIN}\n")
    assert [re.findall("run .+", part) for part in (first, second)] == [[f"run {number}."], [f"run {number}-1."]]


def test_a_node_that_fails_under_a_job_or_is_drained_after_it_is_named(cluster: Cluster, slurm: Slurm) -> None:
    state, _ = ran(slurm, shell(cluster, "true", nodes=2))
    assert slurm.bad_nodes(state.nodes) == {}
    cluster.run("scontrol", "update", f"nodename={state.nodes[1]}", "state=drain", "reason=health check: a|b")
    assert slurm.bad_nodes(state.nodes) == {state.nodes[1]: "drained: health check: a|b"}
    job = shell(cluster, "sleep 300")
    number = slurm.submit(job)
    (node,) = running(slurm, job, number).nodes
    cluster.run("scontrol", "update", f"jobid={number}", "requeue=0")
    cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=pulled the plug")
    state = ended(slurm, job, number)
    assert (state.failure, state.nodes) == (Failure.NODE_FAIL, (node,))
    assert slurm.bad_nodes(state.nodes) == {node: "down: pulled the plug"}


def test_a_preempted_job_says_so(cluster: Cluster, slurm: Slurm) -> None:
    low = shell(cluster, "sleep 300", queue="low", nodes=NODES, exclusive=True)
    first = slurm.submit(low)
    running(slurm, low, first)
    second, _ = ran(slurm, shell(cluster, "true", nodes=NODES, exclusive=True))
    assert ended(slurm, low, first).failure is Failure.PREEMPTED
    assert second.good


def _comes_back(cluster: Cluster, told: Path) -> None:
    cluster.start_controller()
    patience.until(cluster.states)
    told.touch()


@pytest.mark.usefixtures("hurried")
def test_a_restart_of_slurmctld_during_polling_costs_nothing_but_time(cluster: Cluster, slurm: Slurm) -> None:
    # It ends when slurmctld is back: what could not tell slurmctld its end tries again a minute later.
    job = shell(cluster, "echo begun; until [ -e back ]; do sleep 0.2; done; exit 5")
    number = slurm.submit(job)
    until(slurm, job, number, lambda _: "begun" in slurm.logs(job, number))
    cluster.stop("slurmctld")
    try:
        with pytest.raises(SchedulerUnavailableError):
            slurm.poll(job, number)
    finally:
        threading.Timer(2.0, _comes_back, (cluster, Path(job.output, "back"))).start()
    status = Path(job.output, f"status-{number}")
    state = wait_for(slurm, job, number, peek=status.exists)
    assert (state.phase, state.exit) == (Phase.DONE, 5), slurm.logs(job, number)


def test_what_slurm_has_forgotten_the_status_file_knows(cluster: Cluster, slurm: Slurm) -> None:
    job = shell(cluster, "exit 7", output=str(cluster.shared / "forgotten"))
    number = slurm.submit(job)
    assert ended(slurm, job, number).exit == 7
    status = Path(job.output, f"status-{number}")
    status.rename(status.with_name("status-88888"))
    assert slurm.poll(job, "88888").exit == 7
    assert slurm.poll(job, "88889").phase is Phase.LOST


@pytest.mark.usefixtures("hurried")
def test_a_node_that_has_to_be_powered_up_is_waited_for(cluster: Cluster, slurm: Slurm) -> None:
    cluster.power_down()
    cluster.boot_takes(4.0)
    partition = slurm.partition("cloud")
    assert (partition.nodes, partition.hidden, partition.gres()) == (1, 1, Gres(name="gpu"))
    job = shell(cluster, "echo up", queue="cloud", gpus_per_node=2, gres=partition.gres())
    number = slurm.submit(job)
    states: list[JobState] = []
    state = wait_for(slurm, job, number, start=550.0, on_change=states.append)
    assert state.good, (states, cluster.states())
    assert Phase.CONFIGURING in {each.phase for each in states}
    assert state.nodes == ("cloud1",)


def test_a_job_that_outlives_its_time_is_told_from_one_that_fails(cluster: Cluster, slurm: Slurm) -> None:
    job = shell(cluster, "sleep 600", time_limit=60)
    number = slurm.submit(job)
    running(slurm, job, number)
    # Slurm counts limits in minutes, and looks at them twice a minute.
    cluster.run("scontrol", "update", f"jobid={number}", "endtime=now+1")
    state = ended(slurm, job, number, 250)
    assert (state.phase, state.failure) == (Phase.FAILED, Failure.TIMEOUT)
