"""`provision`, `bench`, its report and `trace` through a real Slurm: real torch, two gloo ranks on two nodes.

The training is ours, in the shape of Megatron-DeepSpeed's; the recipe is the shipped one: `srun -l` and torchrun.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.node.torch_env import IMPORTS
from tests.slurm.job_world import JobWorld
from tests.support.patience import PATIENCE, with_deadline
from tests.support.torch_stack import torch_stack
from tests.support.training import REFERENCE, SCRIPT

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(1500)]


def bench(world: JobWorld, *more: str) -> tuple[int, dict[str, Any], Path]:
    """Exit code, the check and the folder of the run."""
    done = world.job("./tiny.yaml", "--gpus-per-node", "1", *more, verb="bench", timeout=600)
    return done.rc, done.node["checks"][-1], world.runs / done.json["run"]


def test_two_gloo_ranks_are_provisioned_measured_and_reported_through_jobs(world: JobWorld) -> None:
    source = {**world.repository("megatron", {"pretrain_gpt.py": SCRIPT}), "install": "path"}
    smoke = [{"name": "sound", "deadline": 300}]
    torch_stack(world, sources=[source], smoke=smoke, reference=REFERENCE)
    world.job(timeout=900, rc=0)
    world.python(IMPORTS)  # which leaves byte code: else each of 16 processes compiles torch, and none keeps it

    code, check, run = bench(world, "--trials", "2")
    assert (code, check["status"]) == (0, "passed"), check
    (measured,) = check["metrics"]
    assert (measured["n"], check["details"]["warm_up"]) == (14, 6), "two runs of ten iterations, three left out of each"
    assert 0 < measured["least"] <= measured["median"] <= measured["greatest"]
    told = check["comparison"]
    assert (told["claim"], told["claim_gpu"], told["verdict"]) == (250.0, "A100-SXM4-80GB", "not-comparable")
    assert "no GPU here" in told["why"], "what is known of the nodes that it ran on"
    assert told["percent"] == round(100 * measured["median"] / 250, 1)
    logs = sorted(run.glob("bench-tiny-*.log"))
    assert len(logs) == 2 == len(world.submitted())
    losses = [float(found) for found in re.findall(r"^1:  iteration .*lm loss: (\S+)", logs[0].read_text(), re.M)]
    assert len(losses) == 10 and losses[-1] < losses[0] / 10, "the last rank tells the losses, after srun's prefix"
    told = world.good("trace", str(logs[0]), "--pipeline", "1", "--chunks", "1", "--output", "pictures", "--json").json
    assert (told["ranks"], told["passes"], told["broken"]) == (2, 40, {}), (
        "forward and backward, ten times, on two ranks"
    )
    assert 0 <= told["bubble"] < 1 and len(told["iterations"]) == 10
    for page in ("report.html", "report.md"):
        text = (run / page).read_text()
        assert all(word in text for word in ("250", "not comparable", "A100-SXM4-80GB")), page
    shown = world.good("report", "show", run.name).out
    assert "not comparable" in shown

    # A rank that fails ends the step with it: srun would wait for the other one, which sleeps.
    code, check, _ = bench(world, "--run-timeout", f"{PATIENCE}s", "--set", "data_name=lost")
    assert code == 1 and "timed out" not in check["says"], check
    assert check["says"].endswith(": 1: rank 1 is lost"), check

    # A rank that hangs: the other one waits for it, and the run ends at its deadline.
    def hung(deadline: float) -> tuple[int, dict[str, Any], Path]:
        return bench(world, "--run-timeout", f"{deadline}s", "--set", "data_name=hang")

    def reached(found: tuple[int, dict[str, Any], Path]) -> bool:
        return "0: rank 0 sleeps" in found[1]["details"]["output"]

    deadline, (code, check, _) = with_deadline(hung, 20, reached)
    told = f"run 1: timed out after {deadline:g} s; until then no figure after its warm-up"
    assert (code, check["says"]) == (1, told), check
    output = check["details"]["output"]
    # The other rank has waited for it, or has seen it end first.
    assert "0: rank 0 sleeps" in output and re.search(r"^1: ", output, re.M), output
    assert not (world.prefix / "jobs").exists() or not list((world.prefix / "jobs").rglob("requests"))
