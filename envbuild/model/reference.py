"""Reference tables of a stack: what its document or its sources publish, as data that reports compare with."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from envbuild.model.common import Count, EnvName, Name, Sha256, StrictModel, Text, WebUrl
from envbuild.model.launch import LaunchData, LogFormat
from envbuild.node.smoke.training_log import is_pattern, pattern_names


class ModelSize(StrictModel):
    """One row of a model table; `vocabulary` and `sequence` in tokens, `batch_tokens` tokens a step."""

    name: Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    layers: Count
    hidden: Count
    heads: Count
    sequence: Count | None = None
    vocabulary: Count | None = None
    batch_tokens: Count | None = None
    model_parallel: Count | None = None
    note: Text | None = None


class BenchmarkCase(StrictModel):
    """One published or launched case. `tflops` is per GPU, `source` says who published it, `gpu` on which model of GPU.

    Degrees are data (`dp`), tensor (`tmp`) and pipeline (`pp`) parallel; absent where nobody published them.
    """

    gpus: Count
    hosts: Count | None = None
    model: Text
    global_batch: Count | None = None
    dp: Count | None = None
    tmp: Count | None = None
    pp: Count | None = None
    microbatches: Count | None = None
    micro_batch_size: Count | None = None
    checkpointing: bool | None = None
    tflops: Annotated[float, Field(gt=0)] | None = None
    best: bool = False
    gpu: Text | None = None
    source: Text
    note: Text | None = None


class ManualCases(StrictModel):
    """All cases of a manual search for one model on one number of GPUs.

    Each case is [global batch, data parallel, tensor parallel, pipeline parallel, microbatches].
    """

    gpus: Count
    model: Text
    cases: Annotated[tuple[tuple[Count, Count, Count, Count, Count], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _degrees_use_all_gpus(self) -> Self:
        for case in self.cases:
            if case[1] * case[2] * case[3] != self.gpus:
                raise ValueError(f"case {list(case)}: the parallel degrees do not multiply to {self.gpus} GPUs")
        return self


class Figure(StrictModel):
    """One published number with its unit; `least`: it is a lower bound. `gpu`, `gpus`, `model`: what it applies to."""

    name: Name
    value: float
    unit: Text
    where: Text
    source: Text
    least: bool = False
    reproduced: bool = False
    gpu: Text | None = None
    gpus: Count | None = None
    model: Text | None = None


class Bench(StrictModel):
    """How the stack's own run is measured: `metric` is the name of a figure in log lines of the format `log`.

    The first `warmup` lines of a run are ignored; at least `least` lines must remain. `figure` is the claim if
    it is not a benchmark case.
    """

    log: LogFormat
    metric: Text
    unit: Text
    lower_is_better: bool = False
    warmup: Annotated[int, Field(ge=0, le=10000)] = 0
    least: Count = 1
    figure: Name | None = None

    @model_validator(mode="after")
    def _the_log_has_the_figure(self) -> Self:
        if is_pattern(self.log) and self.metric not in pattern_names(self.log):
            raise ValueError(f"`log` has no {{{self.metric}}}, the figure that `metric` names")
        return self


class LaunchVariable(StrictModel):
    """One variable that a launch script reads, its real default, and its effect or trap."""

    name: EnvName
    default: Text | None = None
    effect: Text


class MemoryModel(StrictModel):
    """Least number of nodes for the largest model (`model`): bytes a parameter, spread over all GPUs.

    `usable` is the part of a GPU's memory (`gpu_gb`, 10^9 bytes) that weights, gradients and optimizer state may take;
    the rest is for activations, buffers and NCCL.
    """

    model: Text
    bytes_per_parameter: Annotated[float, Field(gt=0)]
    usable: Annotated[float, Field(gt=0, le=1)]
    gpu_gb: Annotated[float, Field(gt=0)]
    gpus_per_node: Count
    source: Text


class DataFile(StrictModel):
    """One file that a benchmark reads; without `sha256` its hash is not recorded.

    `synthetic`: how to make a small substitute for it.
    """

    name: Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    url: WebUrl | None = None
    sha256: Sha256 | None = None
    synthetic: Literal["corpus", "merges", "sequences", "vocabulary"] | None = None
    note: Text | None = None


class Reference(StrictModel):
    """All tables of one stack; `prepare` are the argument lists that make the data, run in the folder of the data.

    `{source}` in them is the folder that `launch` runs in. If the first command only unpacks a file of `data`, it is
    skipped for synthetic data, which is not packed. `unused`: modules that these commands import but do not use; an
    empty module replaces each of them. `no_data`: why the stack's own tool cannot make small data. `launch` has the
    arguments of the stack's own command, from which a recipe of `envbuild/launch` makes the commands.
    """

    models: tuple[ModelSize, ...] = ()
    cases: tuple[BenchmarkCase, ...] = ()
    manual: tuple[ManualCases, ...] = ()
    figures: tuple[Figure, ...] = ()
    variables: tuple[LaunchVariable, ...] = ()
    heuristics: tuple[Text, ...] = ()
    memory: MemoryModel | None = None
    data: tuple[DataFile, ...] = ()
    prepare: tuple[tuple[Text, ...], ...] = ()
    unused: tuple[Name, ...] = ()
    no_data: Text | None = None
    launch: LaunchData | None = None
    bench: Bench | None = None

    @model_validator(mode="after")
    def _the_claim_is_there(self) -> Self:
        figure = self.bench.figure if self.bench else None
        if figure is not None and all(each.name != figure for each in self.figures):
            raise ValueError(f"`bench: figure:` names {figure}, which is no figure")
        return self
