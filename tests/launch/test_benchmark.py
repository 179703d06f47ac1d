"""What a run has measured beside what its document claims: which claim, which verdict, which words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.launch.request import course_in_words, samples
from envbuild.model.evidence import Comparison
from envbuild.model.launch import Bench, Reference
from envbuild.report.claimed import NO_GPU, Gpus, compare, in_words, metric
from tests.launch.support import place, stack, started

V100, H200, A100 = "V100-SXM2-16GB", "H200-SXM-141GB", "A100-SXM4-80GB"
PEAKS = {V100: 125.0, H200: 989.0, A100: 312.0}
ROW = "Type: gpt\tValues: {{'tflops': np.float64({}), 'parameter_count': 1.3}}\n"


def benched(name: str) -> tuple[Reference, Bench]:
    """What a document says of its own run, and how that is measured."""
    reference = stack(name).reference
    assert reference is not None and reference.bench is not None, name
    return reference, reference.bench


def alpa(measured: float, gpus: int = 4, model: str | None = H200, name: str | None = "NVIDIA H200") -> Comparison:
    there = Gpus(name, gpus, model, PEAKS.get(model or ""))
    launch = started("megatron-alpa", place(gpus=gpus), "ported")
    return compare(*benched("megatron-alpa"), launch, measured, there, PEAKS)


def test_the_best_case_of_four_gpus_is_compared_with_its_published_row() -> None:
    found = alpa(56.0, model=V100, name="Tesla V100-SXM2-16GB")
    assert (found.claim, found.claim_gpu, found.claim_gpus, found.percent) == (55.89, V100, 4, 100.2)
    assert found.verdict == "reproduced"


@pytest.mark.parametrize(
    ("measured", "why", "percent"),
    [
        (54.213, "below the claim: 96.999 %", 96.999),
        (53.9, "below the claim: 96 %", 96.4),
        (54.2134, "reproduced: 97 %", 97.0),
        (83.0, "reproduced: 149 %", 148.5),
        (400.0, "above the claim: 716 %", 715.7),
    ],
)
def test_only_what_is_near_the_claim_is_called_reproduced_and_below_it_never_reads_as_the_percent_for_that(
    measured: float, why: str, percent: float
) -> None:
    found = alpa(measured, model=V100)
    assert (found.why, found.percent) == (why, percent)


def test_on_another_gpu_nothing_is_compared_and_both_shares_of_their_peaks_are_told() -> None:
    found = alpa(260.1)
    assert (found.verdict, found.share, found.claim_share) == ("not-comparable", 26.3, 44.7)
    words = in_words(found)
    assert words == (
        "not comparable: other GPU (H200-SXM-141GB, claimed for V100-SXM2-16GB); "
        f"claimed: 55.89, 45 % of the dense peak of V100-SXM2-16GB ({found.source}); "
        "here: 26 % of the dense peak of NVIDIA H200"
    )


def test_a_claim_for_the_gpu_that_is_there_comes_before_the_document_s() -> None:
    found = alpa(270.0, gpus=8)
    assert (found.claim, found.claim_gpu, found.verdict) == (271.0, H200, "reproduced")


def test_a_gpu_that_nobody_named_is_not_comparable_and_says_so() -> None:
    assert alpa(260.1, model=None, name="Acme X1").why == "not comparable: Acme X1 is not in envbuild's GPU tables"
    assert alpa(260.1, model=NO_GPU, name=None).why == f"not comparable: no GPU here (claimed for {V100})"
    assert alpa(260.1, model=None, name=None).why == "not comparable: the GPU that it ran on is not known"


def test_degrees_that_nobody_published_have_no_claim() -> None:
    degrees = {"model": "1.3B", "global_batch": "1024", "dp": "4", "tmp": "1", "pp": "1", "microbatches": "16"}
    launch = started("megatron-alpa", place(gpus=4), "ported", **degrees)
    found = compare(*benched("megatron-alpa"), launch, 298.4, Gpus("NVIDIA H200", 4, H200, 989.0), PEAKS)
    assert (found.verdict, found.claim, found.percent) == ("no-claim", None, None)
    assert "no figure is published for 1.3B with these degrees" in in_words(found)


@pytest.mark.parametrize(
    ("gpus", "model", "size", "verdict"),
    [
        (8, A100, "125m", "reproduced"),
        (4, A100, "125m", "not-comparable"),
        (8, H200, "125m", "not-comparable"),
        (8, A100, "350m", "no-claim"),
    ],
)
def test_a_figure_of_the_document_is_for_its_gpus_and_its_model(gpus: int, model: str, size: str, verdict: str) -> None:
    launch = started("opt-175b", place(gpus=gpus), model_size=size)
    found = compare(*benched("opt-175b"), launch, 210_000.0, Gpus(model, gpus, model), PEAKS)
    assert found.verdict == verdict
    assert found.share is None, "words a second are no share of a peak"
    assert ("claimed: 200,000 (" in in_words(found)) is (found.claim is not None)


@given(st.lists(st.floats(min_value=0.1, max_value=1e4), min_size=1, max_size=9), st.integers(0, 3))
def test_the_warm_up_is_left_out_and_counted(values: list[float], warmup: int) -> None:
    told = Bench(log="alpa", metric="tflops", unit="TFLOP/s per GPU", warmup=warmup)
    found, left_out, wrong, _ = samples(told, "noise\n".join(ROW.format(repr(value)) for value in values))
    assert bool(wrong) == (len(values) <= warmup)
    assert (found, left_out) == (values[warmup:], min(warmup, len(values)))
    if found:
        made = metric(told, found)
        assert (made.n, made.least, made.greatest) == (len(found), min(found), max(found))
        assert made.least <= made.median <= made.greatest


@pytest.mark.parametrize(
    ("value", "gpus", "wrong"),
    [
        (1.5e9, Gpus("NVIDIA H200", 4, H200, 989.0), "1,500,000,000 {} is more than the peak of NVIDIA H200, 989"),
        (1038.0, Gpus("NVIDIA H200", 4, H200, 989.0), ""),
        (1.5e9, Gpus("NVIDIA H100 PCIe", 4, "H100-PCIE-80GB", 756.0, firm=False), ""),
        (1.5e9, Gpus("Acme X1", 4), ""),
    ],
)
def test_a_figure_above_the_peak_of_the_gpu_is_a_failure_where_that_is_known(
    value: float, gpus: Gpus, wrong: str
) -> None:
    told = Bench(log="alpa", metric="tflops", unit="TFLOP/s per GPU")
    text = ROW.format(250.0) + ROW.format(value)
    assert samples(told, text, gpus).wrong == wrong.format(told.unit)
    assert samples(told.model_copy(update={"unit": "ms"}), text, gpus).wrong == ""


def test_a_time_is_a_figure_of_which_less_is_better() -> None:
    rates = ("megatron-alpa", "megatron-deepspeed-alcf", "opt-175b")
    for name in ("megatronapp", "megatron-deepspeed-slurm", *rates):
        assert metric(benched(name)[1], [1.0]).lower_is_better is (name not in rates), name


def line(step: int, of: int, ms: float, loss: float) -> str:
    return f" iteration {step:8}/{of:8} | elapsed time per iteration (ms): {ms:.1f} | lm loss: {loss:.6E} |\n"


MS = Bench(log="megatron", metric="elapsed time per iteration (ms)", unit="ms", lower_is_better=True, warmup=2, least=2)


@pytest.mark.parametrize("again", [1, 4])
def test_a_training_that_began_anew_has_warmed_up_anew(again: int) -> None:
    first = [line(step, 6, 9000.0 if step < 3 else 100.0, 5.0) for step in range(1, 6)]
    second = [line(step, 6, 9000.0 if step < again + 2 else 100.0, 5.0) for step in range(again, 7)]
    found = samples(MS, "".join([*first, "loading the checkpoint of iteration 3\n", *second]))
    assert set(found.values) == {100.0}
    assert (found.warm_up, found.wrong) == (4, "")


@pytest.mark.parametrize("value", ["nan", "-inf", "-0.0"])
def test_a_figure_that_is_none_is_a_failure_and_its_value_is_told(value: str) -> None:
    told = Bench(log="alpa", metric="tflops", unit="TFLOP/s per GPU")
    assert samples(told, ROW.format(value)).wrong == f"its log has {float(value):g} for `tflops`"


def test_a_figure_beside_a_loss_that_is_no_number_is_a_failure() -> None:
    text = "".join(line(step, 5, 100.0, 5.0 if step != 4 else float("nan")) for step in range(1, 6))
    assert samples(MS, text).wrong == "the loss is nan at step 4"


@pytest.mark.parametrize(
    ("course", "says"),
    [
        ((5.0, 4.0, 4.5), "the loss went from 5 to 4.5 in 3 steps"),
        ((5.0, 4.0, 6.5), "the loss rose from 5 to 6.5 in 3 steps"),
        ((5.0,), ""),
    ],
)
def test_what_became_of_the_loss_is_said_beside_the_figure(course: tuple[float, ...], says: str) -> None:
    text = "".join(line(step, len(course), 100.0, loss) for step, loss in enumerate(course, 1))
    assert course_in_words(samples(MS, text).losses) == says


def test_a_run_that_ended_before_its_last_iteration_is_a_failure_whatever_its_exit_code() -> None:
    text = "".join(line(step, 500, 100.0, 5.0) for step in range(1, 61))
    assert samples(MS, text).wrong == "its log ends at iteration 60 of 500"
    torn = line(500, 500, 100.0, 5.0).split("elapsed")[0]
    assert samples(MS, text + torn).wrong == "", "that line says how far it came, whatever another rank wrote into it"
    assert samples(MS, "").wrong.startswith("its log has 0 of at least 2 lines with `elapsed")


NAMES = {"alpa": "tflops", "deepspeed": "samples/sec", "megatron": "lm loss", "metaseq": "wps"}
PIECES = [
    " iteration        3/       9 |", " lm loss: 4.5E+00 |", " lm loss: nan |", "{'tflops': np.float64(", "50.5)",
    "-1}",
    "steps: 4 loss: 4.5 iter time (s): 0.1 samples/sec: ", "80.0", "inf", "a | b | train_inner | ",
    '{"num_updates": "4", ',
    '"wps": "1e5"}', '"loss": "nan"}', "\n", "\r", "\r\n", "0: ", "[default1]:", "\x1b[32m", "\x00", "\ufffd", "1e400",
]  # fmt: skip


@pytest.mark.parametrize("form", sorted(NAMES))
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=60), warmup=st.integers(0, 3), least=st.integers(1, 4))
def test_whatever_a_log_has_what_is_no_failure_is_enough_good_figures(
    form: Any, pieces: list[str], warmup: int, least: int
) -> None:
    found = samples(Bench(log=form, metric=NAMES[form], unit="x", warmup=warmup, least=least), "".join(pieces))
    good = len(found.values) >= least and all(0 < value < float("inf") for value in found.values)
    assert good or found.wrong
    assert found.warm_up >= 0 and "\n" not in found.wrong
