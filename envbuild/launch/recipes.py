"""The recipe of a stack, the function that makes its launch, and the commands that make its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envbuild.errors import EnvbuildError
from envbuild.launch import alcf, alpa, command, megatronapp, metaseq, slurm
from envbuild.launch.request import Order, Parameters, Place, fill
from envbuild.model.launch import Command, DataFile, Launch, LaunchData, RecipeName, Reference

if TYPE_CHECKING:
    from envbuild.model.stack import Stack

_PACKED = ".xz"
_STAND_INS = "stand-ins"  # the folder of modules


@dataclass(frozen=True, slots=True)
class Recipe:
    """Its parameters and the function that makes the commands."""

    parameters: type[Parameters]
    make: Callable[[Order], Launch]


RECIPES: dict[RecipeName, Recipe] = {
    "command": Recipe(Parameters, command.make),
    "alpa": Recipe(alpa.AlpaParameters, alpa.make),
    "mpi-deepspeed": Recipe(alcf.AlcfParameters, alcf.make),
    "megatronapp": Recipe(megatronapp.AppParameters, megatronapp.make),
    "metaseq": Recipe(metaseq.MetaseqParameters, metaseq.make),
    "slurm-deepspeed": Recipe(slurm.SlurmParameters, slurm.make),
}


def parameters_of(data: LaunchData) -> type[Parameters]:
    """The parameters that `--set` accepts."""
    return command.parameters(data) if data.recipe == "command" else RECIPES[data.recipe].parameters


def launch_data(stack: Stack) -> tuple[Reference, LaunchData]:
    """The tables and arguments of a stack. Raises EnvbuildError `no-recipe` without them."""
    reference = stack.reference
    if reference is None or reference.launch is None:
        raise EnvbuildError(
            "no-recipe",
            f"the stack {stack.name} does not say what its own run is",
            why="its file has no `reference: launch:`",
            hint="add `reference: {launch: {source: NAME, arguments: [python3, train.py]}}`, NAME of a source with a "
            "tree; `envbuild smoke` runs its smoke benchmarks",
        )
    return reference, reference.launch


def launch(stack: Stack, profile: str, values: Mapping[str, str], place: Place) -> Launch:
    """The commands that start a stack at a place.

    Raises EnvbuildError: `no-recipe`, `launch-data`, `launch-parameter` (exit 2), `launch-does-not-fit` (exit 7).
    """
    reference, data = launch_data(stack)
    findings = frozenset(finding.id for finding in stack.findings)
    order = Order(stack.name, profile, stack.profiles, reference, data, values, place, findings)
    try:
        made = RECIPES[data.recipe].make(order)
    except KeyError as error:
        raise EnvbuildError(
            "launch-data",
            f"the launch data of the stack {stack.name} lack {error.args[0]!r}",
            why=f"the recipe {data.recipe} needs this value, or does not know its name",
            hint="compare `reference: launch:` with a shipped stack of the same recipe",
        ) from error
    own = {**data.defaults, **values}
    others = [f"{name} {own.get(name, 'unset')}, not {value}" for name, value in data.document.items()
              if own.get(name) != value]  # fmt: skip
    note = [f"not the document's values: {'; '.join(others)}"] if others else []
    return made.model_copy(update={"notes": (*made.notes, *note)})


def document_values(stack: Stack, profile: str, place: Place) -> dict[str, str]:
    """The document's values that are not the defaults; empty where the profile or the place does not run them."""
    if stack.reference is None or stack.reference.launch is None:
        return {}
    data = stack.reference.launch
    values = {name: value for name, value in data.document.items() if data.defaults.get(name) != value}
    try:
        launch(stack, profile, values, place)
    except EnvbuildError:
        return {}
    return values


@dataclass(frozen=True, slots=True)
class Preparation:
    """`files`: what each synthetic file is, by its name, and what stands in for modules, in a folder of its own.

    `real`: the document's own files, instead of the synthetic ones. Then the commands, all in the folder of the data.
    """

    files: Mapping[str, str]
    commands: tuple[Command, ...]
    real: tuple[DataFile, ...] = ()


def preparation(stack: Stack, place: Place, *, real: bool = False) -> Preparation:
    """What makes small data in `place.output`, or data of the document's `real` files, with the environment's tools.

    Raises EnvbuildError `no-recipe` (exit 2) for a stack that does not say how, and `data-not-made` (exit 7) for one
    that says why not.
    """
    reference, data = launch_data(stack)
    if reference.no_data is not None:
        raise EnvbuildError("data-not-made", f"the tool of {stack.name} cannot make small data", why=reference.no_data)
    made: dict[str, str] = {
        file.name.removesuffix(_PACKED): file.synthetic for file in reference.data if file.synthetic
    }
    if not made or not reference.prepare:
        raise EnvbuildError(
            "no-recipe",
            f"the stack {stack.name} has no recipe for its data",
            why="its file has no `reference: prepare:`, or no file of `reference: data:` with `synthetic:`",
            hint="stacks with a recipe: megatron-deepspeed-slurm, megatron-deepspeed-alcf, megatronapp",
        )
    own = tuple(file for file in reference.data if file.synthetic) if real else ()
    made = {} if real else made
    packed = set() if real else {file.name for file in reference.data if file.name.endswith(_PACKED)}
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
    return Preparation(made, tuple(commands), own)
