"""`provision`, `bench` and its report through a real Slurm: two gloo ranks, in the shape of Megatron-DeepSpeed's run.

Torch is the stand-in of `light_torch`, whose ranks meet and sum over sockets; the recipe is the shipped one, with its
`srun -l`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.slurm.cluster import Cluster
from tests.slurm.job_world import JobWorld, by_node
from tests.support.patience import with_deadline
from tests.support.torch_stack import torch_stack

pytestmark = [pytest.mark.slow, pytest.mark.torch]

# One rank a node; what it is told as torchrun is, with the variables that a script of torchrun's reads.
TORCHRUN = b"""
import os, runpy, sys
def main():
    words = dict(word.split("=", 1) for word in sys.argv if word.startswith("--rdzv") and "=" in word)
    address, port = words["--rdzv_endpoint"].rsplit(":", 1)
    nodes = sys.argv[sys.argv.index("--nnodes") + 1]
    os.environ.update(RANK=os.environ["SLURM_NODEID"], WORLD_SIZE=nodes, MASTER_ADDR=address, MASTER_PORT=port)
    sys.argv[:] = sys.argv[next(at for at, word in enumerate(sys.argv) if word.endswith(".py")):]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
# A regression whose gradients are summed over the ranks; the last rank tells the iterations, as Megatron's does.
SCRIPT = """
import argparse, datetime, json, time
import numpy as np
import torch.distributed as dist
parser = argparse.ArgumentParser()
for name in ("train-iters", "global-batch-size"):
    parser.add_argument("--" + name, type=int, required=True)
parser.add_argument("--data-path", required=True)
parser.add_argument("--deepspeed_config", required=True)
args = parser.parse_args()
assert json.load(open(args.deepspeed_config))["train_batch_size"] == args.global_batch_size
dist.init_process_group("gloo", "env://", datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
numbers = np.random.default_rng(rank)
weights, wanted = np.zeros(8), np.arange(8.0)
for step in range(1, args.train_iters + 1):
    began = time.monotonic()
    samples = numbers.normal(size=(args.global_batch_size // world, 8))
    error = samples @ (weights - wanted)
    told = np.append(samples.T @ error, (error**2).sum()) / args.global_batch_size
    if rank == 0 and args.data_path.endswith("hang") and step == 3:
        print("rank 0 sleeps", flush=True)
        time.sleep(600)
    dist.all_reduce(told)
    weights -= 0.2 * told[:-1]
    if rank == world - 1:
        took = 1000 * (time.monotonic() - began)
        print(f" iteration {step:8}/{args.train_iters:8} | consumed samples: {step * args.global_batch_size:12} | "
              f"elapsed time per iteration (ms): {took:.1f} | lm loss: {told[-1]:.6E} | loss scale: 1.0 |", flush=True)
"""
REFERENCE = {
    "models": [{"name": "tiny", "layers": 2, "hidden": 64, "heads": 4, "sequence": 64}],
    "cases": [{"gpus": 2, "hosts": 2, "model": "tiny", "global_batch": 64, "dp": 2, "tmp": 1, "pp": 1,
               "microbatches": 1, "micro_batch_size": 32, "source": "the test"}],
    "figures": [{"name": "iteration", "value": 250.0, "unit": "ms", "where": "a line of the document",
                 "source": "the document", "gpu": "A100-SXM4-80GB", "gpus": 2}],
    "bench": {"log": "megatron", "metric": "elapsed time per iteration (ms)", "unit": "ms", "lower_is_better": True,
              "warmup": 3, "least": 2, "figure": "iteration"},
    "launch": {
        "recipe": "slurm-deepspeed", "source": "megatron",
        "defaults": {"model": "tiny", "zero_stage": "1", "train_iters": "10", "data_name": "text"},
        "before": {
            "srun": ["srun", "-l", "--nodes", "{nodes}", "--ntasks-per-node", "1", "--gpus-per-node",
                     "{gpus_per_node}"],
            "deepspeed": [],
            "torchrun": ["--nproc_per_node", "{gpus_per_node}", "--nnodes", "{nodes}",
                         "--rdzv_endpoint={address}:{port}"],
        },
        "arguments": ["--train-iters", "{iterations}", "--global-batch-size", "{global_batch}", "--data-path",
                      "{data}/{data_name}", "--deepspeed_config={config}"],
        "configs": {"deepspeed": {"train_batch_size": "{global_batch}"}},
    },
}  # fmt: skip


@pytest.fixture
def world(cluster: Cluster, tmp_path: Path) -> JobWorld:
    return JobWorld(tmp_path, cluster)


def bench(world: JobWorld, *more: str) -> tuple[int, dict[str, Any], Path]:
    """Exit code, the check and the folder of the run."""
    done = world.job("./tiny.yaml", "--gpus-per-node", "1", *more, verb="bench", timeout=600)
    (node,) = by_node(done).values()
    return done.rc, node["checks"][-1], world.runs / done.json["run"]


def test_two_gloo_ranks_are_provisioned_measured_and_reported_through_jobs(world: JobWorld) -> None:
    world.wheel("torchrun", files={"torchrun.py": TORCHRUN}, scripts={"torchrun": "torchrun:main"})
    source = {**world.repository("megatron", {"pretrain_gpt.py": SCRIPT}), "install": "path"}
    smoke = [{"name": "sound", "deadline": 300}]
    torch_stack(world, light=True, sources=[source], smoke=smoke, packages=["numpy==1.26.4", "torchrun==1.0"])
    path = world.work / "tiny.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"reference": REFERENCE}))
    assert world.job(timeout=600).rc == 0

    code, check, run = bench(world, "--trials", "2")
    assert (code, check["status"]) == (0, "passed"), check
    (measured,) = check["metrics"]
    assert (measured["n"], check["details"]["warm_up"]) == (14, 6), "two runs of ten iterations, three left out of each"
    assert 0 < measured["least"] <= measured["median"] <= measured["greatest"]
    told = check["comparison"]
    assert (told["claim"], told["claim_gpu"], told["verdict"]) == (250.0, "A100-SXM4-80GB", "not-comparable")
    assert "no GPU here" in told["why"], "what is known of the nodes that it ran on"
    assert told["percent"] == round(100 * measured["median"] / 250, 1)
    logs = sorted(run.glob("launch-tiny-*.log"))
    assert len(logs) == 2 == len(world.submitted())
    losses = [float(found) for found in re.findall(r"^1:  iteration .*lm loss: (\S+)", logs[0].read_text(), re.M)]
    assert len(losses) == 10 and losses[-1] < losses[0] / 10, "the last rank tells the losses, after srun's prefix"
    for page in ("report.html", "report.md"):
        text = (run / page).read_text()
        assert all(word in text for word in ("250", "not comparable", "A100-SXM4-80GB")), page
    shown = world.good("report", "show", run.name).out
    assert "not comparable" in shown

    # A rank that hangs: the other one waits for it, and the run ends at its deadline.
    def hung(deadline: float) -> tuple[int, dict[str, Any], Path]:
        return bench(world, "--deadline", str(deadline), "--set", "data_name=hang")

    def reached(found: tuple[int, dict[str, Any], Path]) -> bool:
        return "0: rank 0 sleeps" in found[1]["details"]["output"]

    deadline, (code, check, _) = with_deadline(hung, 8, reached)
    assert (code, check["says"]) == (1, f"run 1: timed out after {deadline:g} s"), check
    output = check["details"]["output"]
    # The other rank has waited for it, or has seen it end first.
    assert "0: rank 0 sleeps" in output and re.search(r"^1: ", output, re.M), output
    assert not (world.prefix / "jobs").exists() or not list((world.prefix / "jobs").rglob("requests"))
