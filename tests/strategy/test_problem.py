"""What is searched, and the ranking against the cases that the document published."""

from __future__ import annotations

import pytest

from envbuild.catalog.loader import load_stack
from envbuild.errors import EnvbuildError
from envbuild.strategy.memory import Case, held, reserved
from envbuild.strategy.problem import estimated, listed, problem, published
from tests.launch.support import place, stack, started
from tests.strategy.support import H200, V100, machine, searched

PUBLISHED = {"350M": 1, "1.3B": 1, "2.6B": 11, "6.7B": 1, "15B": 3}


def test_four_of_five_published_best_cases_are_among_our_first_three() -> None:
    placed = published(searched(V100, 64))
    assert {each.model: each.place for each in placed} == PUBLISHED
    assert sum(each.early for each in placed) == 4


def test_for_64_gpus_nothing_is_published_as_best_and_the_two_candidates_are_placed() -> None:
    found = searched(V100, 64)
    assert (found.model, found.global_batch, found.best) == ("39B", 1024, None)
    assert {(each.case.tmp, each.case.pp): each.place for each in listed(found)} == {(4, 16): 2, (8, 8): 4}


@pytest.mark.parametrize(
    ("gpus", "model", "own"),
    [(4, "1.3B", Case(1024, 2, 1, 2, 128)), (2, "760M", Case(1024, 2, 1, 1, 32)), (1, "350M", Case(128, 1, 1, 1, 8))],
)
def test_what_is_not_said_is_the_document_s(gpus: int, model: str, own: Case) -> None:
    found = searched(H200, gpus)
    assert (found.model, found.global_batch, found.own) == (model, own.global_batch, own)


def test_where_the_document_says_nothing_the_model_and_the_batch_must_be_given() -> None:
    for model, option in ((None, "--model"), ("2.6B", "--global-batch")):
        with pytest.raises(EnvbuildError, match=f"{option} is needed for 3 GPUs") as caught:
            searched(H200, 3, model)
        assert caught.value.code == "strategy-model"
    assert problem(load_stack("megatron-alpa").stack, 3, machine(H200), "2.6B", 96).own is None


def test_a_recipe_that_takes_no_degrees_and_a_model_that_fits_nowhere_are_refused() -> None:
    with pytest.raises(EnvbuildError) as caught:
        problem(load_stack("opt-175b").stack, 8, machine(H200))
    assert caught.value.code == "no-recipe"
    with pytest.raises(EnvbuildError) as caught:
        problem(load_stack("megatron-alpa").stack, 1, machine(V100), "39B", 8).ranked()
    assert (caught.value.code, int(caught.value.exit_code)) == ("launch-does-not-fit", 7)


def test_links_that_take_a_bridge_count_as_those_of_pcie() -> None:
    bridged = ("A100-PCIE-40GB", "A100-PCIE-80GB", "H100-PCIE-80GB", "RTX-3090")
    assert {machine(gpu).nvlink for gpu in bridged} == {machine("L40S").nvlink}
    assert machine("L40S").nvlink < machine(H200).nvlink


def test_a_launch_of_a_case_has_the_estimate_of_the_case_and_another_stack_s_has_none() -> None:
    found, case = searched(H200, 4), Case(1024, 2, 1, 2, 128)
    made = started("megatron-alpa", place(gpus=4), "ported")
    assert estimated(found.reference, made) == (held(found.shape, case), reserved(found.shape, case))
    other = stack("megatron-deepspeed-slurm").reference
    assert other is not None and estimated(other, made) is None
    assert estimated(found.reference, made.model_copy(update={"model": "none"})) is None


def test_the_settings_of_a_case_are_those_of_launch() -> None:
    found = searched(H200, 4)
    assert found.settings(Case(1024, 4, 1, 1, 16)) == {
        "model": "1.3B", "global_batch": "1024", "dp": "4", "tmp": "1", "pp": "1", "microbatches": "16",
    }  # fmt: skip
