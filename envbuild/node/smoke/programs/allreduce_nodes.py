"""Smoke program of several nodes: one rank of an all-reduce that torchrun has started on each of them.

Runs inside the environment; needs torch 1.9 or newer. Where the ranks meet is in the variables that torchrun sets. All
ranks of a node read one request, `ENVBUILD_SMOKE_REQUEST`, and write events and stacks into files of their own.
"""

import datetime
import json
import os
import time
from typing import Any, Dict

import torch
import torch.distributed as dist

from .allreduce import bandwidth, correctness
from .common import Channel, arm


def _request() -> Dict[str, Any]:
    """The node's request, with this rank's own file for events and what is left of the deadline."""
    with open(os.environ["ENVBUILD_SMOKE_REQUEST"], encoding="utf-8") as file:
        args = dict(json.load(file))
    args["events"] = "%s-%s" % (args["events"], os.environ["LOCAL_RANK"])
    args["deadline"] = max(0.1, float(args["until"]) - time.monotonic())
    return args


def _work(channel: Channel, args: Dict[str, Any]) -> None:
    backend, local = str(args["backend"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    channel.stage("the start of the process group (%s)" % backend)
    limit = datetime.timedelta(seconds=float(args["deadline"]))
    dist.init_process_group(backend, init_method="env://", timeout=limit)
    rank, world = dist.get_rank(), dist.get_world_size()
    channel.facts({"rank": rank, "world": world, "backend": dist.get_backend()})
    channel.stage("counting the ranks")
    present = torch.zeros(world, dtype=torch.int64, device=device)
    present[rank] = 1
    dist.all_reduce(present)
    channel.facts({"present": [index for index, count in enumerate(present.tolist()) if count == 1]})
    correctness(channel, rank, world, device)
    seconds, size = bandwidth(channel, rank, world, device)
    channel.stage("comparing times")
    times = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    channel.facts({"seconds": [float(value) for value in times.tolist()], "bytes": size})
    channel.stage("leaving the group")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """One rank: meet, check, time."""
    args = _request()
    with open(args["events"] + ".stacks", "w", encoding="utf-8") as stacks:
        _, channel = arm(args, stacks)
        try:
            _work(channel, args)
        except Exception as error:
            channel.failure("%s: %s" % (type(error).__name__, (str(error).splitlines() or [""])[0][:400]))
            raise
        channel.done()


if __name__ == "__main__":
    main()
