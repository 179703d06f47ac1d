"""The data that a stack's own run reads, small ones of our own: which files, and the document's commands over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envbuild.errors import EnvbuildError
from envbuild.launch.command import fill
from envbuild.launch.recipes import launch_data
from envbuild.model.launch import Command

if TYPE_CHECKING:
    from envbuild.launch.command import Place
    from envbuild.model.stack import Stack

_PACKED = ".xz"
_STAND_INS = "stand-ins"  # the folder of modules


@dataclass(frozen=True, slots=True)
class Preparation:
    """`files`: what each synthetic file is, by its name, and what stands in for modules, in a folder of its own.

    Then the commands, all in the folder of the data.
    """

    files: Mapping[str, str]
    commands: tuple[Command, ...]


def preparation(stack: Stack, place: Place) -> Preparation:
    """What makes small data in `place.output`, with the tools of the environment.

    Raises EnvbuildError `no-recipe` (exit 2) for a stack that does not say how, and `data-not-made` (exit 7) for one
    that says why not.
    """
    reference, data = launch_data(stack)
    if reference.no_data is not None:
        raise EnvbuildError(
            "data-not-made", f"no small data can be made with the own tool of {stack.name}", why=reference.no_data
        )
    made: dict[str, str] = {
        file.name.removesuffix(_PACKED): file.synthetic for file in reference.data if file.synthetic
    }
    if not made or not reference.prepare:
        raise EnvbuildError(
            "no-recipe",
            f"the stack {stack.name} does not say how its data are made",
            why="its file has no `reference: prepare:`, or no file of `reference: data:` with `synthetic:`",
            hint="megatron-deepspeed-slurm, megatron-deepspeed-alcf and megatronapp do",
        )
    packed = {file.name for file in reference.data if file.name.endswith(_PACKED)}
    values = {"source": place.source(data.source, data.folder)}
    environment = {"PYTHONDONTWRITEBYTECODE": "1"}
    if reference.unused:
        made |= {f"{_STAND_INS}/{module}.py": "unused" for module in reference.unused}
        environment["PYTHONPATH"] = f"{place.output}/{_STAND_INS}"
    commands = [
        Command(argv=fill(words, values), directory=place.output, environment=environment)
        for words in reference.prepare
        # Synthetic files are not packed.
        if not (words[0] == "xz" and packed.intersection(words))
    ]
    return Preparation(made, tuple(commands))
