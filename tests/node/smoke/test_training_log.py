"""Every kind of log line gives back the figures that were written into it, whatever a launcher puts in front."""

from __future__ import annotations

import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.node.smoke import training_log
from envbuild.node.smoke.training_log import Record, cut_short, judge, losses, read, read_line, runs

FINITE = st.floats(min_value=1e-6, max_value=1e8, allow_nan=False)
STEP = st.integers(min_value=1, max_value=10**6)
BEFORE = st.sampled_from(["", "0: ", "12: ", " 7: ", "[default0]:", "0: [default3]:", "[3] ", "[rank1]: ", "\x1b[32m"])


def megatron_line(step: int, of: int, fields: dict[str, float], skipped: int = 0) -> str:
    """In the shape of the trees' own: padded numbers, bars between, one blank in front."""
    parts = [f" iteration {step:8d}/{of:8d}", f" consumed samples: {step * 8:12d}"]
    parts += [f" {name}: {value:.6E}" for name, value in fields.items()]
    return " |".join([*parts, f" number of skipped iterations: {skipped:3d}", " number of nan iterations:   0", ""])


def test_a_skipped_step_has_no_loss_and_one_that_was_skipped_for_a_loss_of_nan_has_that() -> None:
    skipped = megatron_line(2, 3, {"learning rate": 6e-5}, 1)
    lines = [megatron_line(1, 3, {"lm loss": 5.0}), skipped, megatron_line(3, 3, {"lm loss": 4.0})]
    assert losses("megatron", ["\n".join(lines)]) == [(1, 5.0), (3, 4.0)]
    lines[1] = skipped.replace("nan iterations:   0", "nan iterations:   1")
    assert judge(losses("megatron", ["\n".join(lines)]), 3) == "the loss is nan at step 2"


# The fields of an iteration's line, with their formats, at the pinned commit of each tree.
SHARED = [("consumed samples", "12d"), ("elapsed time per iteration (ms)", ".1f"), ("learning rate", ".3E")]
SHARED += [("global batch size", "5d"), ("lm loss", ".6E"), ("loss scale", ".1f"), ("grad norm", ".3f")]
SHARED += [("num zeros", ".1f"), ("params norm", ".3f")]
LATER = [("number of skipped iterations", "3d"), ("number of nan iterations", "3d")]
TOKENS = [SHARED[0], ("consumed tokens", "12d"), *SHARED[1:], ("curriculum seqlen", "5d")]
RATES = [("samples per second", ".3f"), ("tokens per gpu per second (tgs)", ".3f"), ("TFLOPs", ".2f")]
FIELDS = {
    "megatron-alpa c28bbd20, megatronapp 1bed2a72": [*SHARED, *LATER],
    "megatron-deepspeed-slurm 87476ced": [*TOKENS, *LATER],
    "megatron-deepspeed-alcf 68008999": [
        *TOKENS, ("random ltd reserved length", "5d"), ("actual seqlen", "5d"), *LATER, *RATES,
    ],
}  # fmt: skip


@pytest.mark.parametrize("tree", FIELDS)
@given(before=BEFORE, step=STEP, data=st.data())
def test_every_field_of_a_pinned_tree_s_line_is_read(tree: str, before: str, step: int, data: st.DataObject) -> None:
    told = {name: data.draw(st.integers(0, 10**6) if form.endswith("d") else FINITE) for name, form in FIELDS[tree]}
    fields = "".join(f" {name}: {told[name]:{form}} |" for name, form in FIELDS[tree])
    record = read_line("megatron", f"{before} iteration {step:8d}/{2 * step:8d} |{fields}")
    assert record is not None and record.step == step
    wanted = {name: float(format(told[name], form)) for name, form in FIELDS[tree]}
    assert record.values == wanted | {"iterations": 2 * step}


@given(BEFORE, STEP, FINITE, FINITE, FINITE)
def test_a_line_of_deepspeed_and_a_row_of_metaseq_whose_figures_are_texts_are_read(
    before: str, step: int, loss: float, seconds: float, rate: float
) -> None:
    line = f"{before}steps: {step} loss: {loss:0.4f} iter time (s): {seconds:0.3f} samples/sec: {rate:0.3f}"
    record = read_line("deepspeed", line)
    assert record is not None and record.step == step
    wanted = {"loss": loss, "iter time (s)": seconds, "samples/sec": rate}
    assert {name: record.values[name] for name in wanted} == pytest.approx(wanted, abs=1e-3)
    row = {"epoch": "1", "update": "0.25", "loss": f"{loss:g}", "wps": f"{rate:g}", "num_updates": str(step)}
    record = read_line("metaseq", f"{before}2026-11-22 17:00:00 | INFO | train_inner | {json.dumps(row)}")
    assert record is not None and record.step == step
    assert (record.values["loss"], record.values["wps"]) == pytest.approx((loss, rate), rel=1e-5)


@given(FINITE, st.booleans())
def test_a_row_of_alpa_is_read_under_both_numpys(tflops: float, new: bool) -> None:
    value = f"np.float64({tflops!r})" if new else repr(tflops)
    row = f"e2e\tp3.16\t1\t0\tgpt\tmegatron\t{{'tflops': {value}, 'parameter_count': 1.3}}\t1700000000.5"
    record = read_line("alpa", row)
    assert record is not None
    assert record.values == {"tflops": tflops, "parameter_count": 1.3}


# What stands in a log beside the records, and lines that are written to break a reader.
NOT_RECORDS = [
    "",
    " validation loss at iteration 6 | lm loss value: 5.870000E+00 | lm loss PPL: 3.54E+02 |",
    "time (ms) | forward-compute: 12.30 | backward-compute: 20.10",
    "2026-11-22 17:00:00 | INFO | train_inner | not json",
    "2026-11-22 17:00:00 | INFO | train_inner | [1]",
    '2026-11-22 17:00:00 | INFO | train_inner | {"loss": "1"}',
    '2026-11-22 17:00:00 | INFO | valid | {"loss": "1", "num_updates": "1"}',
    "# GPT",
    "steps: none",
    f" iteration {'9' * 5000}/ 5 | lm loss: 1 |",
    f"steps: {'9' * 5000} loss: 1.0 samples/sec: 1.0",
    "steps: 5 " * 100_000,
    f"a | b | train_inner | {'[' * 16000}",
    'a | b | train_inner | {"num_updates": "-3", "loss": "1"}',
    'a | b | train_inner | {"num_updates": "inf", "loss": "1"}',
    "{'tflops': " * 100_000,
    f"{{'tflops': 1, {'a' * 1_000_000}}}",
]


@pytest.mark.parametrize("form", training_log.FORMATS)
@pytest.mark.parametrize("line", NOT_RECORDS, ids=range(len(NOT_RECORDS)))
def test_what_is_no_record_is_none_and_costs_no_time(form: str, line: str) -> None:
    began = time.process_time()
    assert read(form, line) == []
    assert time.process_time() - began < 2, "a pattern that looks at each part again takes a minute for some"


@pytest.mark.parametrize("before", ["\x1b[K", "\x1b[2K\x1b[1G", "50%|#####     | 5/10\r", "\x1b[?25l", "\x1b[38;5;4m"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\x1b[0m\n"])
def test_what_a_terminal_is_told_hides_no_record(before: str, end: str) -> None:
    lines = {
        "megatron": megatron_line(4, 9, {"lm loss": 4.5}),
        "deepspeed": "steps: 4 loss: 4.5000 iter time (s): 0.100 samples/sec: 80.000",
        "metaseq": '2026-11-22 17:00:00 | INFO | train_inner | {"loss": "4.5", "num_updates": "4"}',
    }
    for form, line in lines.items():
        assert losses(form, [f"noise{end}{before}{line}{end}more"]) == [(4, 4.5)], form


@pytest.mark.parametrize(
    ("steps", "parts"),
    [([], [0]), ([1, 2, 3], [3]), ([1, 2, 3, 1, 2], [3, 2]), ([5, 6, 7, 6, 7], [3, 2]), ([0, 0], [2])],
)
def test_a_training_that_began_anew_is_told_apart(steps: list[int], parts: list[int]) -> None:
    assert [len(part) for part in runs([Record(step, {}) for step in steps])] == parts


@pytest.mark.parametrize(
    ("steps", "of", "says"),
    [
        ([1, 2, 3], 3, None),
        ([1, 2], 3, "its log ends at iteration 2 of 3"),
        ([1], 3, "its log ends at iteration 1 of 3"),
        ([100, 200], 250, None),
        ([100, 200], 300, "its log ends at iteration 200 of 300"),
        ([1, 2, 3, 1], 3, "its log ends at iteration 1 of 3"),
    ],
)
def test_a_log_that_ends_before_its_last_iteration_is_cut_short(steps: list[int], of: int, says: str | None) -> None:
    text = "\n".join(megatron_line(step, of, {"lm loss": 5.0}) for step in steps)
    assert cut_short(read("megatron", text)) == says


@pytest.mark.parametrize("form", training_log.FORMATS)
@given(text=st.text(max_size=300))
def test_no_text_breaks_a_reader(form: str, text: str) -> None:
    for record in read(form, text):
        assert record.step >= 0


@pytest.mark.parametrize(
    ("values", "steps", "says"),
    [
        ([5.0, 4.0, 3.0], 3, None),
        ([5.0, 4.0], 3, "the loss was reported for 2 of 3 steps"),
        ([], 6, "the loss was reported for 0 of 6 steps"),
        ([5.0, math.nan, 3.0], 3, "the loss is nan at step 2"),
        ([5.0, 4.0, math.inf], 3, "the loss is inf at step 3"),
        ([5.0, 5.0, 5.0], 3, "the loss did not fall: 5 at first, 5 at last"),
        ([5.0, 4.0, 6.0, 6.0, 6.0], 5, "the loss did not fall: 5 at first, 6 at last"),
    ],
)
def test_losses_are_judged(values: list[float], steps: int, says: str | None) -> None:
    assert judge(list(enumerate(values, 1)), steps) == says


def test_losses_of_all_ranks_are_in_the_order_of_steps_and_none_hides_that_another_is_nan() -> None:
    def line(step: int, loss: float) -> str:
        return megatron_line(step, 3, {"lm loss": loss})

    first = "\n".join(["noise", line(2, 4.0), megatron_line(3, 3, {}, skipped=1)])
    assert losses("megatron", [first, line(1, 5.0)]) == [(1, 5.0), (2, 4.0)]
    texts, later = [f"{line(1, loss)}\n" for loss in (math.nan, 5.0)], line(2, 4.0)
    for each in ([*texts, later], [*texts[::-1], later], ["".join(texts) + later]):
        assert judge(losses("megatron", each), 2) == "the loss is nan at step 1"
