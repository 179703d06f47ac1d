"""Smoke program `machine`, second half, and that of several nodes: one rank of an all-reduce of checked sums.

Runs inside the environment, once per rank; needs torch 1.8 or newer and no numpy. The ranks of one node meet through a
file; those of several are started by torchrun, whose variables say where they meet. All values are small integers, so
the expected sum is exact in every dtype and any difference is an error.
"""

import contextlib
import datetime
import os
import re
import time
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist

from .common import Channel, torch_version

_WARM_UP = 2
_REPEATS = 10
_FEW = 5  # of the large ones
_SECONDS = 10.0  # that one size may take
_DENSE = 16
_CPU_SIZES = (1, 1000, 65537, 1 << 20)
_CUDA_SIZES = (1, 1000, 65537, 1 << 24)
_MIB = 1 << 20
# Bytes. Floors of published figures are about large ones: there the links are the limit.
_CPU_TIMED = (_MIB, 4 * _MIB, 16 * _MIB)
_CUDA_TIMED = (_MIB, 16 * _MIB, 64 * _MIB, 512 * _MIB, 2048 * _MIB, 8192 * _MIB)
_JOINT = 512 * _MIB  # between nodes, where there are GPUs
_BLOCK = 1 << 28  # elements that are compared at once


def _own(size: int, rank: int, world: int, dtype: Any, device: Any) -> Any:
    """This rank's data: (index mod 7) + (rank mod 8); summed over 16 ranks it stays below 2^8, exact in bfloat16.

    Of more ranks each gives the elements whose index is its own, modulo their number, and nothing to the others.
    """
    index = torch.arange(min(size, 7 * world), device=device)
    own = index % 7 + rank % 8 if world <= _DENSE else (index % 7 + 1) * (index % world == rank)
    return _repeated(own.to(dtype), size)


def _expected(size: int, world: int, dtype: Any, device: Any) -> Any:
    index = torch.arange(min(size, 7 * world), device=device)
    ranks = sum(rank % 8 for rank in range(world))
    return _repeated(((index % 7) * world + ranks if world <= _DENSE else index % 7 + 1).to(dtype), size)


def _repeated(period: Any, size: int) -> Any:
    """The pattern again and again: an index of 8 GiB of elements would need four times as much."""
    return period.repeat(-(-size // period.numel()))[:size]


def _check(channel: Channel, got: Any, expected: Any, what: str) -> None:
    count, first = 0, -1
    for start in range(0, got.numel(), _BLOCK):
        wrong = got[start : start + _BLOCK] != expected[start : start + _BLOCK]
        here = int(wrong.sum().item())
        if here and not count:
            first = start + int(torch.nonzero(wrong)[0].item())
        count += here
    if count:
        channel.failure(
            "%s: wrong sum in %d of %d elements, element %d is %s instead of %s"
            % (what, count, got.numel(), first, got[first].item(), expected[first].item())
        )


def _half(device: Any) -> Tuple[Any, str]:
    """The type of 16 bits that every rank sums: bfloat16 where all GPUs have it, and NCCL in torch from 1.11 on."""
    own = torch.cuda.get_device_capability(device)[0] >= 8 and torch_version(torch) >= [1, 11]
    every = torch.tensor([int(own)], device=device)
    dist.all_reduce(every, op=dist.ReduceOp.MIN)
    return (torch.bfloat16, "bfloat16") if int(every.item()) else (torch.float16, "float16")


def correctness(channel: Channel, rank: int, world: int, device: Any) -> None:
    """All-reduce several sizes and dtypes; every wrong sum is a failure."""
    dtypes = [(torch.float32, "float32"), (torch.int64, "int64")]
    dtypes.append(_half(device) if device.type == "cuda" else (torch.float64, "float64"))
    for dtype, name in dtypes:
        for size in _CUDA_SIZES if device.type == "cuda" else _CPU_SIZES:
            what = "all-reduce of %d × %s" % (size, name)
            channel.stage(what)
            data = _own(size, rank, world, dtype, device)
            dist.all_reduce(data)
            _check(channel, data, _expected(size, world, dtype, device), what)


def bandwidth(channel: Channel, rank: int, world: int, device: Any, size: int, repeats: int = _REPEATS) -> List[float]:
    """Seconds of each timed all-reduce of `size` bytes on this rank."""
    cuda = device.type == "cuda"
    dtype = _half(device)[0] if cuda else torch.float32
    elements = size // torch.zeros(1, dtype=dtype).element_size()
    own = _own(elements, rank, world, dtype, device)
    expected = _expected(elements, world, dtype, device)
    what = "all-reduce of %d MiB" % (size >> 20)
    channel.stage(what)
    seconds = []
    for repeat in range(_WARM_UP + repeats):
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
    return seconds


def _room(device: Any) -> int:
    """The most bytes to sum on a GPU: data, own, expected and what compares them are some four times as much."""
    if hasattr(torch.cuda, "mem_get_info"):
        return int(torch.cuda.mem_get_info(device)[0]) // 5
    return int(torch.cuda.get_device_properties(device).total_memory) // 8


def by_size(channel: Channel, rank: int, world: int, device: Any) -> None:
    """Tell (bytes, seconds of each all-reduce on this rank), ever larger, as far as all ranks have memory and time.

    And of each size that is left out: why there is no memory for it, or how many seconds it would take.
    """
    sizes, room = list(_CPU_TIMED), _CPU_TIMED[-1]
    if device.type == "cuda":
        least = torch.tensor([_room(device)], device=device)
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        sizes, room = list(_CUDA_TIMED), int(least.item())
    timed = []  # type: List[Tuple[int, List[float]]]
    left_out = []  # type: List[Tuple[int, str]]
    too_slow = []  # type: List[Tuple[int, float]]
    for size in sizes:
        if size > room:
            left_out.append((size, "a GPU has memory for %d MiB at most" % (room >> 20)))
            continue
        if timed:
            last, seconds = timed[-1]
            next_one = torch.tensor([max(seconds) * size / last * (_WARM_UP + _FEW)], device=device)
            dist.all_reduce(next_one, op=dist.ReduceOp.MAX)  # all ranks go on, or none
            if float(next_one.item()) > _SECONDS:
                too_slow.append((size, float(next_one.item())))
                continue
        repeats = _REPEATS if size <= 64 * _MIB else _FEW
        timed.append((size, bandwidth(channel, rank, world, device, size, repeats)))
    channel.facts({"timed": timed, "left_out": left_out, "too_slow": too_slow})


def _nvls(log: str) -> Optional[bool]:
    """Whether NCCL uses NVLink multicast, from its own log; None where that does not say it."""
    with contextlib.suppress(OSError), open(log, encoding="utf-8", errors="replace") as file:
        counts = re.findall(r"(\d+) nvls channels", file.read())
        return any(int(count) for count in counts) if counts else None
    return None


def together(channel: Channel, rank: int, world: int, device: Any) -> None:
    """As nodes do it: tell the seconds of each all-reduce of one size, those of its slowest rank."""
    size = _JOINT if device.type == "cuda" else _CPU_TIMED[-1]
    seconds = bandwidth(channel, rank, world, device, size)
    channel.stage("comparing times")
    times = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    channel.facts({"seconds": [float(value) for value in times.tolist()], "bytes": size})


def _work(channel: Channel, args: Dict[str, Any], place: Dict[str, int], joint: bool) -> None:
    rank, world, backend, log = place["rank"], place["world"], str(args["backend"]), "%s.nccl" % args["events"]
    device = torch.device("cuda", place["local"]) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
        if rank == 0 and not joint and "NCCL_DEBUG" not in os.environ:
            os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT", NCCL_DEBUG_FILE=log)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
        if not joint:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this node
    channel.stage("rendezvous of %d ranks (%s)" % (world, backend))
    dist.init_process_group(
        backend,
        init_method="env://" if joint else "file://" + args["store"],
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=float(args["deadline"])),
    )
    channel.facts({"rank": dist.get_rank(), "world": dist.get_world_size(), "backend": dist.get_backend()})
    if backend == "nccl":
        channel.facts({"gpu": torch.cuda.get_device_name(device)})
    if joint:
        channel.stage("counting the ranks")
        present = torch.zeros(world, dtype=torch.int64, device=device)
        present[rank] = 1
        dist.all_reduce(present)
        channel.facts({"present": [index for index, count in enumerate(present.tolist()) if count == 1]})
    correctness(channel, rank, world, device)
    (together if joint else by_size)(channel, rank, world, device)
    channel.facts({"nvls": _nvls(log)})
    channel.stage("leaving the group")
    dist.barrier()
    dist.destroy_process_group()


def main(args: Dict[str, Any], channel: Channel) -> None:
    """One rank: meet, check, time. Its place is in the request or, where nodes do it together, torchrun's to tell."""
    joint = "store" not in args
    if joint:
        words = {"rank": "RANK", "local": "LOCAL_RANK", "world": "WORLD_SIZE"}
        place = {name: int(os.environ[variable]) for name, variable in words.items()}
    else:
        place = {"rank": int(args["rank"]), "local": int(args["rank"]), "world": int(args["world"])}
    try:
        _work(channel, args, place, joint)
    except Exception as error:
        if joint:  # torchrun keeps the last words of its ranks to itself
            channel.failure("%s: %s" % (type(error).__name__, (str(error).splitlines() or [""])[0][:400]))
        raise
