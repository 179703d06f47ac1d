"""How a stack takes its first step: the training script, its words and how its log is read."""

import json
import re
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from envbuild.model.common import EnvName, Name, RelPath, StrictModel, Text

_FILLED = frozenset({"ranks", "tensor", "data", "batch", "work"})  # node/smoke/step.py: values_for


class Step(StrictModel):
    """What the smoke item `step` runs, one rank a GPU, in a work folder of its own.

    `script` is a path in `source`, a source installed as a path or editable. In `arguments` and
    `files` (JSON files of the work folder) `{ranks}` is filled in, `{tensor}` (2 for an even number of ranks, else 1),
    `{data}` (ranks by tensor), `{batch}` (four sequences for each of these) and `{work}`. `data` are synthetic data of
    that kind in the work folder. `log` says how losses are read, `steps` how many there must be.
    """

    source: Name
    script: RelPath
    launcher: Literal["torchrun", "mpi"] = "torchrun"
    arguments: tuple[Text, ...] = ()
    environment: dict[EnvName, Text] = {}
    files: dict[Name, dict[str, JsonValue]] = {}
    data: Literal["gpt2"] | None = None
    log: Literal["megatron", "deepspeed", "metaseq"]
    steps: Annotated[int, Field(ge=2, le=1000)]

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        text = json.dumps([self.arguments, self.files])
        unknown = sorted(set(re.findall(r"\{([a-z_]+)\}", text)) - _FILLED)
        if unknown:
            raise ValueError(f"{{{unknown[0]}}} is not a word that is filled in; known: {', '.join(sorted(_FILLED))}")
        return self
