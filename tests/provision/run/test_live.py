"""What a live display says of a run: events folded into rows, and how long they will still take."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.provision.run import live

NOW = 1000.0


def shown(*events: dict[str, Any]) -> live.View:
    view = live.View()
    for event in events:
        live.fold(view, event)
    return view


def step(
    at: float, state: str = "started", node: str = "gpu1", name: str = "install", text: str = ""
) -> dict[str, Any]:
    return {"t": at, "kind": "step", "node": node, "step": name, "state": state, "text": text}


def now(at: float, node: str = "gpu1", **told: Any) -> dict[str, Any]:
    return {"t": at, "kind": "now", "node": node, "step": "install", **told}


def planned(*measured: str, **seconds: float) -> dict[str, Any]:
    return {"t": 0.0, "kind": "planned", "seconds": {"gpu1": seconds}, "measured": {"gpu1": list(measured)}}


def compiled(at: float, done: int, what: str = "apex: adam.cu") -> dict[str, Any]:
    return now(at, phase="compiling apex", what=what, done=done, total=60, unit="files")


def test_a_compile_is_told_with_its_count_its_file_and_the_time_by_its_pace() -> None:
    view = shown(planned(install=30.0), step(900.0), compiled(900.0, 0), compiled(950.0, 10))
    work, time = "compiling apex 10 of 60 files: apex: adam.cu", "1 min 00 s, about 4 min 00 s left"
    assert live.rows(view, 960.0) == [f"gpu1: building the environment – {work} ({time})"]


def test_a_first_file_that_was_quick_says_nothing_of_the_pace_of_the_others() -> None:
    told = [compiled(900.0, 0), compiled(901.0, 1), compiled(921.0, 2), compiled(941.0, 3)]
    for until in (3, 4):
        row = shown(planned(install=30.0), step(900.0), *told[:until]).rows["gpu1"]
        done = until - 1
        assert live.left(row, row.counted) == pytest.approx(20.0 * (60 - done))


def test_between_two_files_the_time_left_only_falls() -> None:
    view = shown(step(900.0), compiled(900.0, 0), compiled(950.0, 10))
    found = [live.left(view.rows["gpu1"], 950.0 + seconds) for seconds in range(0, 300, 10)]
    known = [value for value in found if value is not None]
    assert known == sorted(known, reverse=True) and len(known) == 25


def test_bytes_are_told_with_their_rate() -> None:
    fetch = {"phase": "fetching 61 packages", "unit": "bytes", "total": 4_400_000_000}
    view = shown(step(900.0), now(900.0, done=0, **fetch), now(910.0, done=850_000_000, **fetch))
    assert live.doing(view.rows["gpu1"], 910.0) == "fetching 61 packages 850 MB of about 4.4 GB (85 MB/s)"


def test_steps_that_come_count_to_what_is_left_and_those_that_were_do_not() -> None:
    plan = planned(toolchain=3.0, install=60.0, smoke=15.0, activate=5.0)
    view = shown(plan, step(900.0, name="toolchain"), step(910.0, "changed", name="toolchain"), step(910.0))
    assert live.left(view.rows["gpu1"], 930.0) == 40.0 + 15.0 + 5.0


@pytest.mark.parametrize(
    ("measured", "left", "over"),
    [
        ((), "estimated", "estimated"),
        (("install", "smoke"), "about", "before"),
        (("install",), "estimated", "before"),
        (("smoke",), "estimated", "estimated"),
    ],
)
def test_a_time_says_whether_it_was_measured_and_that_it_was_too_short(
    measured: tuple[str, ...], left: str, over: str
) -> None:
    view = shown(planned(*measured, install=20.0, smoke=15.0), step(900.0))
    assert live.timing(view.rows["gpu1"], 905.0) == f"5 s, {left} 30 s left"
    assert live.timing(view.rows["gpu1"], 930.0) == f"30 s, longer than {over}"


def test_files_that_are_compiled_for_the_first_time_get_no_time_before_their_pace_is_known() -> None:
    view = shown(planned(install=15.0, smoke=5.0), step(900.0), compiled(901.0, 0))
    row = view.rows["gpu1"]
    assert live.timing(row, 903.0) == "3 s, time left not known yet"
    assert live.timing(row, 930.0) == "30 s, time left not known yet", "longer than estimated says nothing new"
    live.fold(view, compiled(931.0, 1))
    assert live.timing(row, 931.0) == "31 s, about 29 min 35 s left"


def test_a_first_compile_has_no_time_left_before_its_files_are_known_either() -> None:
    view = shown(planned(install=30.0), step(900.0), now(901.0, phase="compiling apex"))
    assert live.timing(view.rows["gpu1"], 902.0) == "2 s, time left not known yet"
    live.fold(view, now(903.0, phase="fetching and unpacking", what="1 package"))
    assert live.timing(view.rows["gpu1"], 904.0) == "4 s, estimated 26 s left"


def test_files_that_were_compiled_before_have_the_time_of_the_plan_at_once() -> None:
    view = shown(planned("install", "smoke", install=600.0, smoke=5.0), step(900.0), compiled(901.0, 0))
    assert live.timing(view.rows["gpu1"], 903.0) == "3 s, about 10 min 02 s left"


def test_what_compiling_took_before_is_left_once_something_is_compiled() -> None:
    plan = {**planned("smoke", install=15.0, smoke=5.0), "compiling": {"gpu1": {"install": 600.0}}}
    view = shown(plan, step(900.0), now(901.0, phase="fetching sources"))
    assert live.timing(view.rows["gpu1"], 902.0) == "2 s, estimated 18 s left"
    live.fold(view, now(903.0, phase="compiling apex"))
    assert live.timing(view.rows["gpu1"], 903.0) == "3 s, estimated 10 min 17 s left"
    live.fold(view, compiled(904.0, 0))
    assert live.timing(view.rows["gpu1"], 910.0) == "10 s, estimated 10 min 10 s left"
    live.fold(view, now(1505.0, phase="installing source apex"))
    assert live.timing(view.rows["gpu1"], 1505.0) == "10 min 05 s, estimated 15 s left"


@pytest.mark.parametrize(
    ("measured", "took", "left"),
    [((), 140.0, 80.0), ((), 35.0, 40.0), (("install",), 140.0, 40.0), (("smoke", "activate"), 140.0, 40.0)],
    ids=["a busy machine", "a fast one", "as slow as it was known to be", "known"],
)
def test_a_machine_that_was_slower_than_estimated_is_so_for_what_comes(
    measured: tuple[str, ...], took: float, left: float
) -> None:
    begun = shown(planned(*measured, install=70.0, smoke=28.0, activate=12.0), step(900.0))
    for event in (step(900.0 + took, "changed"), step(2000.0, name="smoke")):
        live.fold(begun, event)
    assert live.left(begun.rows["gpu1"], 2000.0) == left


def test_what_was_compiled_makes_nothing_else_slow() -> None:
    begun = shown(planned(install=70.0, smoke=28.0), step(900.0), compiled(901.0, 0), step(1900.0, "changed"))
    live.fold(begun, step(2000.0, name="smoke"))
    assert live.left(begun.rows["gpu1"], 2000.0) == 28.0


def test_the_pace_of_a_compile_counts_the_more_the_more_is_compiled() -> None:
    view = shown(planned("install", install=1000.0), step(900.0), compiled(900.0, 0))
    # 850, 700 and 550 s are left by the plan, 450, 300 and 150 s by a pace of 10 s a file.
    for done, left in ((15, 750.0), (30, 500.0), (45, 250.0)):
        live.fold(view, compiled(900.0 + 10 * done, done))
        assert live.left(view.rows["gpu1"], 900.0 + 10 * done) == left


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


def test_what_a_node_tells_of_a_step_that_has_ended_is_left_out() -> None:
    view = shown(step(0.0), step(4.0, "changed"), compiled(5.0, 3))
    assert view.rows["gpu1"].now == {}


def test_a_fleet_folds_into_classes_with_the_slowest_of_each() -> None:
    events = [step(900.0, node=f"gpu{number:02d}") for number in range(30)]
    events += [step(930.0, "changed", node=f"gpu{number:02d}") for number in range(20)]
    events += [now(900.0, node=f"gpu{number}", phase="compiling", done=0, total=9, unit="files") for number in (20, 21)]
    events += [now(960.0, node="gpu20", phase="compiling", done=6, total=9, unit="files")]
    events += [now(960.0, node="gpu21", phase="compiling", done=3, total=9, unit="files")]
    assert live.rows(shown(*events), 960.0) == [
        "20 nodes: building the environment changed",
        "8 nodes: building the environment; slowest gpu22 (1 min 00 s)",
        "2 nodes: building the environment; slowest gpu21: compiling 3 of 9 files (1 min 00 s, about 2 min 00 s left)",
    ]


def test_a_class_of_one_is_one_node() -> None:
    events = [step(900.0, node=f"gpu{number:02d}") for number in range(22)] + [step(930.0, "changed", node="gpu07")]
    assert live.rows(shown(*events), 930.0)[1] == "1 node: building the environment changed"


def test_a_screen_has_the_step_and_below_what_it_does_and_the_run_at_the_end() -> None:
    view = shown(planned(install=400.0), step(900.0), compiled(900.0, 0), compiled(950.0, 10))
    first, *rest = live.screen(view, 950.0, 24)
    assert first[2:] == "gpu1  building the environment, 50 s, about 5 min 33 s left"
    assert rest == [
        "    compiling apex 10 of 60 files: apex: adam.cu",
        "  15 min 50 s in all",
    ]


def test_a_screen_is_never_higher_than_the_terminal() -> None:
    view = shown(*(step(900.0, node=f"gpu{number:02d}") for number in range(15)))
    assert len(live.screen(view, 901.0, 40)) == 16
    assert len(live.screen(view, 901.0, 24)) == 2
    assert live.screen(shown({"t": 5.0, "kind": "stage", "text": "asking 3 nodes"}), 7.0, 24)[0].endswith(
        "asking 3 nodes (2 s in all)"
    )


def test_a_pace_beyond_all_numbers_is_shown_and_ends_nothing() -> None:
    told = {"phase": "compiling", "total": 1e15, "unit": "files"}
    view = shown(step(900.0), now(900.0, done=0, **told), now(910.0, done=5e-324, **told))
    assert "about 277777 h" in live.screen(view, 911.0, 24)[0]


def test_durations_are_written_as_people_say_them() -> None:
    assert [live.duration(value) for value in (-1, 45.4, 60, 3599, 3900)] == [
        "0 s", "45 s", "1 min 00 s", "59 min 59 s", "1 h 05 min",
    ]  # fmt: skip
