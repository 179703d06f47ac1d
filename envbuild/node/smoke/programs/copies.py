"""Smoke program `machine`, the copies: within a GPU, from and to the host, between each two GPUs; on the CPU in memory.

Runs inside the environment; needs torch 1.8 or newer and no numpy. What has arrived is compared with what was sent.
"""

import statistics
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from .common import NO_GPU, Channel

_CPU_BYTES = 64 << 20
_CUDA_BYTES = 2 << 30  # within a GPU, of which it has ten times as much
_LINK_BYTES = 256 << 20  # over a link
_REPEATS = 10
_PAIR_REPEATS = 3


def _words(size: int, device: Any) -> Any:
    """Words of which none is 0: what does not arrive differs. The product overflows, which is wanted."""
    return torch.arange(1, (size >> 3) + 1, device=device, dtype=torch.int64).mul_(6364136223846793005)


def seconds(copies: List[Tuple[Any, Any, Any]], repeats: int) -> List[List[float]]:
    """Seconds of each repeat of each copy (device, where to, what), all of them at once; one more warms up."""
    samples = []
    for _ in range(repeats + 1):
        spans = [_begin(*copy) for copy in copies]
        samples.append([span() for span in spans])
    return [list(took) for took in zip(*samples[1:])]  # noqa: B905 - strict= is of Python 3.10


def _begin(device: Any, into: Any, of: Any) -> Callable[[], float]:
    """Start a copy; what is returned waits for its end and says how long it took on the device."""
    if device.type != "cuda":
        started = time.perf_counter()
        into.copy_(of)
        took = time.perf_counter() - started
        return lambda: took
    with torch.cuda.device(device):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        into.copy_(of, non_blocking=True)
        last.record()

    def wait() -> float:
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    return wait


def _rates(size: int, took: List[float]) -> List[float]:
    return [size / seconds / 1e9 for seconds in took]


def _slowest(channel: Channel, name: str, rates: List[List[float]]) -> None:
    """The metric is that of the slowest device or pair, whose samples among those of all would not move a median."""
    channel.metric(name, "GB/s", min(rates, key=_middle))


def _same(channel: Channel, what: str, sent: Any, got: Any) -> None:
    wrong = int((sent != got).sum().item())
    if wrong:
        channel.failure("%s: %d of %d words are not what was sent" % (what, wrong, got.numel()))


def within(channel: Channel, devices: List[Any], size: int, name: str) -> None:
    """Copies inside the memory of each device, read and write counted."""
    channel.stage("copies within %d device(s)" % len(devices))
    sent = [_words(size, device) for device in devices]
    got = [torch.empty_like(values) for values in sent]
    samples = seconds(list(zip(devices, got, sent)), _REPEATS)  # noqa: B905
    for number, device in enumerate(devices):
        _same(channel, "copy within %s" % device, sent[number], got[number])
    rates = [_rates(2 * size, took) for took in samples]
    channel.facts({"device_gbps": [_middle(values) for values in rates], "device_bytes": size})
    _slowest(channel, name, rates)


def host(channel: Channel, devices: List[Any], size: int) -> None:
    """Copies from and to pinned memory of the host, one GPU after the other: several share the host's memory."""
    measured = {"host_to_device_gbps": [], "device_to_host_gbps": []}  # type: dict[str, List[List[float]]]
    sent = _words(size, torch.device("cpu")).pin_memory()
    for device in devices:
        channel.stage("copies between the host and %s" % device)
        there, back = torch.empty_like(sent, device=device), torch.empty_like(sent).pin_memory()
        for name, into, of in (("host_to_device_gbps", there, sent), ("device_to_host_gbps", back, there)):
            measured[name].append(_rates(size, seconds([(device, into, of)], _REPEATS)[0]))
        _same(channel, "copy to %s and back" % device, sent, back)
    channel.facts({"link_bytes": size})
    for name, rates in measured.items():
        channel.facts({name: [_middle(values) for values in rates]})
        _slowest(channel, "copy_" + name, rates)


def peers(channel: Channel, devices: List[Any], size: int) -> None:
    """Copies from each device to each other one, one pair at a time; `peer_gbps[from][to]`, None to itself."""
    sent = [_words(size, device) for device in devices]
    got = [torch.empty_like(values) for values in sent]
    matrix = [[None for _ in devices] for _ in devices]  # type: List[List[Optional[float]]]
    pairs = []  # type: List[List[float]]
    for source, device in enumerate(devices):
        for target in range(len(devices)):
            if source == target:
                continue
            channel.stage("copies from %s to %s" % (device, devices[target]))
            got[target].zero_()
            if device.type == "cuda":
                torch.cuda.synchronize(devices[target])
            pairs.append(_rates(size, seconds([(device, got[target], sent[source])], _PAIR_REPEATS)[0]))
            # What every device sends is the same: nothing has to be copied to be compared.
            _same(channel, "copy from %s to %s" % (device, devices[target]), sent[target], got[target])
            matrix[source][target] = _middle(pairs[-1])
    channel.facts({"peer_gbps": matrix, "peer_access": [[_access(a, b) for b in devices] for a in devices]})
    _slowest(channel, "copy_peer_gbps", pairs)


def _access(one: Any, other: Any) -> Optional[bool]:
    """Whether a GPU reads the other's memory directly; None to itself, and where no GPUs are."""
    if one == other or one.type != "cuda":
        return None
    return bool(torch.cuda.can_device_access_peer(one, other))


def _middle(values: List[float]) -> float:
    return float("%.5g" % statistics.median(values))


def main(args: Dict[str, Any], channel: Channel) -> None:
    """Every visible GPU where the request says `cuda`, else the processor's memory."""
    if not args["cuda"]:
        within(channel, [torch.device("cpu")], _CPU_BYTES, "copy_cpu_gbps")
        return
    channel.stage("looking for GPUs")
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if not devices:
        channel.failure(NO_GPU)
    else:
        least = min(torch.cuda.get_device_properties(device).total_memory for device in devices)
        within(channel, devices, min(_CUDA_BYTES, least // 10 & ~7), "copy_device_gbps")
        host(channel, devices, _LINK_BYTES)
    if len(devices) > 1:
        peers(channel, devices, _LINK_BYTES)
