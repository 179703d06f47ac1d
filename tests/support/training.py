"""A training of our own in the shape of Megatron-DeepSpeed's: its flags, its configuration file and its lines.

Its ranks also tell their passes, in MegatronAPP's words, and go on from what they find in the folder of their output.
"""

from __future__ import annotations

from typing import Any

# The last rank tells the iterations, as Megatron's does. Data named `hang` make rank 0 sleep in its third iteration,
# those named `lost` also end the others there.
SCRIPT = """
import argparse, json, os, time
import torch, torch.distributed as dist
parser = argparse.ArgumentParser()
for name in ("train-iters", "global-batch-size", "seq-length", "hidden-size"):
    parser.add_argument("--" + name, type=int, required=True)
parser.add_argument("--data-path", required=True)
parser.add_argument("--deepspeed_config", required=True)
args = parser.parse_args()
assert json.load(open(args.deepspeed_config))["train_batch_size"] == args.global_batch_size
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
vocabulary = 32
model = torch.nn.Sequential(
    torch.nn.Embedding(vocabulary, args.hidden_size), torch.nn.GELU(), torch.nn.Linear(args.hidden_size, vocabulary))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
numbers = torch.Generator().manual_seed(rank)
def trace(what):
    print(f"{rank}, 0, {what}, {time.time()}%", flush=True)
checkpoint = os.path.join(os.path.dirname(args.deepspeed_config), f"checkpoint-{rank}")
reached = int(open(checkpoint).read()) if os.path.exists(checkpoint) else 0
for step in range(reached + 1, args.train_iters + 1):
    began = time.monotonic()
    first = torch.randint(vocabulary, (args.global_batch_size // world, 1), generator=numbers)
    tokens = (first + torch.arange(args.seq_length + 1)) % vocabulary
    if rank == 0 and args.data_path.endswith(("hang", "lost")) and step == 3:
        print("rank 0 sleeps", flush=True)
        time.sleep(600)
    if args.data_path.endswith("lost") and step == 3:
        print(f"rank {rank} is lost", flush=True)
        os._exit(3)
    trace("forward start")
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    trace("forward finished")
    optimizer.zero_grad()
    trace("backward start")
    loss.backward()
    trace("backward finished")
    optimizer.step()
    told = loss.detach() / world
    dist.all_reduce(told)
    if rank == world - 1:
        took, samples = 1000 * (time.monotonic() - began), step * args.global_batch_size
        print(f" iteration {step:8}/{args.train_iters:8} | consumed samples: {samples:12} | elapsed time per iteration "
              f"(ms): {took:.1f} | lm loss: {told.item():.6E} | loss scale: 1.0 |", flush=True)
with open(checkpoint, "w") as file:
    file.write(str(args.train_iters))
dist.destroy_process_group()
# The model keeps the group, and with it gloo's threads: one that still holds a tensor when the interpreter ends aborts
# it, or both wait for each other (github.com/pytorch/pytorch, issue 56297 and pull request 179291).
os._exit(0)
"""
REFERENCE: dict[str, Any] = {
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
            "torchrun": ["--nproc_per_node", "{gpus_per_node}", "--nnodes", "{nodes}", "--master_addr",
                         "{address}", "--master_port", "{port}"],
        },
        "arguments": ["--hidden-size", "{hidden}", "--seq-length", "{sequence_length}", "--train-iters",
                      "{iterations}", "--global-batch-size", "{global_batch}", "--data-path", "{data}/{data_name}",
                      "--deepspeed_config={config}"],
        "configs": {"deepspeed": {"train_batch_size": "{global_batch}"}},
    },
}  # fmt: skip
