"""`envbuild launch --submit` through a real Slurm; the program of the run is a stand-in that says how it came."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.e2e.world import interrupted
from tests.slurm.job_world import JobWorld, through_login
from tests.support.programs import executable

pytestmark = pytest.mark.slow

# Rank 0 listens on the port that it was told, as torchrun's first node does; the other one came through its gate.
TORCHRUN = """#!/usr/bin/env python3
import json, os, socket, sys, time
words = sys.argv[1:]
rank, port = (int(words[words.index(key) + 1]) for key in ("--node_rank", "--master_port"))
with open("{top}/rank-%d" % rank, "w") as file:
    json.dump([words, os.environ["SLURMD_NODENAME"], os.environ["MEGATRONAPP_JOB"], time.time()], file)
print("rank", rank, "speaks", flush=True)
if rank == 0:
    time.sleep({delay})
    with socket.create_server(("", port)) as server:
        listening = time.time()
        server.accept()[0].close()
    with open("{top}/listening", "w") as file:
        file.write(str(listening))
sys.exit({code} if rank == {failing} else 0)
"""


def stand_in(world: JobWorld, *, delay: float = 1.0, code: int = 0, failing: int = 0) -> Path:
    """An environment of megatronapp on the shared folder."""
    top = world.cluster.shared / world.top.name
    built = top / "the env"
    for folder in ("bin", ".envbuild", "src/megatronapp/Megatron"):
        (built / folder).mkdir(parents=True)
    (built / ".envbuild" / "activate.sh").write_text("")
    executable(built / "bin" / "python3", TORCHRUN.format(top=top, delay=delay, code=code, failing=failing))
    return top


SUBMIT = ("launch", "megatronapp", "--target", "./cluster.yaml", "--submit", "--time-limit", "5m")


def given(top: Path, nodes: int = 2) -> tuple[str, ...]:
    return (*SUBMIT, "--nodes", str(nodes), "--gpus-per-node", "4", "--environment", str(top / "the env"))


def test_what_cannot_be_is_refused_and_every_node_runs_its_command_once_the_first_one_listens(world: JobWorld) -> None:
    top = stand_in(world)
    world.refused(7, "launch-does-not-fit", *given(top, 400))
    world.refused(7, "launch-does-not-fit", *SUBMIT, "--gpus-per-node", "16")
    none = world.refused(1, "environment-unknown", *SUBMIT, "--gpus-per-node", "4")
    assert "`envbuild provision megatronapp --target ./cluster.yaml`" in none.err
    assert world.submitted() == []
    shutil.rmtree(world.runs, ignore_errors=True)

    printed = world.good(*given(top), "--print-script")
    assert "#SBATCH --nodes=2" in printed.out and "pretrain_gpt.py" in printed.out
    assert not world.runs.exists(), "nothing is submitted for a file that is only printed"
    done = world.good(*given(top), "--json")
    cost = "2 nodes of gpu for at most 0:05:00, 1.3 GPU-hours (8 GPUs a node, 4 requested), whole nodes"
    assert f"submitting launch-megatronapp: {cost}" in done.err
    assert "rank 0 speaks" in done.err and "rank 1 speaks" in done.err
    first, second = (json.loads((top / f"rank-{rank}").read_text()) for rank in (0, 1))
    number = world.number("launch-megatronapp")
    for words, _, job, _ in (first, second):
        assert words[words.index("--master_addr") + 1] == first[1]
        assert words[words.index("--master_port") + 1] == str(10000 + int(number) % 20000)
        assert job == number
    assert first[1] != second[1]
    assert second[3] >= float((top / "listening").read_text()), "the second node waits for the first one's port"
    assert not (world.prefix / "jobs").exists()
    (log,) = (world.runs / done.json["run"]).glob("launch-megatronapp-*.log")
    assert "rank 1 speaks" in log.read_text()


def test_the_exit_code_of_the_run_is_the_answer_and_ends_all_nodes(world: JobWorld) -> None:
    top = stand_in(world, delay=600, code=41, failing=1)
    # The second node does not wait here, and fails while the first one still works.
    program = top / "the env" / "bin" / "python3"
    holds = "if rank == 0:\n    held = socket.create_server(('', port))\n"
    program.write_text(program.read_text().replace("if rank == 0:\n", holds, 1))
    world.run(*given(top), rc=41)
    listed = world.run("run", "list")
    assert listed.out.splitlines()[1].split()[1] == "failed", "the run is not told as one that went well"


def test_not_waiting_prints_the_number_of_the_job_and_an_interrupt_ends_it_when_asked(world: JobWorld) -> None:
    top = stand_in(world)
    number = world.good(*given(top), "--no-wait").out.strip()
    assert re.fullmatch("[0-9]+", number)
    assert world.wait_for_state(number, "COMPLETED", "FAILED") == "COMPLETED"

    shutil.rmtree(world.runs, ignore_errors=True)
    (top / "the env" / "bin" / "python3").write_text("#!/bin/sh\nexec sleep 600\n")
    process = world.start(*given(top, 1), "--cancel-job")
    number = world.wait_for_job("launch-megatronapp")
    world.wait_for_state(number, "RUNNING")
    interrupted(process)
    assert world.wait_for_state(number, "CANCELLED", "COMPLETED", "FAILED") == "CANCELLED"


def test_a_run_is_submitted_and_its_log_brought_through_a_login_host(world: JobWorld, tmp_path: Path) -> None:
    top = stand_in(world)
    with through_login(world, tmp_path):
        done = world.good(*given(top), "--json")
        assert "rank 0 speaks" in done.err and "rank 1 speaks" in done.err
        assert done.json["exit"] == 0
