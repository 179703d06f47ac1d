"""The order of trials: all cases that may fit, the most promising first, corrected by what has been measured.

It is the document's manual search (its four heuristics) as a program: the largest microbatch that fits, then the
largest DP, TMP within a node, and DP and PP adjusted further. Memory decides what fits, time what is promising.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from envbuild.strategy.memory import Case, Shape, held, layer_activations, logits, parameters, reserved

_GEMM = 0.7  # of the dense peak
_COPY = 0.88  # of the memory bandwidth; measured for a device copy
_LINK = 0.38  # of NVLink's sum of both directions, as bus bandwidth of an all-reduce; measured with 4 and 8 H200
_TRAFFIC = 3  # how often kernels pass over a layer's activations
_PASS = 2e-4  # seconds of launching one pass over a layer
_LATENCY = 2e-5  # seconds of an all-reduce over nothing
_OPTIMIZER = 60  # bytes a parameter: unscale, norm, clip, Adam, copy back


@dataclass(frozen=True, slots=True)
class Machine:
    """`tflops`: dense fp16 peak; memory in bytes; memory bandwidth and NVLink in GB/s of a GPU, network of a node."""

    gpu: str
    gpus_per_node: int
    tflops: float
    memory: float
    bandwidth: float
    nvlink: float
    network: float


def flops(shape: Shape, global_batch: int) -> float:
    """Operations of one step with recomputation, as the artifact counts them (benchmark/util.py)."""
    tokens, hidden = global_batch * shape.sequence, shape.hidden
    layers = 96 * tokens * shape.layers * hidden**2 * (1 + shape.sequence / (6 * hidden))
    return layers + 6 * tokens * hidden * shape.vocabulary


def tflops(shape: Shape, case: Case, machine: Machine) -> float:
    """What a case is estimated to reach, in TFLOP/s per GPU."""
    return flops(shape, case.global_batch) / seconds(shape, case, machine) / case.gpus / 1e12


def seconds(shape: Shape, case: Case, machine: Machine) -> float:
    """One step. 1F1B: the slowest stage works without pause but for PP - 1 microbatches at both ends."""
    bandwidth = machine.bandwidth * 1e9 * _COPY
    layers = shape.layers / case.pp * _layer(shape, case, machine)
    head = _head(shape, case, machine)
    stages = [layers] * (case.pp - 1) + [layers + head]
    sent = 2 * shape.sequence * case.micro_batch * shape.hidden
    inside = case.gpus <= machine.gpus_per_node
    link = machine.nvlink * 1e9 * _LINK / 4 if inside else machine.network * 1e9
    handed = 2 * sent / link if case.pp > 1 else 0.0
    pipeline = (case.microbatches - 1) * (max(stages) + handed) + sum(stages) + 2 * (case.pp - 1) * handed
    most = max(parameters(shape, case, stage) for stage in range(case.pp))
    # Megatron's data-parallel ranks of a stage are neighbours; its stages are farthest apart.
    reduced = _all_reduce(2 * most, case.dp, machine, spread=case.dp * case.tmp)
    return pipeline + reduced + _OPTIMIZER * most / bandwidth


def _layer(shape: Shape, case: Case, machine: Machine) -> float:
    """One layer forward, once more for recomputation, and backward, for one microbatch."""
    tokens, hidden = shape.sequence * case.micro_batch, shape.hidden
    passes = 4 if case.recompute else 3
    operations = (24 * tokens * hidden**2 + 4 * tokens * shape.sequence * hidden) / case.tmp
    one = operations / (machine.tflops * 1e12 * _GEMM)
    one += _TRAFFIC * layer_activations(shape, case) / (machine.bandwidth * 1e9 * _COPY) + _PASS
    # Two all-reduces in every pass over a layer; a backward pass is two of ours.
    reduced = _all_reduce(2 * tokens * hidden, case.tmp, machine, spread=case.tmp)
    return passes * one + 2 * (passes - 1) * reduced


def _head(shape: Shape, case: Case, machine: Machine) -> float:
    """The logits and their loss, forward and backward."""
    operations = 6 * shape.sequence * case.micro_batch * shape.hidden * shape.vocabulary / case.tmp
    traffic = _TRAFFIC * logits(shape, case) / (machine.bandwidth * 1e9 * _COPY)
    return operations / (machine.tflops * 1e12 * _GEMM) + traffic


def _all_reduce(size: float, ranks: int, machine: Machine, *, spread: int) -> float:
    """A ring over `ranks` GPUs that lie within `spread` neighbours."""
    if ranks == 1:
        return 0.0
    link = machine.nvlink * _LINK if spread <= machine.gpus_per_node else machine.network
    return size * 2 * (ranks - 1) / ranks / (link * 1e9) + _LATENCY


# The part of a GPU's memory that torch's allocator may take. The rest is for CUDA's context and NCCL (2.4 GiB of an
# H100), and because it takes up to a tenth more than is estimated.
USABLE = 0.92
# What tensors hold is known within a tenth. A case that fits by that and not by what the allocator reserves for it, or
# exceeds it by no more, is still tried, after those that fit: whether it runs out of memory is for a trial to say.
_TOLERANCE = 1.1
# Megatron's fused softmax counts the elements of all attention maps of a microbatch in 32 bits (`first_batch * stride`
# in scaled_upper_triang_masked_softmax.h).
_ELEMENTS = 2**31
# A trial that promises less than this share of the best one is not worth its time.
_WORTH = 0.97

Answer = Literal["measured", "out-of-memory", "out-of-time", "failed"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A case with its estimates: bytes of its fullest GPU that tensors hold and the allocator reserves; TFLOP/s."""

    case: Case
    held: float
    reserved: float
    tflops: float

    def fits(self, machine: Machine) -> bool:
        """Whether it fits by the estimate alone."""
        return self.reserved <= USABLE * machine.memory


@dataclass(frozen=True, slots=True)
class Trial:
    """What a run of a case said; `tflops` where it was measured."""

    ranked: Ranked
    answer: Answer
    tflops: float | None = None


def cases(shape: Shape, gpus: int, global_batch: int, gpus_per_node: int) -> Iterator[Case]:
    """All cases: degrees that divide GPUs, heads, layers and vocabulary, TMP within a node, whole microbatches."""
    for tmp in _divisors(gpus):
        for pp in _divisors(gpus // tmp):
            dp = gpus // tmp // pp
            whole = (shape.heads % tmp, shape.vocabulary % tmp, shape.layers % pp, global_batch % dp) == (0, 0, 0, 0)
            if whole and tmp <= gpus_per_node:
                found = (Case(global_batch, dp, tmp, pp, count) for count in _divisors(global_batch // dp))
                map_ = shape.heads // tmp * shape.sequence**2
                yield from (case for case in found if case.micro_batch * map_ <= _ELEMENTS)


def rank(shape: Shape, machine: Machine, gpus: int, global_batch: int) -> list[Ranked]:
    """The cases that may fit, those that fit by the estimate first, each group by its estimated speed."""
    found = [
        Ranked(case, held(shape, case), reserved(shape, case), tflops(shape, case, machine))
        for case in cases(shape, gpus, global_batch, machine.gpus_per_node)
    ]
    tried = [each for each in found if each.held <= _TOLERANCE * USABLE * machine.memory]
    return sorted(tried, key=lambda each: (not each.fits(machine), -each.tflops, each.case))


@dataclass
class Search:
    """Which case is tried next. `first`: cases that are tried before all others, the document's own say."""

    machine: Machine
    ranked: list[Ranked]
    first: list[Case] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)

    @property
    def best(self) -> Trial | None:
        """The fastest that was measured."""
        measured = [trial for trial in self.trials if trial.tflops]
        return max(measured, key=lambda trial: trial.tflops or 0.0, default=None)

    def next(self) -> Ranked | None:
        """The most promising case that was not tried; None where none promises more than what was measured."""
        tried = {trial.ranked.case for trial in self.trials}
        for case in self.first:
            known = next((each for each in self.ranked if each.case == case), None)
            if known and case not in tried:
                return known
        room = self._room()
        least = _WORTH * (self.best.tflops or 0.0) if self.best else 0.0
        open_ = [each for each in self.ranked if each.case not in tried and each.reserved < room]
        worth = [each for each in open_ if self._promise(each) >= least]
        return max(worth, key=lambda each: (each.fits(self.machine), self._promise(each)), default=None)

    def _room(self) -> float:
        """What needs as much as a case that ran out of memory is not tried."""
        return min(
            (trial.ranked.reserved for trial in self.trials if trial.answer == "out-of-memory"), default=float("inf")
        )

    def _promise(self, each: Ranked) -> float:
        """The estimate, corrected by what the estimates of like cases were worth: of the same degrees, else of all."""
        measured = [trial for trial in self.trials if trial.tflops]
        like = [trial for trial in measured if _degrees(trial.ranked.case) == _degrees(each.case)] or measured
        worth = [(trial.tflops or 0.0) / trial.ranked.tflops for trial in like]
        return each.tflops * (sum(worth) / len(worth) if worth else 1.0)


def _degrees(case: Case) -> tuple[int, int, int]:
    return case.dp, case.tmp, case.pp


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
