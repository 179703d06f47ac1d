"""How a stack is started: its command as data, its reference cases, and the commands that a recipe makes from it."""

import json
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from envbuild.model.common import (
    AbsPath,
    Count,
    EnvName,
    Name,
    Port,
    RelPath,
    Sha256,
    SourceName,
    StrictModel,
    Text,
    WebUrl,
)
from envbuild.node.smoke.training_log import FORMATS, LOSS, is_pattern, pattern_names

_FILLED = frozenset({"ranks", "tensor", "data", "batch", "work"})  # node/smoke/step.py: values_for

# What `{name}` in the words of the recipe `command` may be, besides its own parameters.
PLACE_WORDS = frozenset(
    ("nodes", "gpus_per_node", "gpus", "rank", "address", "port", "output", "data", "environment", "source", "job",
     "hostfile")
)  # fmt: skip
_NAME = re.compile(r"\{([a-z0-9_]+)\}")


def _log_format(value: str) -> str:
    if not is_pattern(value) and value not in FORMATS:
        raise ValueError(f"neither a pattern with a {{figure}} nor one of the formats {', '.join(FORMATS)}")
    pattern_names(value)
    return value


LogFormat = Annotated[Text, AfterValidator(_log_format)]
"""A known format of a training log, or a pattern of its lines: `step {step} ... loss {loss}, {tokens} tokens/s`."""


class Step(StrictModel):
    """The program of the smoke item `step`, one rank for each GPU, in its own work folder.

    `source`: the source that has the script; it is installed as a path or editable. `script`: a path in it. `launcher`:
    what starts the ranks. In `arguments` and `files` (JSON files of the work folder) envbuild fills in `{ranks}`,
    `{tensor}`, `{data}`, `{batch}` and `{work}`. `{tensor}` is 2 for an even number of ranks, else 1. `{data}` is ranks
    divided by tensor; `{batch}` is four sequences for each. `environment`: its variables. `data`: synthetic data of
    this kind in the work folder. `log`: the format of the losses. `steps`: how many losses there must be.
    """

    source: SourceName
    script: RelPath
    launcher: Literal["torchrun", "mpi"] = "torchrun"
    arguments: tuple[Text, ...] = ()
    environment: dict[EnvName, Text] = {}
    files: dict[Name, dict[str, JsonValue]] = {}
    data: Literal["gpt2"] | None = None
    log: LogFormat
    steps: Annotated[int, Field(ge=2, le=1000)]

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        names = pattern_names(self.log)
        if self.log not in LOSS and not {"step", "loss"} <= set(names):
            raise ValueError(f"`log` needs {{step}} and {{loss}}, or is one of {', '.join(sorted(LOSS))}")
        text = json.dumps([self.arguments, self.files])
        unknown = sorted(set(_NAME.findall(text)) - _FILLED)
        if unknown:
            raise ValueError(f"{{{unknown[0]}}} is not a word that is filled in; known: {', '.join(sorted(_FILLED))}")
        return self


RecipeName = Literal["command", "alpa", "mpi-deepspeed", "megatronapp", "metaseq", "slurm-deepspeed"]


class Words(StrictModel):
    """Arguments that the command line has only under a condition.

    `words`: these arguments. `when`: the value that must be given and true.
    """

    when: Name
    words: Annotated[tuple[Text, ...], Field(min_length=1)]


class LaunchData(StrictModel):
    """The input of a stack's recipe. `{name}` in an argument is replaced by a value of the recipe.

    `recipe`: what makes the commands. With `command`, the recipe of any stack, a name is a parameter of `defaults` or a
    value of the place (`PLACE_WORDS`). With `{rank}` each node has its own command; without it one command starts all
    nodes. `source`: the source whose folder (or `folder` below it) is the working directory; without it, the output
    folder. `defaults`: values of parameters that the user does not give, as in the document's own scripts. `document`:
    values that the document's own command gives them instead. `before`: arguments in front of the program, by launcher.
    `arguments`: those of the program. `environment`: its variables. `configs`: JSON files that the program reads, by
    name.
    """

    recipe: RecipeName = "command"
    source: SourceName | None = None
    folder: RelPath | None = None
    defaults: dict[Text, Text] = {}
    document: dict[Text, Text] = {}
    before: dict[Name, tuple[Text | Words, ...]] = {}
    arguments: tuple[Text | Words, ...] = ()
    environment: dict[EnvName, Text] = {}
    configs: dict[Name, dict[str, JsonValue]] = {}

    @model_validator(mode="after")
    def _fields_fit_the_recipe(self) -> Self:
        if self.recipe != "command":
            if self.source is None:
                raise ValueError(f"the recipe {self.recipe} needs `source`")
            return self
        if self.before or self.configs or not self.arguments or (self.folder and not self.source):
            raise ValueError("a command has its `arguments`, no `before` and no `configs`; a `folder` is of a `source`")
        taken = sorted(PLACE_WORDS & self.defaults.keys())
        if taken:
            raise ValueError(f"{{{taken[0]}}} is filled in by envbuild: give the parameter another name")
        unknown = sorted(self.names() - PLACE_WORDS - self.defaults.keys())
        if unknown:
            known = ", ".join(sorted(PLACE_WORDS))
            raise ValueError(f"{{{unknown[0]}}} is neither a parameter in `defaults` nor one of {known}")
        return self

    def names(self) -> set[str]:
        """The names that its arguments are filled with."""
        groups = [argument for argument in self.arguments if isinstance(argument, Words)]
        words = [*(word for word in self.arguments if isinstance(word, str)), *(w for g in groups for w in g.words)]
        return {name for word in words for name in _NAME.findall(word)} | {group.when for group in groups}


class Endpoint(StrictModel):
    """A TCP port that must accept a connection before a command starts; `seconds`: how long to wait for it."""

    address: Text
    port: Port
    seconds: Count = 600


class Command(StrictModel):
    """One command as an argument list. `node` is the rank of the node that runs it; None: it starts every node itself.

    `environment` is set on top of the environment's own variables. `ends` is a text of the log that proves success
    where the exit code proves nothing; None: exit code 0 is success. `logs` are the files that it prints into instead,
    as a pattern with `*`: what it has added to them is shown after it.
    """

    node: int | None = None
    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    environment: dict[EnvName, str] = {}
    directory: AbsPath
    wait_for: Endpoint | None = None
    ends: Text | None = None
    logs: Text | None = None


class LaunchFile(StrictModel):
    """A file that must exist before the commands run."""

    path: AbsPath
    text: str


class Default(StrictModel):
    """A value that the user did not give; envbuild prints it."""

    name: Text
    value: Text
    why: Text


class Deviation(StrictModel):
    """One way in which a command differs from the document's, and the finding that it answers."""

    finding: Name
    does: Text


class Launch(StrictModel):
    """Everything that starts one run: files first, then the commands, each on its node.

    `degrees` are the numbers that follow from the parameters: parallel degrees, batch sizes, microbatches.
    """

    stack: Name
    profile: Name
    nodes: Count
    gpus_per_node: Count
    model: Text
    degrees: dict[Name, int]
    files: tuple[LaunchFile, ...] = ()
    commands: Annotated[tuple[Command, ...], Field(min_length=1)]
    defaults: tuple[Default, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    notes: tuple[Text, ...] = ()


class ModelSize(StrictModel):
    """One row of a model table.

    `name`: of the size. `layers`, `hidden`, `heads`: its shape. `sequence`, `vocabulary`: in tokens. `batch_tokens`:
    tokens of an optimizer step. `model_parallel`: GPUs that share a model. `note`: what else is known.
    """

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
    """One published or launched case.

    `model`: the size. `gpus`, `hosts`: how many. `gpu`: the model of GPU. `tflops`: the figure, per GPU. `source`: its
    publisher. `note`: what else is known. `dp`, `tmp`, `pp`: data, tensor and pipeline parallel degrees; empty if
    nobody published them. `global_batch`, `microbatches`, `micro_batch_size`: samples of a step, its parts, and samples
    of a part. `checkpointing`: whether activations are computed twice. `best`: whether it is the best published case of
    its size.
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
    """All cases of a manual search.

    `model`, `gpus`: the size, and the number of GPUs. `cases`: each is [global batch, data parallel, tensor parallel,
    pipeline parallel, microbatches].
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
    """One published number.

    `name`: of the figure. `value`, `unit`: the number. `where`: on what machines. `source`: who says it. `least`:
    whether it is a lower bound. `reproduced`: whether somebody reproduced it. `gpu`, `gpus`, `hosts`, `model`: what it
    applies to.
    """

    name: Name
    value: float
    unit: Text
    where: Text
    source: Text
    least: bool = False
    reproduced: bool = False
    gpu: Text | None = None
    gpus: Count | None = None
    hosts: Count | None = None
    model: Text | None = None


class Bench(StrictModel):
    """How the stack's own run is measured.

    `log`: the format of its log lines. `metric`: the name of the figure in them. `unit`: of the figure.
    `lower_is_better`: whether less is better. `warmup`: how many lines at the start are ignored. `least`: how many
    lines must remain. `figure` is the claim if it is not a benchmark case. `updates`: optimizer steps of a run, each
    with the `batch_tokens` of its model.
    """

    log: LogFormat
    metric: Text
    unit: Text
    lower_is_better: bool = False
    warmup: Annotated[int, Field(ge=0, le=10000)] = 0
    least: Count = 1
    figure: Name | None = None
    updates: Count | None = None

    @model_validator(mode="after")
    def _the_log_has_the_figure(self) -> Self:
        if is_pattern(self.log) and self.metric not in pattern_names(self.log):
            raise ValueError(f"`log` has no {{{self.metric}}}, the figure that `metric` names")
        return self


class LaunchVariable(StrictModel):
    """One variable that a launch script reads.

    `name`: of the variable. `default`: its real default. `effect`: what it does, or its trap.
    """

    name: EnvName
    default: Text | None = None
    effect: Text


class MemoryModel(StrictModel):
    """Least number of nodes for the largest model.

    `model`: its size. `bytes_per_parameter`: of weights, gradients and optimizer state, spread over all GPUs. `usable`
    is the part of a GPU's memory (`gpu_gb`, 10^9 bytes) that these may take; the rest is for activations, buffers and
    NCCL. `gpus_per_node`: GPUs of a node. `source`: the file that it follows from.
    """

    model: Text
    bytes_per_parameter: Annotated[float, Field(gt=0)]
    usable: Annotated[float, Field(gt=0, le=1)]
    gpu_gb: Annotated[float, Field(gt=0)]
    gpus_per_node: Count
    source: Text


class DataFile(StrictModel):
    """One file that a benchmark reads.

    `name`: of the file. `url`: where it is. `sha256`: its hash, if somebody recorded it. `synthetic`: how to make a
    small substitute for it. `note`: what else is known.
    """

    name: Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    url: WebUrl | None = None
    sha256: Sha256 | None = None
    synthetic: Literal["corpus", "merges", "sequences", "vocabulary"] | None = None
    note: Text | None = None


class Reference(StrictModel):
    """All tables of one stack.

    `models`: sizes of its model. `cases`: published runs. `manual`: cases of a search by hand. `figures`: published
    numbers. `variables`: those that launch scripts read. `heuristics`: rules of thumb of the document. `memory`: how
    many nodes a model needs. `data`: files that a run reads. `bench`: how its run is measured. `prepare` are the
    argument lists that make the data, run in the folder of the data. `{source}` in them is the folder that `launch`
    runs in. If the first command only unpacks a file of `data`, it is skipped for synthetic data, which is not packed.
    `unused`: modules that these commands import but do not use; an empty module replaces each of them. `no_data`: why
    the stack's own tool cannot make small data. `launch` has the arguments of the stack's own command, from which a
    recipe of `envbuild/launch` makes the commands.
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
        if figure is not None and all(row.name != figure for row in self.figures):
            raise ValueError(f"`bench: figure:` names {figure}, which is no figure")
        return self
