"""The memory model against published figures, and what must hold for every case."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.strategy import memory
from envbuild.strategy.memory import Case, Shape, held, layer_activations, parameters, reserved
from envbuild.strategy.search import USABLE, rank
from tests.node.torch_env import torch_environment
from tests.strategy.support import V100, counted, machine, measured, shape
from tests.support.programs import completed

LAYER = Path(__file__).parent / "data/layer_bytes.py"
POWERS = st.sampled_from([1, 2, 4, 8])


def test_a_model_has_the_parameters_of_the_artifact_s_table_and_states_the_24_gb_of_the_zero_paper() -> None:
    alone = Case(1, 1, 1, 1, 1)
    for name, billions in {"350M": 0.355, "760M": 0.759, "1.3B": 1.3, "2.6B": 2.649, "6.7B": 6.654}.items():
        assert parameters(shape(name), alone, 0) / 1e9 == pytest.approx(billions, rel=0.012)
    # Section 3.1: "a GPT-2 with 1.5 billion parameters ... at least 24 GB".
    gpt2 = Shape(layers=48, hidden=1600, heads=25, sequence=1024, vocabulary=50257)
    assert memory.STATE * parameters(gpt2, alone, 0) / 1e9 == pytest.approx(24, rel=0.05)


@pytest.mark.parametrize(
    ("heads", "hidden", "attention"),
    # Korthikanti et al., section 5: 5as/h of GPT-3 and of MT-NLG.
    [(96, 12288, 80), (128, 20480, 64)],
)
def test_attention_has_the_share_of_activations_that_its_paper_says(heads: int, hidden: int, attention: int) -> None:
    large, one = Shape(96, hidden, heads, 2048, 51200), 2048 * hidden
    assert layer_activations(large, Case(1, 1, 1, 1, 1)) == one * (34 + attention)
    assert layer_activations(large, Case(1, 1, 8, 1, 1)) == one * (10 + (24 + attention) / 8)


@pytest.mark.parametrize(("name", "case", "gib"), counted("megatron.yaml"), ids=str)
def test_what_megatron_s_own_code_held_is_met(name: str, case: Case, gib: list[float]) -> None:
    tensors, blocks = gib
    # cuBLAS was not there.
    assert (held(shape(name), case) - memory.WORKSPACES) / 2**30 == pytest.approx(tensors, rel=0.001)
    # Which tensors fit into which gaps is not calculated.
    assert 0.83 * blocks < reserved(shape(name), case) / 2**30 < 1.06 * blocks


@pytest.mark.parametrize(("name", "case", "gib"), counted("measured_memory.yaml"), ids=str)
def test_what_was_measured_on_an_h100_is_met(name: str, case: Case, gib: list[float]) -> None:
    tensors, blocks, used = gib
    assert held(shape(name), case) / 2**30 == pytest.approx(tensors, rel=0.005)
    assert reserved(shape(name), case) / 2**30 == pytest.approx(blocks, rel=0.1)
    assert (reserved(shape(name), case) + memory.OUTSIDE) / 2**30 == pytest.approx(used, rel=0.1)


def test_the_case_that_ran_out_of_memory_on_an_h100_holds_less_than_it_has_and_does_not_fit() -> None:
    # Reserved 71.1 GiB, and asked for 12.5 more.
    case, h100 = Case(128, 1, 1, 1, 2), machine("H100-SXM5-80GB")
    assert held(shape("2.6B"), case) < USABLE * h100.memory < reserved(shape("2.6B"), case)
    (ranked,) = [each for each in rank(shape("2.6B"), h100, 1, 128) if each.case == case]
    assert not ranked.fits(h100), "it is tried, after those that fit"


def test_every_published_best_case_fits_into_its_gpu() -> None:
    usable = USABLE * machine(V100).memory
    over = [(name, case) for gpu, name, case, _ in measured() if gpu == V100 and reserved(shape(name), case) > usable]
    assert over == []
    unpublished = {"350M": Case(128, 1, 1, 1, 4), "1.3B": Case(1024, 4, 1, 1, 256), "39B": Case(1024, 4, 4, 4, 256)}
    assert all(held(shape(name), case) > machine(V100).memory for name, case in unpublished.items())


@settings(deadline=None)
@given(name=st.sampled_from(["350M", "1.3B", "6.7B"]), tmp=POWERS, pp=POWERS, micro=POWERS, count=POWERS)
def test_more_microbatch_needs_more_and_more_tensor_parallel_less(
    name: str, tmp: int, pp: int, micro: int, count: int
) -> None:
    model, case = shape(name), Case(micro * count, 1, tmp, pp, count)
    larger = Case(2 * micro * count, 1, tmp, pp, count)
    wider = Case(micro * count, 1, 2 * tmp, pp, count)
    for needed in (held, reserved):
        assert needed(model, wider) < needed(model, case) <= needed(model, larger)
    kept = Case(micro * count, 1, tmp, pp, count, recompute=False)
    assert held(model, case) <= held(model, kept) + layer_activations(model, case), "recomputation saves memory"
    assert held(model, case) <= reserved(model, case)


@settings(deadline=None)
@given(micro=POWERS, count=st.integers(1, 16))
def test_the_first_stage_holds_a_microbatch_for_every_stage_after_it(micro: int, count: int) -> None:
    model = shape("6.7B")
    case = Case(micro * count, 1, 1, 8, count)
    one = (model.layers / 8 + 1) * 2 * model.sequence * micro * model.hidden
    most = memory.STATE * parameters(model, case, 0) + min(8, count) * one + layer_activations(model, case)
    assert held(model, case) >= most


@pytest.mark.slow
def test_a_layer_keeps_what_its_formula_says() -> None:
    """A layer of plain torch in Megatron's shape, on tensors without data."""
    python = torch_environment() / "bin" / "python"
    model, case = shape("1.3B"), Case(8, 1, 1, 1, 2)
    numbers = [str(n) for n in (model.hidden, model.heads, model.sequence, case.micro_batch, model.vocabulary)]
    done = completed([python, "-I", LAYER, *numbers], check=True)
    told = json.loads(done.stdout)
    assert told["layer"] == pytest.approx(layer_activations(model, case), rel=0.001)
    assert told["logits"] == memory.logits(model, case)
