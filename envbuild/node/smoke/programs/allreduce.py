"""Smoke program `machine`, second half: one rank of an all-reduce whose sums are checked element by element.

Runs inside the environment, once per rank; needs torch 1.8 or newer and no numpy. The ranks meet through a file. All
values are small integers, so the expected sum is exact in every dtype and any difference is an error.
"""

import datetime
import os
import time
from typing import Any, List, Tuple

import torch
import torch.distributed as dist

from .common import Channel, begin

_WARM_UP = 2
_REPEATS = 10
_DENSE = 16
_CPU_SIZES = (1, 1000, 65537, 1 << 20)
_CUDA_SIZES = (1, 1000, 65537, 1 << 24)
_CPU_TIMED = 1 << 22  # elements of float32: 16 MiB
_CUDA_TIMED = 1 << 28  # elements of bfloat16: 512 MiB


def _own(size: int, rank: int, world: int, dtype: Any, device: Any) -> Any:
    """This rank's data: (index mod 7) + (rank mod 8); summed over 16 ranks it stays below 2^8, exact in bfloat16.

    Of more ranks each gives the elements whose index is its own, modulo their number, and nothing to the others.
    """
    index = torch.arange(size, device=device)
    own = index % 7 + rank % 8 if world <= _DENSE else (index % 7 + 1) * (index % world == rank)
    return own.to(dtype)


def _expected(size: int, world: int, dtype: Any, device: Any) -> Any:
    index = torch.arange(size, device=device)
    ranks = sum(rank % 8 for rank in range(world))
    return ((index % 7) * world + ranks if world <= _DENSE else index % 7 + 1).to(dtype)


def _check(channel: Channel, got: Any, expected: Any, what: str) -> None:
    wrong = got != expected
    count = int(wrong.sum().item())
    if count:
        first = int(torch.nonzero(wrong)[0].item())
        channel.failure(
            "%s: wrong sum in %d of %d elements, element %d is %s instead of %s"
            % (what, count, got.numel(), first, got[first].item(), expected[first].item())
        )


def correctness(channel: Channel, rank: int, world: int, device: Any) -> None:
    """All-reduce several sizes and dtypes; every wrong sum is a failure."""
    dtypes = [(torch.float32, "float32"), (torch.int64, "int64")]
    dtypes.append((torch.bfloat16, "bfloat16") if device.type == "cuda" else (torch.float64, "float64"))
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 8:
        dtypes[-1] = (torch.float16, "float16")
    for dtype, name in dtypes:
        for size in _CUDA_SIZES if device.type == "cuda" else _CPU_SIZES:
            what = "all-reduce of %d × %s" % (size, name)
            channel.stage(what)
            data = _own(size, rank, world, dtype, device)
            dist.all_reduce(data)
            _check(channel, data, _expected(size, world, dtype, device), what)


def bandwidth(channel: Channel, rank: int, world: int, device: Any) -> Tuple[List[float], int]:
    """Seconds of each timed all-reduce on this rank, and its bytes; the slowest rank of each is what counts."""
    cuda = device.type == "cuda"
    size, dtype = (_CUDA_TIMED, torch.bfloat16) if cuda else (_CPU_TIMED, torch.float32)
    if cuda and torch.cuda.get_device_capability(device)[0] < 8:
        dtype = torch.float16
    own = _own(size, rank, world, dtype, device)
    expected = _expected(size, world, dtype, device)
    what = "all-reduce of %d MiB" % (size * own.element_size() >> 20)
    channel.stage(what)
    seconds = []
    for repeat in range(_WARM_UP + _REPEATS):
        data = own.clone()
        dist.barrier()
        if cuda:
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        dist.all_reduce(data)
        if cuda:
            torch.cuda.synchronize(device)
        if repeat >= _WARM_UP:
            seconds.append(time.perf_counter() - started)
        _check(channel, data, expected, what)
    return seconds, size * own.element_size()


def main() -> None:
    """One rank: meet, check, time."""
    request = begin()
    args, channel = request.args, request.channel
    rank, world, backend = int(args["rank"]), int(args["world"]), str(args["backend"])
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this node
    channel.stage("rendezvous of %d ranks (%s)" % (world, backend))
    dist.init_process_group(
        backend,
        init_method="file://" + args["store"],
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=float(args["deadline"])),
    )
    channel.facts({"rank": dist.get_rank(), "world": dist.get_world_size(), "backend": dist.get_backend()})
    correctness(channel, rank, world, device)
    seconds, size = bandwidth(channel, rank, world, device)
    channel.facts({"seconds": seconds, "bytes": size})
    channel.stage("leaving the group")
    dist.barrier()
    dist.destroy_process_group()
    channel.done()


if __name__ == "__main__":
    main()
