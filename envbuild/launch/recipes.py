"""Which recipe a stack has, and the one function that everybody calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envbuild.errors import EnvbuildError
from envbuild.launch import alcf, alpa, megatronapp, metaseq, slurm
from envbuild.launch.command import Place
from envbuild.launch.parameters import Parameters
from envbuild.launch.request import Order
from envbuild.model.launch import Launch, LaunchData, RecipeName
from envbuild.model.reference import Reference

if TYPE_CHECKING:
    from envbuild.model.stack import Stack


@dataclass(frozen=True, slots=True)
class Recipe:
    """Its parameters and the function that makes the commands."""

    parameters: type[Parameters]
    make: Callable[[Order], Launch]


RECIPES: dict[RecipeName, Recipe] = {
    "alpa": Recipe(alpa.AlpaParameters, alpa.make),
    "mpi-deepspeed": Recipe(alcf.AlcfParameters, alcf.make),
    "megatronapp": Recipe(megatronapp.AppParameters, megatronapp.make),
    "metaseq": Recipe(metaseq.MetaseqParameters, metaseq.make),
    "slurm-deepspeed": Recipe(slurm.SlurmParameters, slurm.make),
}


def launch_data(stack: Stack) -> tuple[Reference, LaunchData]:
    """The tables and words of a stack. Raises EnvbuildError `no-recipe` where it has none."""
    reference = stack.reference
    if reference is None or reference.launch is None:
        raise EnvbuildError(
            "no-recipe",
            f"the stack {stack.name} has no launch recipe",
            hint="its file has none under `reference: launch:`; `envbuild smoke` runs its smoke benchmarks",
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
        return RECIPES[data.recipe].make(order)
    except KeyError as error:
        raise EnvbuildError(
            "launch-data",
            f"the launch data of the stack {stack.name} lack {error.args[0]!r}",
            why=f"the recipe {data.recipe} knows no value of that name, or wants an entry of it",
            hint="compare `reference: launch:` with that of the shipped stack that has the recipe",
        ) from error
