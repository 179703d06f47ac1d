"""The seconds that a trial has, and what a trial is called that used them up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.model.launch import Bench
from envbuild.provision import strategy
from envbuild.provision.own_run import Log, OwnRun
from envbuild.report.claimed import Gpus
from envbuild.strategy.search import Search
from tests.launch.support import place
from tests.strategy.support import H200, searched

SPEED = "Values: {'tflops': np.float64(%s), 'parameter_count': 1.3}\n"


class Runs:
    """Runs that take and print what they are told, on a clock of their own."""

    def __init__(self, folder: Path, runs: list[tuple[float, str]]) -> None:
        self.folder, self.left, self.now, self.deadlines = folder, iter(runs), 0.0, list[float]()

    def carry_out(self, _work: object, _told: object, asked: OwnRun, name: str) -> Log:
        seconds, text = next(self.left, (1.0, "NCCL error"))
        self.deadlines.append(asked.deadline)
        log = Log(self.folder / name)
        log.late = seconds > asked.deadline
        log.path.write_text("" if log.late and "memory" not in text else text)
        if log.late or "Values" not in text:
            log.failure = "timed out" if log.late else "it ended with exit code 1"
        self.now += min(seconds, asked.deadline)
        return log


@pytest.mark.parametrize(
    ("runs", "answers", "deadlines"),
    [
        ([(20.0, "CUDA out of memory"), (90.0, SPEED % 250.0)], ["out-of-memory", "measured"], [1000.0, 980.0]),
        ([(20.0, SPEED % 200.0), (90.0, SPEED % 250.0)], ["measured", "out-of-time"], [1000.0, 60.0]),
        ([(20.0, SPEED % 1.5e9), (20.0, SPEED % 250.0)], ["failed", "measured"], [1000.0, 980.0]),
        ([(20.0, SPEED % 200.0), (90.0, "CUDA out of memory")], ["measured", "out-of-memory"], [1000.0, 60.0]),
    ],
    ids=[
        "a short one that failed sets no limit", "three times as long as a measured one", "no GPU has such a figure",
        "waiting for a rank that is out of memory",
    ],
)  # fmt: skip
def test_a_trial_has_a_name_and_leaves_a_limit_for_the_next(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    runs: list[tuple[float, str]],
    answers: list[str],
    deadlines: list[float],
) -> None:
    bench = Bench.model_validate({"log": "alpa", "metric": "tflops", "unit": "TFLOP/s per GPU", "warmup": 0})
    fake = Runs(tmp_path, runs)
    monkeypatch.setattr(strategy, "carry_out", fake.carry_out)
    monkeypatch.setattr(strategy, "time", SimpleNamespace(monotonic=lambda: fake.now))
    four = searched(H200, 4, per_node=4)
    work: Any = SimpleNamespace(
        run=SimpleNamespace(path=tmp_path, id="now"), journal=SimpleNamespace(stage=lambda _: None),
        prepared=SimpleNamespace(stack=SimpleNamespace(name="timed")),
    )  # fmt: skip
    gpus = Gpus("NVIDIA H200", 4, H200, four.machine.tflops)
    asked: Any = SimpleNamespace(make=lambda *_: None, place=place(), activate="", budget=1000.0)
    trials = strategy._Trials(work, bench, asked, four, gpus, Search(four.machine, four.ranked()[: len(runs)]), [])
    trials.run()
    assert ([trial.answer for trial in trials.search.trials], fake.deadlines) == (answers, deadlines)
