"""What is searched, a model of a stack's table on so many GPUs, and the order of trials.

All cases that may fit, the most promising first, corrected by what has been measured. It is the document's manual
search (its four heuristics) as a program: the largest microbatch that fits, then the largest DP, TMP within a node, and
DP and PP adjusted further. Memory decides what fits, time what is promising.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from envbuild.errors import EnvbuildError
from envbuild.launch.recipes import RECIPES, launch_data
from envbuild.launch.request import model_row, require
from envbuild.model.launch import BenchmarkCase, Launch, Reference
from envbuild.model.stack import Stack
from envbuild.resolve.compat import Gpu
from envbuild.strategy.memory import Case, Shape, held, layer_activations, logits, parameters, reserved

# What a recipe has to take, so that a case can be told to it.
_NAMES = ("model", "global_batch", "dp", "tmp", "pp", "microbatches")
FIRST = 3
GIB = 2**30
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
    """The result of a run of a case; `tflops` if it was measured."""

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
                shapes = (Case(global_batch, dp, tmp, pp, count) for count in _divisors(global_batch // dp))
                map_ = shape.heads // tmp * shape.sequence**2
                yield from (case for case in shapes if case.micro_batch * map_ <= _ELEMENTS)


def rank(shape: Shape, machine: Machine, gpus: int, global_batch: int) -> list[Ranked]:
    """The cases that may fit, those that fit by the estimate first, each group by its estimated speed."""
    ranked = [
        Ranked(case, held(shape, case), reserved(shape, case), tflops(shape, case, machine))
        for case in cases(shape, gpus, global_batch, machine.gpus_per_node)
    ]
    tried = [item for item in ranked if item.held <= _TOLERANCE * USABLE * machine.memory]
    return sorted(tried, key=lambda item: (not item.fits(machine), -item.tflops, item.case))


@dataclass
class Search:
    """Decides which case is tried next. `first`: cases to try before all others, the document's own among them."""

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
            known = next((ranked for ranked in self.ranked if ranked.case == case), None)
            if known and case not in tried:
                return known
        # What needs as much as a case that ran out of memory is not tried.
        out = (trial.ranked.reserved for trial in self.trials if trial.answer == "out-of-memory")
        room = min(out, default=float("inf"))
        least = _WORTH * (self.best.tflops or 0.0) if self.best else 0.0
        open_ = [ranked for ranked in self.ranked if ranked.case not in tried and ranked.reserved < room]
        worth = [ranked for ranked in open_ if self._promise(ranked) >= least]
        return max(worth, key=lambda ranked: (ranked.fits(self.machine), self._promise(ranked)), default=None)

    def _promise(self, ranked: Ranked) -> float:
        """The estimate, corrected by what the estimates of like cases were worth: of the same degrees, else of all."""
        measured = [trial for trial in self.trials if trial.tflops]
        like = [trial for trial in measured if _degrees(trial.ranked.case) == _degrees(ranked.case)] or measured
        worth = [(trial.tflops or 0.0) / trial.ranked.tflops for trial in like]
        return ranked.tflops * (sum(worth) / len(worth) if worth else 1.0)


def _degrees(case: Case) -> tuple[int, int, int]:
    return case.dp, case.tmp, case.pp


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


@dataclass(frozen=True, slots=True)
class Problem:
    """`best`: the document's own best case of this model on so many GPUs, where it has one.

    `own`: the case of the document that trials are compared with: the best one, else the most promising that it lists.
    """

    reference: Reference
    model: str
    shape: Shape
    gpus: int
    global_batch: int
    machine: Machine
    best: Case | None

    @property
    def own(self) -> Case | None:
        """See above; None where the document has none that fits."""
        rows = sorted((placed.place, placed.case) for placed in listed(self) if placed.place is not None)
        return self.best or (rows[0][1] if rows else None)

    def ranked(self) -> list[Ranked]:
        """All cases that may fit. Raises EnvbuildError `launch-does-not-fit` (exit 7) where there is none."""
        ranked = rank(self.shape, self.machine, self.gpus, self.global_batch)
        what = f"{self.model} fits into the memory of {self.gpus} {self.machine.gpu} in no way"
        require(bool(ranked), what, why="by the estimate of memory", hint="more GPUs, or a smaller model")
        return ranked

    def settings(self, case: Case) -> dict[str, str]:
        """What `launch --set` takes for a case."""
        values = (self.model, case.global_batch, case.dp, case.tmp, case.pp, case.microbatches)
        return dict(zip(_NAMES, map(str, values), strict=True))


@dataclass(frozen=True, slots=True)
class Placed:
    """A published case and its place in our order, from 1 (None: it does not fit by the estimate).

    `estimated` and, where the document has a figure, `tflops`: TFLOP/s per GPU.
    """

    model: str
    case: Case
    place: int | None
    estimated: float
    tflops: float | None = None

    @property
    def early(self) -> bool:
        """Whether it is among the first three."""
        return self.place is not None and self.place <= FIRST

    @property
    def error(self) -> float | None:
        """By what part of the published figure the estimate is too high."""
        return self.estimated / self.tflops - 1 if self.tflops else None


def problem(
    stack: Stack, gpus: int, machine: Machine, model: str | None = None, global_batch: int | None = None
) -> Problem:
    """The search for a stack. What is not said is taken from the document's cases for so many GPUs.

    Raises EnvbuildError: `no-recipe` where the stack's recipe takes no degrees, `strategy-model`,
    `launch-parameter` (all exit 2).
    """
    reference, data = launch_data(stack)
    if not _searchable(reference):
        raise EnvbuildError(
            "no-recipe",
            f"the parallel degrees of {stack.name} cannot be searched",
            why=f"the recipe {data.recipe} does not take all of {', '.join(_NAMES)}",
            hint="use the stack megatron-alpa: its recipe takes all of them",
        )
    rows = sorted((c for c in reference.cases if c.gpus == gpus and model in (None, c.model)), key=lambda c: not c.best)
    name = model or next((case.model for case in rows), None)
    tables = [table for table in reference.manual if table.gpus == gpus and table.model == name]
    batches = [case.global_batch for case in rows if case.global_batch and case.model == name]
    batches += [max(row[0] for table in tables for row in table.cases)] if tables else []
    batch = global_batch or next(iter(batches), None)
    if name is None or batch is None:
        option = "--model" if name is None else "--global-batch"
        raise EnvbuildError(
            "strategy-model",
            f"{option} is needed for {gpus} GPUs",
            why="the document has no case to take it from",
            hint=f"models: {', '.join(row.name for row in reference.models)}",
        )
    best = next((_case(case) for case in rows if case.best and (case.model, case.global_batch) == (name, batch)), None)
    return Problem(reference, name, shape_of(reference, name), gpus, batch, machine, best)


def shape_of(reference: Reference, name: str) -> Shape:
    """The row of the model table. Raises EnvbuildError `launch-parameter` or `launch-does-not-fit`."""
    row = model_row(reference, name, "model")
    require(
        row.sequence is not None and row.vocabulary is not None,
        f"the model table has no sequence length or no vocabulary for {name}",
        hint="both belong into `reference: models:`",
    )
    return Shape(row.layers, row.hidden, row.heads, row.sequence or 1, row.vocabulary or 1)


def estimated(reference: Reference, launch: Launch) -> tuple[float, float] | None:
    """Bytes that tensors hold, and that are reserved, on a launch's fullest GPU; None where nothing estimates them."""
    row = next((row for row in reference.models if row.name == launch.model), None)
    if not _searchable(reference) or row is None or row.sequence is None or row.vocabulary is None:
        return None
    degrees = launch.degrees
    case = Case(
        degrees["global-batch"], degrees["data"], degrees["tensor"], degrees["pipeline"], degrees["microbatches"]
    )
    shape = shape_of(reference, row.name)
    return held(shape, case), reserved(shape, case)


def _searchable(reference: Reference) -> bool:
    data = reference.launch
    return data is not None and set(_NAMES) <= set(RECIPES[data.recipe].parameters.names())


def machine_of(gpu: Gpu, gpus_per_node: int, network: float) -> Machine:
    """The tables' row of a GPU. Raises EnvbuildError `launch-does-not-fit` if they lack a figure."""
    figures = (gpu.dense_tflops, gpu.bandwidth)
    require(None not in figures, f"peak or memory bandwidth of {gpu.model} are not in our tables")
    peak, bandwidth = (figure or 0.0 for figure in figures)
    # The sizes in the names of GPUs are powers of two; without NVLink, or where that is not known, it is PCIe 4.
    return Machine(gpu.model, gpus_per_node, peak, gpu.memory_gb * GIB, bandwidth, gpu.nvlink or 64.0, network)


def published(problem: Problem) -> list[Placed]:
    """Every best case that the document published for this GPU, each in the order for its own model and GPUs."""
    cases = [case for case in problem.reference.cases if case.best and case.gpu == problem.machine.gpu]
    return [_placed(problem, case.model, _case(case), case.tflops) for case in cases]


def listed(problem: Problem) -> list[Placed]:
    """The rows of the manual list for this search: what the document's authors tried, none of them said to be best."""
    key = (problem.gpus, problem.model)
    rows = [row for table in problem.reference.manual if (table.gpus, table.model) == key for row in table.cases]
    return [_placed(problem, problem.model, Case(*row)) for row in rows if row[0] == problem.global_batch]


def _placed(problem: Problem, model: str, case: Case, figure: float | None = None) -> Placed:
    shape = shape_of(problem.reference, model)
    ranked = rank(shape, problem.machine, case.gpus, case.global_batch)
    fitting = [item.case for item in ranked if item.fits(problem.machine)]
    place = fitting.index(case) + 1 if case in fitting else None
    return Placed(model, case, place, tflops(shape, case, problem.machine), figure)


def _case(case: BenchmarkCase) -> Case:
    return Case(case.global_batch or 1, case.dp or 1, case.tmp or 1, case.pp or 1, case.microbatches or 1)


def as_row(problem: Problem, ranked: Ranked) -> Mapping[str, object]:
    """One line of the table: degrees, estimated GiB on the fullest GPU (in tensors, reserved) and TFLOP/s per GPU."""
    case = ranked.case
    return {
        "dp": case.dp,
        "tmp": case.tmp,
        "pp": case.pp,
        "microbatches": case.microbatches,
        "micro_batch": case.micro_batch,
        "estimated_tensors_gib": round(ranked.held / GIB, 1),
        "estimated_reserved_gib": round(ranked.reserved / GIB, 1),
        "fits": ranked.fits(problem.machine),
        "estimated_tflops": round(ranked.tflops, 1),
    }
