"""The order of trials: all cases that may fit, the most promising first, corrected by what has been measured.

It is the document's manual search (its four heuristics) as a program: the largest microbatch that fits, then the
largest DP, TMP within a node, and DP and PP adjusted further. Memory decides what fits, time what is promising.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from envbuild.strategy.memory import Case, Shape, held, reserved
from envbuild.strategy.timing import Machine, tflops

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
