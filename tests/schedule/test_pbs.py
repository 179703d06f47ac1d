"""The PBS adapter against a small fake of its programs; a real PBS is not available where these tests run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from envbuild.errors import ExitCode
from envbuild.model.target import Target
from envbuild.schedule.cluster import Runner
from envbuild.schedule.job import Failure, Gres, Job, JobStep, Phase, SchedulerUnavailableError, Share
from envbuild.schedule.pbs import Attributes, Offer, Pbs, Queues, bad_nodes, offers, parse_job, parse_nodes
from envbuild.schedule.wait import wait_for
from tests.schedule.fake_pbs import FakePbs
from tests.schedule.jobs import job
from tests.support.fails import fails
from tests.support.patience import alive, text_of, until


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePbs:
    made = FakePbs(tmp_path, sys.executable)
    monkeypatch.setenv("PATH", f"{made.bin}{os.pathsep}{os.environ['PATH']}")
    return made


@pytest.fixture
def pbs(fake: FakePbs) -> Pbs:
    return Pbs(Runner())


def shell(fake: FakePbs, code: str, *words: object, **more: object) -> Job:
    step = JobStep(argv=("bash", "-c", code, "bash", *map(str, words)))
    return job(steps=(step,), output=str(fake.top.parent / "jobs"), **more)


def test_a_job_runs_on_every_node_and_its_end_is_read(fake: FakePbs, pbs: Pbs) -> None:
    asked = shell(fake, 'echo "$NODE_RANK of $NNODES at $MASTER_ADDR"; exit "$NODE_RANK"', nodes=3)
    number = pbs.submit(asked)
    state = wait_for(pbs, asked, number)
    assert (state.phase, state.exit, state.nodes) == (Phase.DONE, 2, ("x3001", "x3002", "x3003"))
    at = "x3001.cluster.example.org"
    assert sorted(pbs.logs(asked, number).splitlines()) == [f"{rank} of 3 at {at}" for rank in range(3)]


def test_a_job_deleted_in_the_queue_was_cancelled(fake: FakePbs, pbs: Pbs) -> None:
    fake.say("hold")
    asked = shell(fake, "true")
    number = pbs.submit(asked)
    waits = pbs.poll(asked, number)
    assert (waits.phase, waits.reason) == (Phase.PENDING, "Not Running: Not enough free nodes available")
    pbs.cancel(number)
    state = pbs.poll(asked, number)
    assert (state.phase, state.failure) == (Phase.FAILED, Failure.CANCELLED)
    assert "deleted" in state.reason
    pbs.cancel(number)
    pbs.cancel("77777")


def test_a_job_that_pbs_has_forgotten_is_known_by_its_status_file_and_a_server_that_is_away_says_nothing(
    fake: FakePbs, pbs: Pbs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten = shell(fake, "exit 7")
    number = pbs.submit(forgotten)
    fake.forget(number)
    assert pbs.poll(forgotten, number).exit == 7
    Path(forgotten.output, f"status-{number}").unlink()
    assert pbs.poll(forgotten, number).phase is Phase.LOST
    asked = shell(fake, "true")
    number = pbs.submit(asked)
    fake.say("down")
    with pytest.raises(SchedulerUnavailableError, match="cannot connect"):
        pbs.poll(asked, number)
    with fails("scheduler-unreachable"):
        pbs.submit(asked)
    fake.stop("down")
    assert pbs.poll(asked, number).good
    with fails("job-refused") as caught:
        pbs.submit(shell(fake, "true", queue="nope"))
    assert caught.value.why == "qsub: Unknown queue"
    (tmp_path / "mkdir").symlink_to("/bin/mkdir")
    monkeypatch.setenv("PATH", str(tmp_path))
    with fails("scheduler-missing"):
        pbs.submit(asked)


def target(**scheduler: object) -> Target:
    given = {"name": "hpc", "prefix": "/p", "hosts": {"pbs": "nodefile"}, "connection": {"kind": "job"}}
    return Target.from_plain({**given, "scheduler": {"kind": "pbs", **scheduler}})


def test_a_job_that_runs_can_be_deleted_and_its_programs_end(fake: FakePbs, pbs: Pbs) -> None:
    fake.say("background")
    asked = shell(fake, 'echo $$ > "$1"; sleep 600', fake.top.parent / "jobs" / "pid", nodes=2)
    number = pbs.submit(asked)
    pid = Path(asked.output, "pid")
    until(lambda: text_of(pid))
    assert pbs.poll(asked, number).phase is Phase.RUNNING
    pbs.cancel(number)
    until(lambda: pbs.poll(asked, number).ended)
    state = pbs.poll(asked, number)
    assert (state.failure, state.nodes) == (Failure.CANCELLED, ("x3001", "x3002"))
    until(lambda: not alive(pid.read_text().strip()))


def test_the_queue_is_the_first_that_takes_the_job(fake: FakePbs, pbs: Pbs) -> None:
    limits = [
        {"name": "debug", "max_nodes": 2, "time_limit": "1h"},
        {"name": "prod", "min_nodes": 10, "max_nodes": 24, "time_limit": "3h"},
    ]
    pool = pbs.pool(target(queues=limits))
    assert pool.label == "the queues debug, prod"
    assert (pool.queue(2, 3600), pool.queue(10, 3601), pool.queue(24, 10800)) == ("debug", "prod", "prod")
    for nodes, seconds in ((3, 60), (2, 3601), (25, 60)):
        with fails("partition-unknown", ExitCode.USAGE) as caught:
            pool.queue(nodes, seconds)
        assert caught.value.why == "debug: 1 to 2 nodes, 1h at most; prod: 10 to 24 nodes, 3h at most"
    assert pbs.pool(target(queue="prod", queues=limits)).queue(3, 99999) == "prod"
    assert pbs.pool(target()).queue(3, 60) is None
    with fails("job-nodes-unknown", ExitCode.USAGE):
        pbs.pool(target()).in_service()


def test_a_queue_that_is_not_there_or_closed_is_told_before_anything_is_submitted(fake: FakePbs, pbs: Pbs) -> None:
    with fails("partition-unknown", ExitCode.USAGE) as caught:
        pbs.pool(target(queue="large"))
    assert "lists: debug, prod" in caught.value.why
    fake.say("closed")
    with fails("partition-out-of-service", ExitCode.TRY_AGAIN):
        pbs.pool(target(queue="debug"))


def test_gpus_are_asked_for_by_number_on_nodes_that_offer_them(fake: FakePbs, pbs: Pbs) -> None:
    pool = pbs.pool(target(constraints="system=polaris", queue="debug"))
    assert (pool.gpus_per_node, pool.gres()) == (4, Gres(name="ngpus"))
    other = pbs.pool(target(constraints="system=other"))
    assert (other.gres(), other.share(0, exclusive=True)) == (None, Share())


def test_only_nodes_of_the_queues_that_a_job_may_go_to_say_what_it_can_ask_for() -> None:
    def node(**more: object) -> Attributes:
        return {f"resources_available.{key}": str(value) for key, value in more.items()}

    nodes = {
        "n1": node(ncpus=64, ngpus=4, mem="256gb", Qlist="a,b"),
        "n2": node(ncpus=96, ngpus=8, mem="1tb", Qlist="b"),
        "n3": {**node(ncpus=32, ngpus=2), "queue": "c"},
    }
    chunk = "default_chunk."
    queues = {
        "a": {f"{chunk}Qlist": "a", f"{chunk}ncpus": "1", f"{chunk}mem": "4gb", f"{chunk}burst": "1"},
        "b": {f"{chunk}Qlist": "B"}, "c": {}, "x": {f"{chunk}Qlist": "x"},
    }  # fmt: skip
    one, other, own = Offer(64, 4, 256), Offer(96, 8, 1024), Offer(32, 2, 0)

    def found(*names: str) -> tuple[Offer, ...]:
        return offers(nodes, "ncpus=16", {name: queues[name] for name in names})

    assert (found("a"), found("b"), found("c"), found("x")) == ((one,), (one, other), (one, other, own), ())
    assert found() == found("a", "b", "c") == (one, other, own)
    assert Queues((), found("b")).share(4, exclusive=True) == Share(64, 256), "what the smaller of them has"
    assert Queues((), found("b")).share(4, exclusive=False) == Share(48, 256)
    assert Queues((), found("c")).share(2, exclusive=True) == Share(32, None)
    assert Queues((), found("a")).share(0, exclusive=True) == Share(64, 256)
    assert (
        Queues((), found("a")).share(0, exclusive=False) == Queues((), found("a")).share(8, exclusive=True) == Share()
    )


def test_a_node_that_was_taken_out_after_the_job_is_named_with_its_comment(fake: FakePbs, pbs: Pbs) -> None:
    assert pbs.bad_nodes(()) == pbs.bad_nodes(("x3001", "x3002")) == {}
    fake.say("offline-x3002")
    assert pbs.bad_nodes(("x3001", "x3002")) == {"x3002": "offline: health check"}


PBSNODES = """\
x3001c0s13b0n0.hsn.example.org
     Mom = x3001c0s13b0n0.hsn.example.org
     state = job-exclusive
     jobs = 12.polaris-pbs-01/0, 12.polaris-pbs-01/1,
\t12.polaris-pbs-01/2
     resources_available.ngpus = 4
     resources_available.system = polaris

x3002
     state = state-unknown,down
     comment = node down: communication closed
     resources_available.ngpus = 8
     resources_available.system = sirius

"""


def test_nodes_are_read_with_lines_that_pbs_folded() -> None:
    nodes = parse_nodes(PBSNODES)
    assert nodes["x3001c0s13b0n0"]["jobs"].endswith("12.polaris-pbs-01/2")
    assert [offer.gpus for offer in offers(nodes, "", {})] == [4, 8]
    assert [offer.gpus for offer in offers(nodes, "system=polaris", {})] == [4]
    assert bad_nodes(nodes) == {"x3002": "state-unknown,down: node down: communication closed"}
    vnodes = "\n".join(
        f"{name}\n     resources_available.host = n1\n     resources_available.ncpus = {cpus}\n"
        f"     resources_available.ngpus = {gpus}\n     resources_available.mem = {gpus * 128}gb\n"
        for name, cpus, gpus in (("n1", 0, 0), ("n1[0]", 32, 2), ("n1[1]", 32, 2))
    )
    assert offers(parse_nodes(vnodes), "", {}) == (Offer(64, 4, 512),), "a host of several vnodes is one node"
    for amount in ("9" * 4400, "\u0663"):  # what is no number counts as none (D75)
        shown = f"n1\n     resources_available.ncpus = 32\n     resources_available.ngpus = {amount}\n"
        assert offers(parse_nodes(shown), "", {}) == (Offer(32, 0, 0),)


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
    ("state", "status", "comment", "phase", "failure", "code"),
    [
        ("Q", "", "", "pending", None, None),
        ("H", "", "", "pending", None, None),
        ("R", "", "", "running", None, None),
        ("E", "", "", "completing", None, None),
        ("F", "0", "finished", "done", None, 0),
        ("F", "3", "finished", "done", None, 3),
        ("F", "271", "Job deleted at request of me", "failed", Failure.CANCELLED, 143),
        ("F", "271", "job killed: walltime 3600 exceeded limit", "failed", Failure.TIMEOUT, 143),
        ("F", "-29", "Job exceeded walltime", "failed", Failure.TIMEOUT, -29),
        ("F", "265", "Job preempted by high priority", "failed", Failure.PREEMPTED, 137),
        ("F", "-11", "job lost", "failed", Failure.NODE_FAIL, -11),
    ],
)
def test_each_state_and_end_has_its_name(
    state: str, status: str, comment: str, phase: str, failure: Failure | None, code: int | None
) -> None:
    text = TEXT.format(state=state, status=status, comment=comment, runs=2)
    found = parse_job(text, "12")
    assert found is not None and parse_job(text, "13") is parse_job("", "12") is None
    assert (found.phase, found.failure, found.exit, found.restarts) == (Phase(phase), failure, code, 1)
    assert found.nodes == ("x3001c0s13b0n0", "x3001c0s13b1n0")
