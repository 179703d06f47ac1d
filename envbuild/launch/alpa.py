"""Alpa's Megatron-LM baseline: one launcher a node with one case, from the best cases or the manual list."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from envbuild.launch.request import Count, Order, Parameters, Value, fill, model_row, read, require, require_shape
from envbuild.model.common import Text
from envbuild.model.launch import BenchmarkCase, Default, Launch, ModelSize, Reference

PORT = 41000
RESULTS = "megatron_results_e2e"
TORCHRUN_PATCH = "alpa-launch-torchrun"
# Our edit of the upstream commit does what the fork does, without its marker line.
OWN_EDIT = "megatron-no-tie"
_DEVIATIONS = (
    ("alpa-step-3-empty", "the case and the command that the empty step stands for"),
    ("alpa-missing-cases", "2 and 64 GPUs take a row of the manual list, and no figure is promised"),
    ("alpa-tmp-bound", "TMP up to the GPUs of a node"),
    ("alpa-bashrc", "the environment's own path, no start-up file"),
)


class AlpaParameters(Parameters):
    """A case: the best one of the GPU count, a row of the manual list by its number, or degrees."""

    model: Text | None = Field(None, description="row of the model table")
    row: Count | None = Field(
        None, description="number of a row of the manual list for these GPUs and this model, from 1"
    )
    global_batch: Count | None = Field(None, description="sequences a step")
    dp: Count | None = Field(None, description="data parallel")
    tmp: Count | None = Field(None, description="tensor parallel")
    pp: Count | None = Field(None, description="pipeline stages")
    microbatches: Count | None = Field(None, description="microbatches of a step")
    results: Text | None = Field(None, description="path of the table of results, without .tsv")


@dataclass(frozen=True, slots=True)
class _Case:
    model: ModelSize
    global_batch: int
    dp: int
    tmp: int
    pp: int
    microbatches: int
    note: str

    def literal(self) -> str:
        """The tuple that benchmark_gpt_one_case.py evaluates; its last five are those of every case."""
        m = self.model
        numbers = (self.global_batch, m.sequence, m.hidden, m.layers, m.heads, m.vocabulary)
        degrees = (self.dp, self.tmp, 1, self.tmp, self.pp, self.microbatches)
        return str(("gpt", *numbers, *degrees, False, True, True, "uniform_layer_gpipe", None))


def make(order: Order) -> Launch:
    """One command a node; the ranks above 0 wait for the first node's port."""
    given, taken = read(AlpaParameters, order)
    case, computed = _case(order, given)
    place = order.place
    values: dict[str, Value] = {
        **order.place_values(PORT),
        "module": "torch.distributed.run" if order.edited(TORCHRUN_PATCH) else "torch.distributed.launch",
        "several": place.nodes > 1,
        "case": case.literal(),
        "results": given.results or f"{place.output}/{RESULTS}",
    }
    python = place.program("python3")
    commands = order.of_nodes(
        lambda rank: (python, *fill(order.data.arguments, {**values, "rank": rank})), order.data.environment, PORT
    )
    return order.launch(
        case.model.name,
        degrees={
            "data": case.dp,
            "tensor": case.tmp,
            "pipeline": case.pp,
            "microbatches": case.microbatches,
            "global-batch": case.global_batch,
            "micro-batch": case.global_batch // case.dp // case.microbatches,
        },
        commands=commands,
        defaults=(*taken, *computed),
        deviations=order.deviations(*_DEVIATIONS),
        notes=(case.note, *_notes(order, case)),
    )


def _case(order: Order, given: AlpaParameters) -> tuple[_Case, tuple[Default, ...]]:
    """The case that was asked for, checked against the GPUs that are there."""
    gpus = order.place.gpus
    degrees = (given.global_batch, given.dp, given.tmp, given.pp, given.microbatches)
    defaults: tuple[Default, ...] = ()
    if all(degrees):
        require(given.row is None, "row and degrees at once", hint="one of the two")
        model = _model(order.reference, given, gpus)
        numbers = tuple(degree or 0 for degree in degrees)
        listed = numbers in _manual(order.reference, gpus, model.name)
        note = "a row of the manual list" if listed else "not a row of the manual list: no published run had this case"
    else:
        missing = [
            n for n, d in zip(("global_batch", "dp", "tmp", "pp", "microbatches"), degrees, strict=True) if not d
        ]
        require(len(missing) == len(degrees), f"{', '.join(missing)} is not said", hint="all five numbers, or none")
        model, numbers, note, defaults = _listed(order, given, gpus)
    case = _Case(model, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], note)
    _check(order, case)
    return case, defaults


def _listed(
    order: Order, given: AlpaParameters, gpus: int
) -> tuple[ModelSize, tuple[int, ...], str, tuple[Default, ...]]:
    """A row by its number, else the best case that the artifact's script has for these GPUs."""
    if given.row is not None:
        model = _model(order.reference, given, gpus)
        rows = _manual(order.reference, gpus, model.name)
        require(
            given.row <= len(rows),
            f"there is no row {given.row} for {model.name} on {gpus} GPUs",
            hint=f"row=1 to row={len(rows)}" if rows else _offers(order.reference, gpus),
        )
        return model, rows[given.row - 1], f"row {given.row} of {len(rows)} of the manual list", ()
    best = [c for c in order.reference.cases if c.best and c.gpus == gpus and given.model in (None, c.model)]
    require(
        bool(best),
        f"the artifact has no best case for {given.model or 'any model'} on {gpus} GPUs",
        why="its script knows 1, 4, 8, 16 and 32 GPUs (finding alpa-missing-cases)",
        hint=_offers(order.reference, gpus),
    )
    case = best[0]
    degrees = f"DP {case.dp}, TMP {case.tmp}, PP {case.pp}"
    words = f"{degrees}, {case.microbatches} microbatches, global batch {case.global_batch}"
    defaults = [
        Default(name="case", value=words, why=f"the best case of {case.source.split(' and ')[0]} for {gpus} GPUs")
    ]
    if given.model is None:
        defaults.append(Default(name="model", value=case.model, why=f"the model of the best case on {gpus} GPUs"))
    return model_row(order.reference, case.model, "model"), _numbers(case), "the best published case", tuple(defaults)


def _numbers(case: BenchmarkCase) -> tuple[int, ...]:
    return tuple(n or 1 for n in (case.global_batch, case.dp, case.tmp, case.pp, case.microbatches))


def _model(reference: Reference, given: AlpaParameters, gpus: int) -> ModelSize:
    require(given.model is not None, "a row or degrees need a model", hint=_offers(reference, gpus))
    return model_row(reference, given.model or "", "model")


def _manual(reference: Reference, gpus: int, model: str) -> tuple[tuple[int, ...], ...]:
    return tuple(row for table in reference.manual if (table.gpus, table.model) == (gpus, model) for row in table.cases)


def _offers(reference: Reference, gpus: int) -> str:
    """What the manual list has for so many GPUs."""
    tables = [table for table in reference.manual if table.gpus == gpus]
    if not tables:
        counts = sorted({table.gpus for table in reference.manual})
        return f"the manual list has rows for {', '.join(map(str, counts))} GPUs"
    return "; ".join(f"model={table.model} row=1 to row={len(table.cases)}" for table in tables)


def _check(order: Order, case: _Case) -> None:
    place = order.place
    require(
        case.dp * case.tmp * case.pp == place.gpus,
        f"DP {case.dp} x TMP {case.tmp} x PP {case.pp} is not {place.gpus} GPUs",
        hint="degrees whose product is the number of GPUs",
    )
    require_shape(case.model, place.gpus, case.tmp, case.pp)
    require(
        case.tmp <= place.gpus_per_node,
        f"TMP {case.tmp} is more than the {place.gpus_per_node} GPUs of a node",
        why="the document keeps tensor parallelism inside a node (finding alpa-tmp-bound)",
        hint=f"tmp={place.gpus_per_node} at most",
    )
    step = case.dp * case.microbatches
    require(
        case.global_batch % step == 0,
        f"global batch {case.global_batch} is no multiple of {step} (DP x microbatches)",
        hint=f"global_batch={-(-case.global_batch // step) * step}",
    )


def _notes(order: Order, case: _Case) -> tuple[str, ...]:
    marker = "no marker line: weights stay tied"
    if case.pp > 1:
        marker = "weights drift apart, " + (
            "without a marker line" if order.edited(OWN_EDIT) else "with the fork's line in every step"
        )
    return (
        f"PP {case.pp}: {marker} (finding alpa-tie-embedding)",
        "success is exit code 0 and a new row of results; the artifact's own wrapper drops the exit code",
    )
