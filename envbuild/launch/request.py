"""The input of a recipe: typed parameters, defaults that are printed, the place; and the figures of a log."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envbuild.errors import EnvbuildError
from envbuild.model.common import AbsPath, StrictModel, Text
from envbuild.model.finding import requirement
from envbuild.model.launch import (
    Bench,
    Command,
    Default,
    Deviation,
    Endpoint,
    Launch,
    LaunchData,
    LaunchFile,
    ModelSize,
    Reference,
    Words,
)
from envbuild.node.smoke.step import fill as filled
from envbuild.node.smoke.training_log import cut_short, losses, not_finite, runs
from envbuild.node.smoke.training_log import read as read_log
from envbuild.report.claimed import Gpus, share_of_peak
from envbuild.text import did_you_mean, number

if TYPE_CHECKING:
    from envbuild.model.stack import Profile


# Percent of a GPU's dense peak: what a run can have, with room for how catalogs round.
_MOST = 105
UNKNOWN = Gpus(None, 0)
_Host = Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$")]


class Place(StrictModel):
    """`environment` is the built environment, `output` the folder for everything that a run writes.

    `master` is the address of the node with rank 0; `job` is the scheduler's job id; `hostfile` is the node file of an
    MPI launcher; `image` is the container image to start in (the environment is then the one in the image).
    `direct`: there is no Slurm whose srun starts the nodes; each runs a command of its own. `data`: where data lie that
    no parameter names (default: `output`). `gres`: Slurm hands out GPUs, so that a step may ask for them. `gpu`: the
    model of the GPUs, where the target says it.
    """

    nodes: Annotated[int, Field(ge=1, le=20000)]
    gpus_per_node: Annotated[int, Field(ge=1, le=64)]
    environment: AbsPath
    output: AbsPath
    master: _Host | None = None
    port: Annotated[int, Field(ge=1024, le=65535)] | None = None
    job: Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = None
    hostfile: AbsPath | None = None
    image: Annotated[Text, Field(pattern=r"^[^-\s]\S*$")] | None = None
    direct: bool = False
    gres: bool = True
    data: AbsPath | None = None
    gpu: Text | None = None

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus_per_node

    def below(self, name: str) -> Place:
        """The same place, with output in a folder below `output`; data stay where they are."""
        return self.model_copy(update={"output": f"{self.output.rstrip('/')}/{name}", "data": self.data or self.output})

    def program(self, name: str) -> str:
        """A program of the environment by its full path; in an image by its name only."""
        return name if self.image else f"{self.environment}/bin/{name}"

    def torchrun(self) -> tuple[str, ...]:
        """torchrun as a module: with a base's torch the environment has no script of that name."""
        return (self.program("python3"), "-m", "torch.distributed.run")

    def source(self, name: str | None, folder: str | None = None) -> str:
        """The folder of a source that is installed as a path or editable; without a source, the output folder."""
        return (f"{self.environment}/src/{name}" if name else self.output) + (f"/{folder}" if folder else "")

    def rendezvous(self, port: int) -> tuple[str, int]:
        """Address and port where the nodes meet; one meets itself. Raises `launch-parameter` without an address."""
        if self.master is None and self.nodes > 1:
            raise EnvbuildError(
                "launch-parameter",
                f"{self.nodes} nodes need the address of the first node",
                why="envbuild takes it from the job or from --master, and never guesses it from a host name",
                hint="add --master ADDRESS (in a job: the first name of its node list); `--submit` runs it as a job, "
                "which knows the address",
            )
        return self.master or "127.0.0.1", self.port or port


Value = str | int | float | bool | None
Values = Mapping[str, Value]


def fill(words: Iterable[str | Words], values: Values) -> tuple[str, ...]:
    """The words with every `{name}` replaced; a group whose `when` has no value, or a false one, is left out.

    Raises KeyError for a name that has no value: a mistake of the stack's file.
    """
    known = {name: value for name, value in values.items() if value is not None}
    out: list[str] = []
    for word in words:
        if isinstance(word, str):
            out.append(str(filled(word, known)))
        elif values[word.when]:
            out += [str(filled(text, known)) for text in word.words]
    return tuple(out)


Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Parameters(BaseModel):
    """Base of the parameters of a recipe. Fields are read from text by their alias, the name that users write.

    The recipe computes a field that is None.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names that users write, in the order of the class."""
        return tuple(field.alias or name for name, field in cls.model_fields.items())


P = TypeVar("P", bound=Parameters)


def read(kind: type[P], order: Order) -> tuple[P, tuple[Default, ...]]:
    """The parameters of an order, and the defaults that were taken because nobody gave a value.

    Raises EnvbuildError `launch-parameter` for an unknown name or a value of the wrong kind.
    """
    known, given, defaults = kind.names(), order.values, order.data.defaults
    taken = {name: defaults[name] for name in known if name in defaults and name not in given}
    for name in given:
        if name not in known:
            raise EnvbuildError(
                "launch-parameter", f"there is no parameter {name[:80]!r}", hint=did_you_mean(name, known)
            )
    try:
        parameters = kind.model_validate_strings({**taken, **given})
    except ValidationError as error:
        first = error.errors()[0]
        where = str(first["loc"][0]) if first["loc"] else "parameters"
        raise EnvbuildError(
            "launch-parameter",
            f"{where} has no value"
            if first["type"] == "missing"
            else f"{where}={first['input']!s:.80} is not possible",
            why=str(first["msg"]),
            hint=_described(kind, where),
        ) from error
    return parameters, tuple(
        Default(name=name, value=value, why=_described(kind, name)) for name, value in taken.items()
    )


def _described(kind: type[Parameters], name: str) -> str:
    fields = {field.alias or own: field for own, field in kind.model_fields.items()}
    return (fields[name].description or "") if name in fields else ""


def model_row(reference: Reference, name: str, key: str) -> ModelSize:
    """The row of the model table. Raises EnvbuildError `launch-parameter` with the nearest name."""
    for row in reference.models:
        if row.name == name:
            return row
    raise EnvbuildError(
        "launch-parameter",
        f"{key}={name[:80]!r} is not in the model table of this stack",
        hint=did_you_mean(name, [row.name for row in reference.models]),
    )


def require(fits: bool, what: str, *, why: str = "", hint: str = "") -> None:
    """Refuse what does not fit (exit code 7) with `launch-does-not-fit`."""
    if not fits:
        raise EnvbuildError("launch-does-not-fit", what, why=why, hint=hint)


def require_shape(model: ModelSize, gpus: int, tensor: int, pipeline: int, others: int = 1) -> int:
    """Data-parallel degree of a run. Refuses degrees that do not divide the GPUs, the heads or the layers."""
    product = tensor * pipeline * others
    degrees = f"tensor {tensor} x pipeline {pipeline}" + (f" x sequence {others}" if others > 1 else "")
    require(gpus % product == 0, f"{degrees} does not divide {gpus} GPUs", hint=f"degrees whose product divides {gpus}")
    usable = [n for n in range(1, gpus + 1) if gpus % n == 0 and model.heads % n == 0]
    require(
        model.heads % tensor == 0,
        f"tensor parallel {tensor} does not divide the {model.heads} attention heads of {model.name}",
        hint=f"on {gpus} GPUs one of {', '.join(map(str, usable))}",
    )
    require(
        model.layers % pipeline == 0,
        f"pipeline parallel {pipeline} does not divide the {model.layers} layers of {model.name}",
        hint="a number of stages that divides the layers",
    )
    return gpus // product


class Samples(NamedTuple):
    """The figures of a run's log without those of its warm-up, how many were left out, and why they are no result.

    `losses`: of its steps, in their order, where it tells them.
    """

    values: list[float]
    warm_up: int
    wrong: str
    losses: list[float]


def samples(bench: Bench, text: str, gpus: Gpus = UNKNOWN) -> Samples:
    """The figures of a log on these GPUs. A training that restarts has a second warm-up."""
    records = read_log(bench.log, text)
    telling = [record for record in records if bench.metric in record.values]
    parts = [[record.values[bench.metric] for record in part] for part in runs(telling)]
    values = [value for part in parts for value in part[bench.warmup :]]
    bad = next((value for value in values if not 0 < value < math.inf), None)
    peak = gpus.peak if gpus.firm else None
    high = next((value for value in values if (share_of_peak(bench.unit, value, peak) or 0.0) > _MOST), None)
    course = losses(bench.log, [text])
    few = f"its log has {len(values)} of at least {bench.least} lines with `{bench.metric}` after its warm-up"
    above = f"{bench.unit} is more than the peak of {gpus.name}, {number(gpus.peak or 0.0)}"
    wrong = (
        (few if len(values) < bench.least else None)
        or (f"its log has {bad:g} for `{bench.metric}`" if bad is not None else None)
        or (f"{number(high)} {above}" if high is not None else None)
        or not_finite(course)
        or cut_short(records)
    )
    return Samples(values, len(telling) - len(values), wrong or "", [loss for _, loss in course])


def course_in_words(losses: Sequence[float]) -> str:
    """How the loss developed, which a figure of speed does not show."""
    if len(losses) < 2:
        return ""
    went = "rose" if losses[-1] > losses[0] else "went"
    return f"the loss {went} from {losses[0]:.4g} to {losses[-1]:.4g} in {len(losses)} steps"


@dataclass(frozen=True, slots=True)
class Order:
    """`data` is the stack's own `reference.launch`, `values` what the user set, `findings` the ids of the stack.

    `profiles`: all that the stack has; what is started is of the one named `profile_name`.
    """

    stack: str
    profile_name: str
    profiles: Mapping[str, Profile]
    reference: Reference
    data: LaunchData
    values: Mapping[str, str]
    place: Place
    findings: frozenset[str] = frozenset()

    def directory(self) -> str:
        """The working directory of the stack's program."""
        return self.place.source(self.data.source, self.data.folder)

    def place_values(self, port: int, model: ModelSize | None = None) -> dict[str, Value]:
        """What words of a command may name: the place, where its nodes meet, and the shape of a model."""
        place = self.place
        address, port = place.rendezvous(port)
        values: dict[str, Value] = {
            "nodes": place.nodes,
            "gpus_per_node": place.gpus_per_node,
            "gpus": place.gpus,
            "address": address,
            "port": port,
            "output": place.output,
            "data": place.data or place.output,
            "environment": place.environment,
            "source": self.directory(),
            "job": place.job or "0",
            "hostfile": place.hostfile,
            "image": place.image,
            "gres": place.gres,
        }
        if model is not None:
            values |= {"layers": model.layers, "hidden": model.hidden, "heads": model.heads}
            values["sequence_length"] = model.sequence
        return values

    def config_file(self, name: str, values: Values) -> LaunchFile:
        """A configuration of the stack as the JSON file that `{config}` of the values names."""
        text = json.dumps(filled(self.data.configs[name], values), indent=2) + "\n"
        return LaunchFile(path=str(values["config"]), text=text)

    @property
    def profile(self) -> Profile:
        """The profile that is started."""
        return self.profiles[self.profile_name]

    def edited(self, name: str) -> bool:
        """Whether a source of the profile has this patch."""
        return self.profile_name in self.editing(name)

    def editing(self, name: str) -> tuple[str, ...]:
        """The profiles of the stack with a source that has this patch."""
        rows = self.profiles.items()
        return tuple(own for own, profile in rows if any(name in source.patches for source in profile.pinned_sources))

    def without_timers(self, stages: int) -> tuple[str, ...]:
        """Why DeepSpeed's timers must be off: newer ones stop at them in a pipeline; else nothing.

        Seen with 0.18.3, 0.19.0, 0.19.4 and 0.19.8 ("timer has already been started"), with wall_clock_breakdown as
        with flops_profiler. The documents, of 0.6.3 and 0.10.3, have them on.
        """
        if stages < 2 or not self.deepspeed_since("0.18"):
            return ()
        return (
            f"{stages} pipeline stages: wall_clock_breakdown is off, and flops_profiler where the document has it; "
            "with either this DeepSpeed stops in backward",
        )

    def takes_mpi_flag(self) -> bool:
        """Whether DeepSpeed accepts --deepspeed_mpi: 0.10.3 does; 0.19.0 does not, and finds MPI itself."""
        # 0.18 is only a point between the two that were tried. Where no version is known, the document's flag stays.
        return not self.deepspeed_since("0.18")

    def deepspeed_since(self, release: str) -> bool:
        """Whether the profile pins a DeepSpeed of this release or a later one."""
        wanted = (requirement(text) for text in self.profile.packages)
        pins = (Version(pin.version) for package in wanted if package.name == "deepspeed" for pin in package.specifier)
        return any(pin >= Version(release) for pin in pins)

    def of_nodes(
        self, argv: Callable[[int], tuple[str, ...]], environment: Mapping[str, str], port: int | None
    ) -> tuple[Command, ...]:
        """One command a node, by its rank; those above 0 wait for the `port` of the first node, where one is given."""
        address, number = self.place.rendezvous(port or 1)
        return tuple(
            Command(
                node=rank,
                argv=argv(rank),
                environment=dict(environment),
                directory=self.directory(),
                wait_for=Endpoint(address=address, port=number) if rank and port else None,
            )
            for rank in range(self.place.nodes)
        )

    def launch(self, model: str, commands: tuple[Command, ...], **more: Any) -> Launch:
        """The launch at this place; `more`: fields that the recipe decides."""
        return Launch(
            stack=self.stack,
            profile=self.profile_name,
            nodes=self.place.nodes,
            gpus_per_node=self.place.gpus_per_node,
            model=model,
            commands=tuple(map(_as_srun, commands)),
            **more,
        )

    def deviations(self, *rows: tuple[str, str]) -> tuple[Deviation, ...]:
        """Deviations that answer findings of this stack; a user's own stack may have none of them."""
        return tuple(Deviation(finding=finding, does=does) for finding, does in rows if finding in self.findings)


def _as_srun(command: Command) -> Command:
    """An srun ends with the first rank that fails: by itself it waits for the others, which wait for that rank.

    Its tasks use all processors of the job: where a site binds tasks, each has one, and all ranks of a node may be one
    task.
    """
    if command.argv[0] != "srun":
        return command
    variables = {"SLURM_KILL_BAD_EXIT": "1", "SLURM_CPU_BIND": "none"}
    return command.model_copy(update={"environment": {**command.environment, **variables}})
