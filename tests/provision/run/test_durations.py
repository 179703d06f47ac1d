"""How long steps took before, and what the next plan makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.model.plan import NodePlan, Plan, Step
from envbuild.model.resolution import Resolution
from envbuild.provision.run import durations
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


def row(
    took: float, again: float, *, variant: str = DIGEST, prefix: str = "/prefix", host: str = "gpu1.example"
) -> Any:
    return {
        "host": host, "prefix": prefix, "variant": variant, "step": "install", "planned": 100.0, "took": took,
        "again": again, "stack": "s",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        ([], 50.0),
        ([row(40.0, 40.0, variant="2" * 64)], 20.0),
        ([row(640.0, 40.0, variant="2" * 64)], 20.0),
        ([row(40.0, 40.0, variant="2" * 64), row(140.0, 140.0, variant="3" * 64)], 45.0),
        ([{**row(60.0, 60.0, variant="2" * 64), "planned": 2.0}], 500.0),
        ([{**row(60.0, 60.0, variant="2" * 64), "planned": 0.0}], 50.0),
        ([row(40.0, 10.0, variant="2" * 64), row(30.0, 10.0, prefix="/other")], 30.0),
        ([row(30.0, 12.0), row(40.0, 10.0, variant="2" * 64)], 12.0),
        ([row(30.0, 12.0, host="gpu2.example")], 50.0),
    ],
    ids=[
        "nothing known",
        "by how much the host was off",
        "less what was compiled",
        "over all its rows",
        "ten times at most",
        "never estimated",
        "the same elsewhere",
        "the same here",
        "another host",
    ],
)
def test_a_plan_says_what_is_known_best(rows: list[Any], seconds: float) -> None:
    told = durations.as_before(plan_of(50.0), FACTS, rows)
    assert [step.seconds for step in told.nodes[0].steps] == [seconds, 15.0]
    same = any(each["variant"] == DIGEST and each["host"] == "gpu1.example" for each in rows)
    assert [step.measured for step in told.nodes[0].steps] == [same, False], "what was scaled is an estimate"
    assert durations.as_before(plan_of(50.0), {}, rows) == plan_of(50.0)


def finished(step: str, seconds: float | None, status: str = "changed", **parts: float) -> Event:
    data = {"step": step, "status": status, "seconds": seconds, **({"parts": parts} if parts else {})}
    return Event(1, "2026-01-31T12:00:00Z", "step-finished", "gpu1", data)


def test_what_ended_well_is_learnt_and_what_the_store_has_is_not_compiled_again(tmp_path: Path) -> None:
    planned = {("gpu1", "install"): 100.0, ("gpu1", "smoke"): 15.0}
    events = [finished("install", 130.0, wheels=120.0, packages=5.0), finished("smoke", 4.0, "failed")]
    durations.learn(tmp_path, plan_of(100.0), FACTS, planned, events)
    assert durations.read(tmp_path) == [row(130.0, 10.0)]
    durations.learn(tmp_path, plan_of(10.0), FACTS, planned, [finished("install", 11.0), finished("deliver", None)])
    assert durations.read(tmp_path) == [row(131.0, 11.0)], "what compiling took is still known"
    durations.learn(tmp_path, plan_of(10.0), FACTS, planned, [finished("install", 51.0, wheels=41.0)])
    assert durations.read(tmp_path) == [row(51.0, 10.0)]


@pytest.mark.parametrize(
    ("rows", "seconds", "compiling"),
    [
        ([row(640.0, 10.0)], 10.0, 630.0),
        ([row(640.0, 10.0, prefix="/other")], 640.0, 0.0),
        ([row(640.0, 100.0, variant="2" * 64)], 50.0, 540.0),
        ([{**row(640.0, 100.0, variant="2" * 64), "stack": "another"}], 50.0, 0.0),
        ([row(640.0, 10.0), row(90.0, 10.0, variant="2" * 64)], 10.0, 630.0),
        ([row(640.0, 100.0, variant="2" * 64), row(100.0, 100.0, variant="3" * 64)], 50.0, 540.0),
    ],
    ids=["the store may be empty", "another store", "another commit", "another stack", "its own", "the newest"],
)
def test_a_plan_says_beside_it_what_compiling_took_before(rows: list[Any], seconds: float, compiling: float) -> None:
    step = durations.as_before(plan_of(50.0), FACTS, rows).nodes[0].steps[0]
    assert (step.seconds, step.compiling) == (seconds, compiling)


def test_of_a_file_only_rows_that_can_be_reckoned_with_are_read(tmp_path: Path) -> None:
    good: Any = row(30.0, 12.0)
    bad = [{**good, key: value} for key in ("planned", "took", "again") for value in (float("nan"), 10**400, -1.0, "x")]
    no_estimate = {key: value for key, value in good.items() if key != "planned"}
    (tmp_path / durations.NAME).write_text(json.dumps([*bad, no_estimate, 7, good]))
    assert durations.read(tmp_path) == [good]
    (tmp_path / durations.NAME).write_text("[" * 100_000)
    assert durations.read(tmp_path) == []


def test_more_compiling_than_the_step_took_is_no_time_at_all_and_a_strange_number_ends_nothing(tmp_path: Path) -> None:
    events = [finished("install", 3.0, wheels=5.0)]
    durations.learn(tmp_path, plan_of(1.0), FACTS, {("gpu1", "install"): 100.0}, events)
    durations.learn(tmp_path, plan_of(1.0), FACTS, {}, [finished("install", 3.0, wheels=10**400)])
    assert durations.read(tmp_path) == [row(3.0, 0.0)]


def test_a_file_that_is_not_ours_or_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / durations.NAME).write_text('[{"host": 3}]')
    assert durations.read(tmp_path) == []
    no_folder = tmp_path / durations.NAME
    durations.learn(no_folder, plan_of(1.0), FACTS, {}, [finished("install", 1.0)])
    assert durations.read(no_folder) == []


def test_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "MOST", 3)
    for number in range(5):
        durations.learn(tmp_path, plan_of(1.0, f"{number}" * 64), FACTS, {}, [finished("install", 1.0)])
    assert [each["variant"][0] for each in durations.read(tmp_path)] == ["2", "3", "4"]
