"""How a stack is started: its command as data, and the commands that a recipe makes from it."""

import json
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from envbuild.model.common import AbsPath, Count, EnvName, Name, Port, RelPath, SourceName, StrictModel, Text
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
    """What the smoke item `step` runs, one rank a GPU, in a work folder of its own.

    `script` is a path in `source`, a source installed as a path or editable. In `arguments` and
    `files` (JSON files of the work folder) `{ranks}` is filled in, `{tensor}` (2 for an even number of ranks, else 1),
    `{data}` (ranks by tensor), `{batch}` (four sequences for each of these) and `{work}`. `data` are synthetic data of
    that kind in the work folder. `log` says how losses are read, `steps` how many there must be.
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
        unknown = sorted(set(re.findall(r"\{([a-z_]+)\}", text)) - _FILLED)
        if unknown:
            raise ValueError(f"{{{unknown[0]}}} is not a word that is filled in; known: {', '.join(sorted(_FILLED))}")
        return self


RecipeName = Literal["command", "alpa", "mpi-deepspeed", "megatronapp", "metaseq", "slurm-deepspeed"]


class Words(StrictModel):
    """Arguments that the command line has only if the value `when` is given and true."""

    when: Name
    words: Annotated[tuple[Text, ...], Field(min_length=1)]


class LaunchData(StrictModel):
    """What the recipe of a stack works from. `{name}` in a word is filled with a value that the recipe computes.

    `command`, the recipe of any stack, fills in a parameter, all of which are in `defaults`, or a word of the place
    (`PLACE_WORDS`). With `{rank}` each node has a command of its own; without it one command starts all nodes.

    `source` is the source whose folder (or `folder` below it) is the working directory, else the output folder is;
    `defaults` are the values of parameters that nobody gives, as the document's own scripts have them; `before` are the
    words in front of the program, by launcher; `configs` are JSON files that the program reads, by name.
    """

    recipe: RecipeName = "command"
    source: SourceName | None = None
    folder: RelPath | None = None
    defaults: dict[Text, Text] = {}
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
        groups = [each for each in self.arguments if isinstance(each, Words)]
        words = [*(each for each in self.arguments if isinstance(each, str)), *(w for g in groups for w in g.words)]
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
