"""The nodes and ranks of a launch, and the words of its command filled with their values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import Field, JsonValue

from envbuild.errors import EnvbuildError
from envbuild.model.common import AbsPath, StrictModel, Text
from envbuild.model.launch import Words

_Host = Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$")]


class Place(StrictModel):
    """`environment` is the built environment, `output` the folder for everything that a run writes.

    `master` is the address of the node with rank 0; `job` is the scheduler's job id; `hostfile` is the node file of an
    MPI launcher; `image` is the container image to start in (the environment is then the one in the image).
    `direct`: there is no Slurm whose srun starts the nodes; each runs a command of its own. `data`: where data lie that
    no parameter names (default: `output`). `gres`: Slurm hands out GPUs, so that a step may ask for them.
    """

    nodes: Annotated[int, Field(ge=1, le=16384)]
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

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus_per_node

    def below(self, name: str) -> Place:
        """The same, writing into a folder below `output`; data are still looked for where they were."""
        return self.model_copy(update={"output": f"{self.output.rstrip('/')}/{name}", "data": self.data or self.output})

    def program(self, name: str) -> str:
        """A program of the environment by its full path; in an image by its name alone."""
        return name if self.image else f"{self.environment}/bin/{name}"

    def torchrun(self) -> tuple[str, ...]:
        """torchrun as its module: where torch is the base's, the environment has no script of that name."""
        return (self.program("python3"), "-m", "torch.distributed.run")

    def source(self, name: str, folder: str | None = None) -> str:
        """The folder of a source that was installed as a path or editable."""
        return f"{self.environment}/src/{name}" + (f"/{folder}" if folder else "")

    def rendezvous(self, port: int) -> tuple[str, int]:
        """Address and port where the nodes meet; one meets itself. Raises `launch-parameter` without an address."""
        if self.master is None and self.nodes > 1:
            raise EnvbuildError(
                "launch-parameter",
                f"{self.nodes} nodes have no address to meet at",
                why="the first node's address is taken from the job or from you, never guessed from a host name",
                hint="--master ADDRESS (in a job: the first name of its node list)",
            )
        return self.master or "127.0.0.1", self.port or port


Value = str | int | float | bool | None
Values = Mapping[str, Value]

_NAME = re.compile(r"\{([a-z0-9_]+)\}")


def fill(words: Iterable[str | Words], values: Values) -> tuple[str, ...]:
    """The words with every `{name}` replaced; a group whose `when` has no value, or a false one, is left out.

    Raises KeyError for a name that has no value: a mistake of the stack's file.
    """
    out: list[str] = []
    for word in words:
        if isinstance(word, Words):
            if values[word.when]:
                out += [_filled(text, values) for text in word.words]
        else:
            out.append(_filled(word, values))
    return tuple(out)


def fill_config(config: JsonValue, values: Values) -> JsonValue:
    """A configuration with its values filled in; a text that is one `{name}` becomes the value itself, not a text."""
    if isinstance(config, dict):
        return {key: fill_config(value, values) for key, value in config.items()}
    if isinstance(config, list):
        return [fill_config(value, values) for value in config]
    if not isinstance(config, str):
        return config
    whole = _NAME.fullmatch(config)
    return values[whole.group(1)] if whole else _filled(config, values)


def _filled(text: str, values: Values) -> str:
    def value(match: re.Match[str]) -> str:
        found = values[match.group(1)]
        if found is None:
            raise KeyError(match.group(1))
        return str(found)

    return _NAME.sub(value, text)
