"""What nodes do is asked while they work; what a display says of it, and the time that steps took before."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.model.plan import NodePlan, Plan, Resolution, Step
from envbuild.provision.run import live, progress
from envbuild.provision.run.journal import Event
from envbuild.provision.run.progress import followed, tail_of
from tests.support.patience import until


def shown(*events: Event) -> live.View:
    view = live.View()
    for event in events:
        live.fold(view, event)
    return view


def event(at: float, kind: str, node: str | None = None, **data: Any) -> Event:
    return Event(1, datetime.fromtimestamp(at, UTC).isoformat(), kind, node, data)


def step(at: float, state: str = "started", node: str = "gpu1", name: str = "install", text: str = "") -> Event:
    if state == "started":
        return event(at, "step-started", node, step=name)
    return event(at, "step-finished", node, step=name, status=state, text=text)


def now(at: float, node: str = "gpu1", **told: Any) -> Event:
    return event(at, "now", node, step="install", **told)


def planned(**before: float) -> Event:
    return event(0.0, "planned", nothing_to_do=False, before={"gpu1": before})


def compiled(at: float, done: int, what: str = "apex: adam.cu") -> Event:
    return now(at, phase="compiling apex", what=what, done=done, total=60, unit="files")


def test_what_a_step_does_is_told_with_its_count_and_its_file_until_it_ends() -> None:
    view = shown(planned(), step(900.0), compiled(900.0, 0), compiled(950.0, 10))
    work = "compiling apex 10 of 60 files: apex: adam.cu"
    assert live.rows(view, 960.0) == [f"gpu1: building the environment – {work} (1 min 00 s)"]
    fetch = {"phase": "fetching 61 packages", "unit": "bytes", "total": 4_400_000_000}
    view = shown(step(900.0), now(900.0, done=0, **fetch), now(910.0, done=850_000_000, **fetch))
    assert live.doing(view.rows["gpu1"]) == "fetching 61 packages 850 MB of about 4.4 GB"
    assert shown(step(0.0), step(4.0, "changed"), compiled(5.0, 3)).rows["gpu1"].now == {}
    assert [live.duration(value) for value in (-1, 45.4, 60, 3599, 3900)] == [
        "0 s", "45 s", "1 min 00 s", "59 min 59 s", "1 h 05 min",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "early", "late"),
    [
        ({}, "5 s", "30 s"),
        ({"install": 20.0}, "5 s, about 15 s left", "30 s, longer than before"),
        ({"smoke": 20.0}, "5 s", "30 s"),
    ],
)
def test_a_time_left_is_said_where_this_machine_has_done_the_step_before_and_else_none(
    before: dict[str, float], early: str, late: str
) -> None:
    row = shown(planned(**before), step(900.0)).rows["gpu1"]
    assert (live.timing(row, 905.0), live.timing(row, 930.0)) == (early, late)


def test_only_another_step_phase_or_unit_is_a_change() -> None:
    view = live.View()
    events = [
        step(1.0),
        compiled(1.0, 0),
        compiled(2.0, 1),
        now(3.0, phase="importing"),
        step(5.0, "failed", text="no"),
    ]
    assert [live.fold(view, event) for event in events] == [True, True, False, True, True]
    assert live.rows(view, 5.0) == ["gpu1: building the environment failed (4 s): no"]


def test_d102_the_age_of_the_last_word_is_told_until_there_is_another() -> None:
    view = shown(step(900.0), compiled(910.0, 10))
    silent = now(990.0, phase="compiling apex", what="apex: adam.cu", done=10, total=60, unit="files", silent=60.0)
    assert live.fold(view, silent) and not live.fold(view, silent)
    (line,) = live.rows(view, 995.0)
    assert line.endswith("apex: adam.cu (1 min 35 s, no word for 1 min 00 s: the network, or the node)")
    assert live.fold(view, compiled(996.0, 10))
    assert live.rows(view, 1000.0)[0].endswith("(1 min 40 s)")


def test_d102_a_node_that_does_not_answer_is_told_of_and_one_that_does_nothing_new_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "SILENCE", 0.2)
    line = '{"seq": 1, "host": "h", "step": "install", "phase": "compiling"}\n'
    told, answers = list[Any](), {"lost": line, "quiet": line, "new": "\n"}

    def ask(node: str) -> str:
        if answers[node] == "down":
            raise OSError
        return answers[node]

    def heard(node: str, words: Any) -> None:
        told.append((node, "silent" in words))
        answers["lost"] = line if ("lost", True) in told else "down"

    with progress.followed({node: partial(ask, node) for node in answers}, heard, 0.02):
        until(lambda: told.count(("lost", False)) > 1)
    assert [each for each in told if each[0] == "lost"][:3] == [("lost", False), ("lost", True), ("lost", False)]
    assert [each for each in told if each[0] != "lost"] == [("quiet", False)]


def test_a_fleet_folds_into_classes_with_the_slowest_of_each() -> None:
    events = [step(900.0, node=f"gpu{number:02d}") for number in range(30)]
    changed = [step(930.0, "changed", node=f"gpu{number:02d}") for number in range(20)]
    assert live.rows(shown(*events, changed[0]), 930.0)[1] == "1 node: building the environment changed"
    events += changed
    events += [now(900.0, node=f"gpu{number}", phase="compiling", done=0, total=9, unit="files") for number in (20, 21)]
    events += [now(960.0, node="gpu20", phase="compiling", done=6, total=9, unit="files")]
    events += [now(960.0, node="gpu21", phase="compiling", done=3, total=9, unit="files")]
    assert live.rows(shown(*events), 960.0) == [
        "20 nodes: building the environment changed",
        "8 nodes: building the environment; slowest gpu22 (1 min 00 s)",
        "2 nodes: building the environment; slowest gpu20: compiling 6 of 9 files (1 min 00 s)",
    ]


def test_a_screen_has_the_step_below_it_what_it_does_and_no_more_lines_than_the_terminal() -> None:
    view = shown(planned(install=400.0), step(900.0), compiled(900.0, 0), compiled(950.0, 10))
    first, *rest = live.screen(view, 950.0, 24)
    assert first[2:] == "gpu1  building the environment, 50 s, about 5 min 50 s left"
    assert rest == ["    compiling apex 10 of 60 files: apex: adam.cu", "  15 min 50 s in all"]
    view = shown(*(step(900.0, node=f"gpu{number:02d}") for number in range(15)))
    assert [len(live.screen(view, 901.0, height)) for height in (40, 24)] == [16, 2]
    (line,) = live.screen(shown(event(5.0, "stage", text="asking 3 nodes")), 7.0, 24)
    assert line.endswith("asking 3 nodes (2 s in all)")


def test_nodes_are_asked_until_the_end_and_what_is_not_new_is_not_told() -> None:
    answers = {"gpu1": ["", "torn {", '{"seq": "1.1", "step": "install", "phase": "a", "odd": 1}\n'] + ["again"] * 3}
    lines = '{"seq": "1.1", "phase": "a"}\n{"seq": "1.2", "phase": "b", "done": 3, "what": 7}\n'
    seen, asked = [], threading.Event()

    def first() -> str:
        if not answers["gpu1"]:
            asked.set()
            return lines
        said = answers["gpu1"].pop(0)
        if said == "":
            raise OSError("the connection is gone")
        return said

    with followed({"gpu1": first}, lambda node, what: seen.append((node, dict(what))), 0.01):
        assert asked.wait(60)
        while len(seen) < 2:
            asked.wait(0.01)
    assert seen == [("gpu1", {"step": "install", "phase": "a"}), ("gpu1", {"phase": "b", "done": 3})]


def test_what_a_node_tells_is_one_line_each_and_numbers_that_can_be_shown() -> None:
    numbers = ("1e400", "NaN", "-1", "1" + "0" * 400)
    lines = [
        f'{{"seq": {at}, "host": {at}.0, "done": {number}, "total": {number}}}' for at, number in enumerate(numbers)
    ]
    forged = {"host": "h", "seq": 9, "phase": "compiling", "done": 3, "what": "a.cu\ngpu2: smoke test ok" + "x" * 999}
    shown: list[dict[str, Any]] = []
    seen = threading.Event()

    def now(_: str, told: Mapping[str, Any]) -> None:
        shown.append(dict(told))
        seen.set() if "host" in told else None

    with followed({"gpu1": lambda: "\n".join([*lines, json.dumps(forged)])}, now, 0.01):
        assert seen.wait(60)
    *odd, last = shown
    assert odd == [{}] * 4
    assert (last["phase"], last["done"]) == ("compiling", 3)
    assert last["what"].startswith("a.cu gpu2: smoke test okxxx") and len(last["what"]) == 200


def test_the_end_of_a_file_is_read_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * 5000 + "end")
    assert tail_of(tmp_path / "long").endswith("xend") and len(tail_of(tmp_path / "long")) == progress.TAIL
    assert tail_of(tmp_path / "missing") == ""


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


def test_what_ended_well_is_learnt_less_what_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [finished("install", 130.0, wheels=120.0, packages=5.0), finished("smoke", 4.0, "failed")]
    progress.learn(tmp_path, plan_of(100.0), FACTS, events)
    assert progress.read(tmp_path) == [row(10.0)]
    progress.learn(tmp_path, plan_of(10.0), FACTS, [finished("install", 11.0), finished("deliver", None)])
    assert progress.read(tmp_path) == [row(11.0)]
    for wheels in (5.0, 10**400):  # more compiling than the step took is no time at all; a strange number ends nothing
        progress.learn(tmp_path, plan_of(1.0), FACTS, [finished("install", 3.0, wheels=wheels)])
        assert progress.read(tmp_path) == [row(0.0)]
    monkeypatch.setattr(progress, "MOST", 3)
    for number in range(5):
        progress.learn(tmp_path, plan_of(1.0, f"{number}" * 64), FACTS, [finished("install", 1.0)])
    assert [each["variant"][0] for each in progress.read(tmp_path)] == ["2", "3", "4"]


def test_of_a_file_only_rows_that_can_be_reckoned_with_are_read(tmp_path: Path) -> None:
    good: Any = row(30.0)
    bad = [{**good, "seconds": value} for value in (float("nan"), 10**400, -1.0, "x")]
    file = tmp_path / progress.NAME
    file.write_text(json.dumps([*bad, 7, {"host": 3}, good]))
    assert progress.read(tmp_path) == [good]
    file.write_text("[" * 100_000)
    assert progress.read(tmp_path) == []
    progress.learn(file, plan_of(1.0), FACTS, [finished("install", 1.0)])  # where no folder is
    assert progress.read(file) == []
