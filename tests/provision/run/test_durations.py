"""How long steps took before, and what the next plan makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.model.plan import NodePlan, Plan, Resolution, Step
from envbuild.provision.run import progress
from envbuild.provision.run.journal import Event

FACTS: Any = {"gpu1": SimpleNamespace(hostname="gpu1.example", prefix=SimpleNamespace(path="/prefix"))}
DIGEST = "1" * 64


def plan_of(install: float, digest: str = DIGEST) -> Plan:
    steps = (
        Step(kind="install", what="w", why="w", seconds=install),
        Step(kind="smoke", what="w", why="w", seconds=15.0),
    )
    resolution = Resolution(node="gpu1", stack="s", profile="exact", variant_id="v", decisions=(), candidates=())
    node = NodePlan(
        node="gpu1", environment="/prefix/envs/e", variant_digest=digest, python="/python", steps=steps,
        resolution=resolution,
    )  # fmt: skip
    return Plan(stack="s", profile="exact", target="lab", nodes=(node,))


def row(seconds: float, *, variant: str = DIGEST, prefix: str = "/prefix", host: str = "gpu1.example") -> Any:
    return {"host": host, "prefix": prefix, "variant": variant, "step": "install", "seconds": seconds}


@pytest.mark.parametrize(
    ("rows", "before"),
    [
        ([], None),
        ([row(40.0, variant="2" * 64)], None),
        ([row(30.0, prefix="/other")], None),
        ([row(30.0, host="gpu2.example")], None),
        ([row(30.0), row(12.0)], 12.0),
    ],
    ids=["nothing known", "another variant", "another prefix", "another host", "the same here"],
)
def test_a_plan_says_what_was_measured_on_this_very_machine_alone(rows: list[Any], before: float | None) -> None:
    told = progress.as_before(plan_of(50.0), FACTS, rows)
    assert [(step.seconds, step.before) for step in told.nodes[0].steps] == [(50.0, before), (15.0, None)]
    assert progress.as_before(plan_of(50.0), {}, rows) == plan_of(50.0)


def finished(step: str, seconds: float | None, status: str = "changed", **parts: float) -> Event:
    data = {"step": step, "status": status, "seconds": seconds, **({"parts": parts} if parts else {})}
    return Event(1, "2026-01-31T12:00:00Z", "step-finished", "gpu1", data)


def test_what_ended_well_is_learnt_less_what_was_compiled(tmp_path: Path) -> None:
    events = [finished("install", 130.0, wheels=120.0, packages=5.0), finished("smoke", 4.0, "failed")]
    progress.learn(tmp_path, plan_of(100.0), FACTS, events)
    assert progress.read(tmp_path) == [row(10.0)]
    progress.learn(tmp_path, plan_of(10.0), FACTS, [finished("install", 11.0), finished("deliver", None)])
    assert progress.read(tmp_path) == [row(11.0)]


def test_of_a_file_only_rows_that_can_be_reckoned_with_are_read(tmp_path: Path) -> None:
    good: Any = row(30.0)
    bad = [{**good, "seconds": value} for value in (float("nan"), 10**400, -1.0, "x")]
    (tmp_path / progress.NAME).write_text(json.dumps([*bad, 7, good]))
    assert progress.read(tmp_path) == [good]
    (tmp_path / progress.NAME).write_text("[" * 100_000)
    assert progress.read(tmp_path) == []


def test_more_compiling_than_the_step_took_is_no_time_at_all_and_a_strange_number_ends_nothing(tmp_path: Path) -> None:
    progress.learn(tmp_path, plan_of(1.0), FACTS, [finished("install", 3.0, wheels=5.0)])
    progress.learn(tmp_path, plan_of(1.0), FACTS, [finished("install", 3.0, wheels=10**400)])
    assert progress.read(tmp_path) == [row(0.0)]


def test_a_file_that_is_not_ours_or_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / progress.NAME).write_text('[{"host": 3}]')
    assert progress.read(tmp_path) == []
    no_folder = tmp_path / progress.NAME
    progress.learn(no_folder, plan_of(1.0), FACTS, [finished("install", 1.0)])
    assert progress.read(no_folder) == []


def test_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MOST", 3)
    for number in range(5):
        progress.learn(tmp_path, plan_of(1.0, f"{number}" * 64), FACTS, [finished("install", 1.0)])
    assert [each["variant"][0] for each in progress.read(tmp_path)] == ["2", "3", "4"]
