"""The shapes of the stack's model table, two machines, and what was measured."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from envbuild.catalog.loader import load_stack
from envbuild.catalog.yaml_load import load_yaml
from envbuild.model.stack import Stack
from envbuild.provision.survey.ask import rules
from envbuild.strategy.memory import Case, Shape
from envbuild.strategy.search import Machine, Problem, machine_of, problem, shape_of

V100, H200 = "V100-SXM2-16GB", "H200-SXM-141GB"


@cache
def alpa() -> Stack:
    return load_stack("megatron-alpa").stack


def shape(name: str) -> Shape:
    reference = alpa().reference
    assert reference is not None
    return shape_of(reference, name)


def machine(gpu: str, per_node: int = 8) -> Machine:
    return machine_of(rules().gpus[gpu], per_node, 3.1)


def searched(gpu: str, gpus: int, model: str | None = None, per_node: int = 8) -> Problem:
    return problem(alpa(), gpus, machine(gpu, per_node), model)


def measured() -> list[tuple[str, str, Case, float]]:
    """(GPU, model, case, TFLOP/s per GPU)."""
    rows = load_yaml(Path(__file__).parent / "data/measured.yaml")
    assert isinstance(rows, dict)
    return [(gpu, row[0], Case(*row[1:6]), row[6]) for gpu, found in rows.items() for row in found]


def counted(name: str) -> list[tuple[str, Case, list[float]]]:
    """(model, case, GiB) of a file: that tensors held, that were reserved, and of a GPU that were in use."""
    rows = load_yaml(Path(__file__).parent / "data" / name)
    assert isinstance(rows, list)
    return [(row[0], Case(*row[1:7]), row[7:]) for row in rows]
