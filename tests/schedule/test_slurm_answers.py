"""Slurm's texts, recorded from 22.05.8 and written after its manual pages, become states."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild.schedule.cluster import Runner
from envbuild.schedule.job import Failure, Gres, JobState, Phase, Share
from envbuild.schedule.slurm import Slurm, parse_bad_nodes, parse_gres, parse_job, parse_partition, parse_sacct
from tests.schedule.jobs import job
from tests.support.programs import executable

# Recorded (22.05.8), shortened after the fields that are read.
RECORDED = (
    "JobId=3 JobName=j2.sh UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901757 Nice=0 Account=(null) "
    "QOS=(null) JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 "
    "ExitCode={code} RunTime=00:00:01 TimeLimit=00:01:00 TimeMin=N/A SubmitTime=2026-11-21T11:55:43 "
    "Partition=gpu ReqNodeList=(null) ExcNodeList=(null) NodeList={nodes} BatchHost=gpu1 NumNodes=2 NumCPUs=2 "
    "Command=/tmp/JobState=COMPLETED ExitCode=9:9 WorkDir=/tmp Comment=JobState=COMPLETED Power= \n"
)


def told(state: str, reason: str = "None", code: str = "0:0", nodes: str = "(null)", restarts: int = 0) -> JobState:
    found = parse_job(RECORDED.format(state=state, reason=reason, code=code, nodes=nodes, restarts=restarts))
    assert found is not None
    return found


LIVES = {
    "PENDING": Phase.PENDING, "CONFIGURING": Phase.CONFIGURING, "RUNNING": Phase.RUNNING, "SUSPENDED": Phase.RUNNING,
    "COMPLETING": Phase.COMPLETING, "REQUEUE_HOLD": Phase.PENDING, "A_STATE_OF_TOMORROW": Phase.RUNNING,
}  # fmt: skip
FAILURES = {
    "NODE_FAIL": Failure.NODE_FAIL, "BOOT_FAIL": Failure.BOOT_FAIL, "TIMEOUT": Failure.TIMEOUT,
    "OUT_OF_MEMORY": Failure.OUT_OF_MEMORY, "PREEMPTED": Failure.PREEMPTED, "CANCELLED": Failure.CANCELLED,
    "DEADLINE": Failure.DEADLINE,
}  # fmt: skip


@pytest.mark.parametrize("word", [*LIVES, *FAILURES])
def test_each_state_has_its_phase_and_each_failure_its_name(word: str) -> None:
    nodes, exit_code = ("gpu1", "gpu2"), None if word in LIVES else 143
    reason = "ReqNodeNotAvail,_UnavailableNodes:gpu[1-4]"
    state = told(word, code="0:0" if word in LIVES else "0:15", nodes="gpu[1-2]", reason=reason, restarts=2)
    assert (state.phase, state.failure) == (LIVES.get(word, Phase.FAILED), FAILURES.get(word))
    assert (state.exit, state.ended, state.word, state.nodes) == (exit_code, word in FAILURES, word, nodes)
    assert (state.reason, state.restarts) == ("ReqNodeNotAvail, UnavailableNodes:gpu[1-4]", 2)


def test_a_script_that_fails_is_done_with_its_exit_code() -> None:
    assert told("COMPLETED").good
    failed = told("FAILED", reason="NonZeroExitCode", code="4:0")
    assert (failed.phase, failed.exit, failed.failure) == (Phase.DONE, 4, None)
    assert told("FAILED", reason="RaisedSignal:53(Real-time_signal_19)", code="0:53").failure is Failure.LAUNCH


def test_no_job_is_no_state() -> None:
    assert parse_job("") is None
    assert parse_job("Unable to contact slurm controller") is None
    assert Slurm.unknown_job.search("slurm_load_jobs error: Invalid job id specified\n")
    assert not Slurm.unknown_job.search("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")


@pytest.mark.parametrize(
    ("text", "phase", "failure", "code"),
    [
        ("COMPLETED|0:0|gpu1|None\n", Phase.DONE, None, 0),
        ("CANCELLED by 1000|0:15|gpu[1-2]|None\n", Phase.FAILED, Failure.CANCELLED, 143),
        ("FAILED|3:0|gpu1\n", Phase.DONE, None, 3),
        # A requeued job has a line for each of its runs.
        ("PREEMPTED|0:15|gpu1|None\nOUT_OF_MEMORY|0:125|gpu1|None\n", Phase.FAILED, Failure.OUT_OF_MEMORY, 253),
    ],
)
def test_accounting_knows_how_a_job_ended(text: str, phase: Phase, failure: Failure | None, code: int) -> None:
    state = parse_sacct(text)
    assert state is not None
    assert (state.phase, state.failure, state.exit) == (phase, failure, code)
    assert parse_sacct("") is parse_sacct("\n||\n") is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:a100:8", [(("gpu", "a100"), 8)]),
        ("gpu:8", [(("gpu", None), 8)]),
        ("gpu:a100:8(S:0-1)", [(("gpu", "a100"), 8)]),
        ("gpu:tesla:2(S:0,1),mps:tesla:100(S:0,1)", [(("gpu", "tesla"), 2), (("mps", "tesla"), 100)]),
        ("gpu:a100_3g.20gb:4,gpu:a100_1g.5gb:1", [(("gpu", "a100_3g.20gb"), 4), (("gpu", "a100_1g.5gb"), 1)]),
        ("gpu:a100:no_consume:8", [(("gpu", "a100"), 8)]),
        ("(null)", []),
        ("", []),
        ("nonsense", []),
    ],
)
def test_gpus_are_read_as_sites_write_them(text: str, found: list[object]) -> None:
    assert list(parse_gres(text)) == found


SHOWN = "PartitionName=p AllowGroups=ALL MaxTime=1-00:00:00 MinNodes=0 Nodes=n[1-8] TotalCPUs=64 TotalNodes=8 TRES=x\n"
CONFIG = "FirstJobId              = 1\nGresTypes               = gpu,nic\nHealthCheckInterval = 0 sec\n"


def test_a_partition_of_one_gpu_type_says_the_type_and_a_mixed_one_does_not() -> None:
    one = parse_partition("p", SHOWN, "p|6|idle|gpu:a100:8(S:0-1)\np|2|alloc|gpu:a100:8(S:0-1)\n", CONFIG)
    assert one is not None
    assert (one.nodes, one.hidden, one.gpus_per_node, one.gres()) == (8, 0, 8, Gres(type="a100"))
    mixed = parse_partition("p", SHOWN, "p|4|idle|gpu:a100:8\np|4|idle|gpu:v100:4\n", CONFIG)
    assert mixed is not None
    assert mixed.gres() == Gres()
    assert parse_partition("p", "", "", CONFIG) is None


@pytest.mark.parametrize(
    ("lines", "shown", "config", "gpus", "cpus"),
    [
        ("p|6|idle|gpu:a100:8(S:0-1)|64\np|2|mixed|gpu:a100:8(S:0-1)|64\n", "", "", 2, 16),
        ("p|6|idle|gpu:a100:8|64\np|2|idle|gpu:v100:4|20\n", "", "", 2, 10),
        ("p|6|idle|gpu:a100:8|64\np|2|idle|gpu:v100:4|20\n", "", "", 8, 64),
        ("p|8|idle|gpu:a100:4,gpu:v100:4|64\n", "", "", 4, 32),
        ("p|8|idle|gpu:8|64\n", " TotalCPUs=512 TotalNodes=8 TRES=cpu=480,mem=1G", "", 8, 60),
        ("p|8|idle|gpu:8|64\n", " MaxCPUsPerNode=40 TotalCPUs=512 TRES=cpu=512,mem=1G", "", 8, 40),
        ("p|8|idle|gpu:8|64\n", " MaxCPUsPerNode=UNLIMITED JobDefaults=DefCpuPerGPU=4", "", 8, None),
        ("p|8|idle|gpu:8|64\n", "", "JobDefaults = DefCpuPerGPU=4,DefMemPerGPU=1\n", 8, None),
        ("p|8|idle|gpu:8|4\n", "", "", 1, None),
        ("p|8|idle|gpu:8\n", "", "", 8, None),
        ("p|8|idle|(null)|64\n", "", "", 0, None),
        ("p|8|idle|gpu:8|64\n", "", "", 0, None),
    ],
)
def test_gpus_of_a_node_that_others_use_too_come_with_their_part_of_its_processors(
    lines: str, shown: str, config: str, gpus: int, cpus: int | None
) -> None:
    found = parse_partition("p", f"PartitionName=p{shown} TotalNodes=8\n", lines, CONFIG + config)
    assert found is not None
    assert found.share(gpus, exclusive=False) == Share(cpus)
    assert found.share(gpus, exclusive=True) == Share()


def test_nodes_that_are_powered_down_and_hidden_count_and_may_have_gpus() -> None:
    hidden = parse_partition("p", SHOWN, "p|0|n/a|(null)\n", CONFIG)
    assert hidden is not None
    assert (hidden.nodes, hidden.hidden, hidden.gres()) == (8, 8, Gres())
    none = parse_partition("p", SHOWN, "p|0|n/a|(null)\n", CONFIG.replace("gpu,nic", "(null)"))
    assert none is not None
    assert none.gres() is None


def test_nodes_that_take_no_jobs_are_named_with_the_reason() -> None:
    text = "n1|idle|none\nn2|drained|fan | broken\nn3|down*|none\nn4|mixed|none\nn5|draining@|epilog\nn6|idle~|none\n"
    assert parse_bad_nodes(text) == {"n2": "drained: fan | broken", "n3": "down*", "n5": "draining@: epilog"}


@pytest.mark.parametrize(
    ("steps", "failure"), [("FAILED\nOUT_OF_MEMORY", Failure.OUT_OF_MEMORY), ("FAILED\nFAILED", None), ("", None)]
)
def test_d40_accounting_knows_of_a_step_that_was_killed_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: str, failure: Failure | None
) -> None:
    said = {"scontrol": "JobId=7 JobState=FAILED Reason=NonZeroExitCode ExitCode=137:0 NodeList=n1", "sacct": steps}
    for name, text in said.items():
        executable(tmp_path / name, f"#!/bin/sh\ncat <<'E'\n{text}\nE\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    state = Slurm(Runner()).poll(job(), "7")
    assert (state.failure, state.exit, state.ended, state.good) == (failure, 137, True, False)
