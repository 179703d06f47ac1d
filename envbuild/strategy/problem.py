"""What is searched: a model of a stack's table on so many GPUs, and what the document published for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envbuild.errors import EnvbuildError
from envbuild.launch.recipes import RECIPES, launch_data
from envbuild.launch.request import model_row, require
from envbuild.model.launch import Launch
from envbuild.model.reference import BenchmarkCase, Reference
from envbuild.model.stack import Stack
from envbuild.resolve.compat import Gpu
from envbuild.strategy.memory import Case, Shape, held, reserved
from envbuild.strategy.search import Machine, Ranked, rank

# What a recipe has to take, so that a case can be told to it.
_NAMES = ("model", "global_batch", "dp", "tmp", "pp", "microbatches")
FIRST = 3
GIB = 2**30


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
        rows = sorted((each.place, each.case) for each in listed(self) if each.place is not None)
        return self.best or (rows[0][1] if rows else None)

    def ranked(self) -> list[Ranked]:
        """All cases that may fit. Raises EnvbuildError `launch-does-not-fit` (exit 7) where there is none."""
        found = rank(self.shape, self.machine, self.gpus, self.global_batch)
        what = f"{self.model} fits into the memory of {self.gpus} {self.machine.gpu} in no way"
        require(bool(found), what, why="by the estimate of memory", hint="more GPUs, or a smaller model")
        return found

    def settings(self, case: Case) -> dict[str, str]:
        """What `launch --set` takes for a case."""
        values = (self.model, case.global_batch, case.dp, case.tmp, case.pp, case.microbatches)
        return dict(zip(_NAMES, map(str, values), strict=True))


@dataclass(frozen=True, slots=True)
class Placed:
    """A published case and its place in our order, from 1 (None: it does not fit by the estimate)."""

    model: str
    case: Case
    place: int | None

    @property
    def early(self) -> bool:
        """Whether it is among the first three."""
        return self.place is not None and self.place <= FIRST


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
            hint="the recipe alpa does: the stack megatron-alpa has it",
        )
    said = sorted((c for c in reference.cases if c.gpus == gpus and model in (None, c.model)), key=lambda c: not c.best)
    name = model or next((case.model for case in said), None)
    tables = [table for table in reference.manual if table.gpus == gpus and table.model == name]
    batches = [case.global_batch for case in said if case.global_batch and case.model == name]
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
    best = next((_case(case) for case in said if case.best and (case.model, case.global_batch) == (name, batch)), None)
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
    """What our tables say of a GPU. Raises EnvbuildError `launch-does-not-fit` where they lack a figure."""
    figures = (gpu.dense_tflops, gpu.bandwidth)
    require(None not in figures, f"peak or memory bandwidth of {gpu.model} are not in our tables")
    peak, bandwidth = (figure or 0.0 for figure in figures)
    # The sizes in the names of GPUs are powers of two; without NVLink, or where that is not known, it is PCIe 4.
    return Machine(gpu.model, gpus_per_node, peak, gpu.memory_gb * GIB, bandwidth, gpu.nvlink or 64.0, network)


def published(found: Problem) -> list[Placed]:
    """Every best case that the document published for this GPU, each in the order for its own model and GPUs."""
    cases = [case for case in found.reference.cases if case.best and case.gpu == found.machine.gpu]
    return [_placed(found, case.model, _case(case)) for case in cases]


def listed(found: Problem) -> list[Placed]:
    """The rows of the manual list for this search: what the document's authors tried, none of them said to be best."""
    key = (found.gpus, found.model)
    rows = [row for table in found.reference.manual if (table.gpus, table.model) == key for row in table.cases]
    return [_placed(found, found.model, Case(*row)) for row in rows if row[0] == found.global_batch]


def _placed(found: Problem, model: str, case: Case) -> Placed:
    ranked = rank(shape_of(found.reference, model), found.machine, case.gpus, case.global_batch)
    fitting = [each.case for each in ranked if each.fits(found.machine)]
    return Placed(model, case, fitting.index(case) + 1 if case in fitting else None)


def _case(case: BenchmarkCase) -> Case:
    return Case(case.global_batch or 1, case.dp or 1, case.tmp or 1, case.pp or 1, case.microbatches or 1)


def as_row(found: Problem, each: Ranked) -> Mapping[str, object]:
    """One line of the table: degrees, estimated GiB on the fullest GPU (in tensors, reserved) and TFLOP/s per GPU."""
    case = each.case
    return {
        "dp": case.dp,
        "tmp": case.tmp,
        "pp": case.pp,
        "microbatches": case.microbatches,
        "micro_batch": case.micro_batch,
        "estimated_tensors_gib": round(each.held / GIB, 1),
        "estimated_reserved_gib": round(each.reserved / GIB, 1),
        "fits": each.fits(found.machine),
        "estimated_tflops": round(each.tflops, 1),
    }
