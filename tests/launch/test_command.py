"""The command, the log pattern and the claim of any stack file."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pydantic import ValidationError

from envbuild.errors import ExitCode
from envbuild.launch.recipes import launch
from envbuild.launch.request import samples
from envbuild.model.launch import Bench, Launch
from envbuild.model.stack import Stack
from envbuild.node.smoke.training_log import read_line
from tests.launch.support import ENVIRONMENT, OUTPUT, place
from tests.support.fails import fails

WORDS = ["torchrun", "--nnodes={nodes}", "--node-rank={rank}", "--rdzv-endpoint={address}:{port}", "train.py", "{size}"]


def stack(**words: Any) -> Stack:
    data = {"source": "mine", "arguments": WORDS, "defaults": {"size": "small"}, **words}
    source = {"name": "mine", "path": "./"}
    profiles = {"exact": {"python": ["3.11"], "sources": [source]}}
    return Stack.from_plain({"name": "mine", "summary": "Mine", "profiles": profiles, "reference": {"launch": data}})


def made(nodes: int, given: Stack, **values: str) -> Launch:
    return launch(given, "exact", values, place(nodes, 4))


def test_d99_a_command_with_a_rank_runs_on_every_node_and_waits_for_the_first() -> None:
    first, second = made(2, stack(), size="big").commands
    assert (first.node, first.wait_for, second.node) == (0, None, 1)
    assert second.argv == (
        "torchrun", "--nnodes=2", "--node-rank=1", "--rdzv-endpoint=10.0.0.1:29500", "train.py", "big",
    )  # fmt: skip
    assert second.wait_for is not None and second.directory == f"{ENVIRONMENT}/src/mine"


def test_d99_a_command_without_a_rank_starts_all_nodes_and_without_a_source_runs_where_it_writes() -> None:
    given = stack(
        source=None, arguments=["srun", "-N{nodes}", "python3", "train.py", {"when": "size", "words": ["-s"]}]
    )
    (command,) = made(2, given).commands
    assert command.argv == ("srun", "-N2", "python3", "train.py", "-s") and command.directory == OUTPUT
    assert made(2, given, size="").commands[0].argv[-1] == "train.py"


def test_a_parameter_of_a_command_may_have_every_name_that_the_place_does_not_fill() -> None:
    given = stack(arguments=["train.py", "{image}"], defaults={"image": "small"})
    assert made(1, given).commands[0].argv == ("train.py", "small")
    assert made(1, given, image="big").commands[0].argv == ("train.py", "big")
    with fails("launch-parameter", ExitCode.USAGE) as caught:
        made(1, given, imgae="big")
    assert "image" in caught.value.hint


@pytest.mark.parametrize(
    ("words", "nodes", "code"),
    [
        ({"arguments": ["python3", "train.py"]}, 2, "launch-does-not-fit"),
        ({"source": "other"}, 1, "launch-data"),
        ({"arguments": ["mpirun", "--hostfile", "{hostfile}"]}, 1, "launch-data"),
    ],
)
def test_d99_what_cannot_start_is_refused(words: dict[str, Any], nodes: int, code: str) -> None:
    with fails(code) as caught:
        made(nodes, stack(**words))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"arguments": ["python3", "{sise}"]}, "{sise} is neither a parameter"),
        ({"defaults": {"port": "1", "size": "x"}}, "{port} is filled in by envbuild"),
        ({"arguments": []}, "a command has its `arguments`"),
        ({"recipe": "alpa", "source": None}, "needs `source`"),
    ],
)
def test_d99_a_stack_file_with_a_mistake_in_its_command_is_refused(words: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        stack(**words)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "line", "values"),
    [
        ("iter {step}: loss {loss}, time {ms}ms", "iter 20: loss 3.1, time 12.5ms", (20, {"loss": 3.1, "ms": 12.5})),
        ("step: {step} ... tps: {tps}", "[rank0]: step:  7  loss: nan  tps: 12,345  mfu: 1%", (7, {"tps": 12345})),
        ("{speed} it/s", "10%|#  | 3/30 [00:01, 1e-2 it/s]", (0, {"speed": 0.01})),
        ("iter {step}: loss {loss}", "iter x: loss 3", None),
        ("step {step}/{iterations} loss {loss}", "STEP 3/9 LOSS inf", (3, {"loss": float("inf")})),
    ],
)  # fmt: skip
def test_d99_a_pattern_reads_the_figures_of_a_line(pattern: str, line: str, values: Any) -> None:
    record = read_line(pattern, line)
    told = (
        None
        if record is None
        else (record.step, {k: v for k, v in record.values.items() if k not in ("step", "iterations")})
    )
    assert told == values


@pytest.mark.parametrize(
    ("log", "metric", "told"),
    [
        ("loss {loss}", "speed", "has no {speed}"),
        ("{a}{b}", "a", "no text between them"),
        ("{a} {a}", "a", "same name"),
        ("{a} {B}", "a", "a name in braces"),
        ("wandb", "a", "one of the formats"),
    ],
)  # fmt: skip
def test_d99_a_pattern_that_says_nothing_or_two_things_is_refused(log: str, metric: str, told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Bench(log=log, metric=metric, unit="x")
    assert told in str(caught.value)


@pytest.mark.parametrize("noise", ["1", " ", "1,", "1.", "step 1 ", "-", "1e", "loss "])
def test_d74_d99_a_pattern_costs_a_line_its_length(noise: str) -> None:
    began = time.process_time()
    for pattern in ("{a} x", "step {a} ... loss {b} ... {c} x", "loss {a}, {b} x"):
        assert read_line(pattern, noise * (16000 // len(noise))) is None
    assert time.process_time() - began < 2


def test_d99_a_run_that_ends_before_its_last_iteration_is_no_result() -> None:
    bench = Bench(log="it {step}/{iterations} {speed} t/s", metric="speed", unit="t/s")
    assert samples(bench, "it 1/3 5 t/s\nit 2/3 5 t/s\n").wrong == "its log ends at iteration 2 of 3"
