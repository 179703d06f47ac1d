"""The estimate of time against runs that were measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envbuild.strategy.memory import Case
from envbuild.strategy.search import flops, seconds, tflops
from tests.strategy.support import H200, V100, machine, measured, shape


def test_every_measured_run_is_met_within_a_quarter() -> None:
    rows = [
        (gpu, name, str(case), tflops(shape(name), case, machine(gpu)) / told) for gpu, name, case, told in measured()
    ]
    assert [row for row in rows if not 0.75 < row[-1] < 1.25] == []
    assert len(rows) == 11


def test_runs_of_one_model_come_in_the_order_that_was_measured() -> None:
    told = [(case, figure) for gpu, name, case, figure in measured() if (gpu, name) == (H200, "1.3B")]
    estimated = sorted(told, key=lambda row: tflops(shape("1.3B"), row[0], machine(H200)))
    assert [figure for _, figure in estimated] == [260.1, 291.4, 298.4]


def test_operations_are_those_of_the_artifact() -> None:
    # 1.3B, batch 1024: 260.1 TFLOP/s on each of 4 GPUs were 11.19 s a step.
    assert flops(shape("1.3B"), 1024) / 4 / 260.1e12 == pytest.approx(11.17, rel=0.01)


def test_a_pipeline_that_is_never_full_waits() -> None:
    few, many = (Case(1024, 1, 1, 8, count) for count in (8, 128))
    speed = [tflops(shape("2.6B"), case, machine(H200)) for case in (few, many)]
    # (m + p - 1) / m: 15/8 against 135/128.
    assert speed[1] / speed[0] > 1.3


def test_tensor_parallel_over_the_network_is_slower_than_within_a_node() -> None:
    case = Case(1024, 1, 8, 1, 128)
    near, far = (seconds(shape("6.7B"), case, machine(V100, per_node)) for per_node in (8, 4))
    assert far > 1.5 * near
    slow = replace(machine(V100, 4), network=1.0)
    assert seconds(shape("6.7B"), case, slow) > far
