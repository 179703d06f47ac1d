"""What is made of a trace: the share of the bubble, the Chrome trace and the sheet."""

from __future__ import annotations

import functools
import json
import resource
import sys
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.cli.trace_cmd import trace as command
from envbuild.cli.verbs import cli
from envbuild.trace.pipeline import Pipeline, iterations, pipeline_of, places
from envbuild.trace.records import BACKWARD, FORWARD, Span, read
from tests.support.programs import completed
from tests.trace.support import iteration, write

NAME = "trace_pipeline_2_model_chunks_1.txt"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [line for number in range(3) for line in iteration(12, 2, 4, begin=1700000000.0 + number)]
    write(tmp_path / NAME, lines)
    return tmp_path


def run(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["trace", *words, "--json"], standalone_mode=False)
    assert done.exception is None, done.exception
    assert command.name == "trace"
    data = json.loads(done.stdout)
    assert isinstance(data, dict)
    return data


def test_the_share_of_the_bubble_is_that_of_the_schedule(folder: Path) -> None:
    # All forward, then all backward: each rank computes m of m + p - 1 of the time, here 4 of 5.
    told = run(str(folder / NAME), "--output", str(folder / "out"))
    assert told["bubble"] == pytest.approx(1 - 4 / 5, abs=1e-4)
    assert (told["ranks"], told["stages"], told["passes"], told["broken"]) == (12, 2, 3 * 12 * 8, {})
    assert [each["number"] for each in told["iterations"]] == [1, 2, 3]
    file = write(folder / "out.log", iteration(8, 2, 4))
    told = run(str(file), "--pipeline", "2", "--chunks", "1", "--output", str(folder))
    assert (told["stages"], told["bubble"]) == (2, 0.2), "options say what the name does not"
    assert pipeline_of(read([file]), "out.log", 4, 1).stage(5) == 2


@pytest.mark.parametrize("inner", [(12.0, 15.0), (10.0, 12.0), (10.0, 20.0)])
def test_a_rank_that_is_busy_in_overlapping_passes_has_no_bubble(tmp_path: Path, inner: tuple[float, float]) -> None:
    # Spans are in the order of their ends: the inner pass comes before the one that began first.
    lines = ["0, 0, forward start, 10.0%", f"0, 1, forward start, {inner[0]}%", f"0, 1, forward finished, {inner[1]}%"]
    (found,) = iterations(read([write(tmp_path / NAME, [*lines, "0, 0, forward finished, 20.0%"])]))
    assert (found.seconds, found.bubble) == (10.0, 0.0)


def test_a_chrome_trace_has_every_pass_in_microseconds(folder: Path) -> None:
    run(str(folder / NAME), "--output", str(folder), "--format", "chrome")
    events = json.loads((folder / NAME).with_suffix(".json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == 3 * 12 * 8
    one = next(e for e in spans if (e["pid"], e["name"]) == (11, "backward 0-3"))
    assert (one["dur"], one["ts"] // 10**15) == (pytest.approx(20000, abs=1), 1)
    assert {"name": "process_name", "ph": "M", "pid": 11, "args": {"name": "rank 11, stage 1"}} in events
    assert sum(event["ph"] == "i" for event in events) == 3 * 12 * 3
    assert not list(folder.glob("*.xlsx"))


def cells(path: Path) -> dict[str, str]:
    """Cell by place, and the merged ranges under `merged`."""
    with zipfile.ZipFile(path) as book:
        strings = [
            e.text or ""
            for e in ElementTree.fromstring(book.read("xl/sharedStrings.xml")).iter()
            if e.tag.endswith("}t")
        ]
        page = ElementTree.fromstring(book.read("xl/worksheets/sheet1.xml"))
    found = {c.attrib["r"]: strings[int(c[0].text or 0)] for c in page.iter() if c.tag.endswith("}c") and len(c)}
    return found | {"merged": " ".join(e.attrib["ref"] for e in page.iter() if e.tag.endswith("}mergeCell"))}


def test_the_sheet_has_forward_in_one_column_and_backward_after_the_next_stage(tmp_path: Path) -> None:
    write(tmp_path / NAME, iteration(2, 2, 2))
    run(str(tmp_path / NAME), "--output", str(tmp_path), "--format", "xlsx")
    found = cells((tmp_path / NAME).with_suffix(".xlsx"))
    # Stage 0: forward in A and B, backward where that of stage 1 (D:E, F:G) has ended.
    assert sorted(found.pop("merged").split()) == ["D2:E2", "F1:G1", "F2:G2", "H1:I1"]
    assert found == {
        "A1": "0-0", "B1": "0-1", "F1": "0-0", "H1": "0-1", "B2": "0-0", "C2": "0-1", "D2": "0-0", "F2": "0-1",
    }  # fmt: skip


def test_the_same_trace_gives_the_same_files(folder: Path) -> None:
    for name in ("a", "b"):
        run(str(folder / NAME), "--output", str(folder / name))
    files = [sorted((folder / name).iterdir()) for name in ("a", "b")]
    assert [path.name for path in files[0]] == [NAME.replace(".txt", end) for end in (".json", ".xlsx")]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 6))
def test_indices_and_cells_are_one_to_one_and_backward_reverses_the_chunks(
    stages: int, chunks: int, groups: int
) -> None:
    pipeline = Pipeline(stages, stages, chunks)
    count = stages * chunks * groups
    forward = [pipeline.cell(FORWARD, index) for index in range(count)]
    assert sorted(forward) == [(chunk, batch) for chunk in range(chunks) for batch in range(stages * groups)]
    assert [(chunks - 1 - chunk, batch) for chunk, batch in forward] == [
        pipeline.cell(BACKWARD, i) for i in range(count)
    ]


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 6))
def test_no_two_passes_of_a_rank_share_a_column(stages: int, microbatches: int) -> None:
    spans = [
        Span(rank, 1, direction, index, float(direction * 100 + index), float(direction * 100 + index + 1))
        for rank in range(stages) for direction in (FORWARD, BACKWARD) for index in range(microbatches)
    ]  # fmt: skip
    taken = set()
    for span, column in places(spans, Pipeline(stages, stages, 1)):
        for each in range(column, column + 1 + span.direction):
            assert (span.rank, each) not in taken
            taken.add((span.rank, each))


def test_the_last_whole_iteration_is_drawn(tmp_path: Path) -> None:
    lines = [line for number in range(3) for line in iteration(2, 2, 2, begin=5.0 + number)]
    write(tmp_path / NAME, lines[:-8])
    trace = read([tmp_path / NAME])
    from envbuild.trace.pipeline import shown

    chosen, _ = shown(trace, iterations(trace), None)
    assert (chosen.number, chosen.spans) == (2, 8)


@pytest.mark.parametrize(
    ("name", "lines", "more"),
    [
        ("t.txt", ["nothing"], ()),
        ("t.txt", iteration(2, 2, 2), ()),
        (NAME, iteration(3, 3, 2), ()),
        (NAME, iteration(2, 2, 2), ("--iteration", "7")),
    ],
)
def test_what_cannot_be_shown_is_refused_and_leaves_no_file(
    tmp_path: Path, name: str, lines: list[str], more: tuple[str, ...]
) -> None:
    write(tmp_path / name, lines)
    words = ["trace", str(tmp_path / name), "--output", str(tmp_path), *more]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert getattr(done.exception, "code", None) == "trace-unusable"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_sheet_that_is_too_wide_is_refused_or_without_a_format_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envbuild.trace.pipeline._COLUMNS", 20)
    words = ["trace", str(write(tmp_path / NAME, iteration(2, 2, 7))), "--output", str(tmp_path)]
    done = CliRunner().invoke(cli, [*words, "--format", "xlsx"], standalone_mode=False)
    assert getattr(done.exception, "code", None) == "trace-unusable"
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.exception is None
    assert "warning: an iteration of 24 columns does not fit into a sheet" in done.stderr
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".txt"]


def test_a_trace_is_never_written_over(tmp_path: Path) -> None:
    file = write(tmp_path / "trace_pipeline_2_model_chunks_1.json", iteration(2, 2, 2))
    before = file.read_bytes()
    done = CliRunner().invoke(cli, ["trace", str(file), "--output", str(tmp_path)])
    assert (done.exit_code, file.read_bytes()) == (2, before)


@pytest.mark.parametrize("form", ["chrome", "xlsx"])
def test_a_disk_that_fills_leaves_no_part_of_a_file(folder: Path, form: str) -> None:
    # Python would leave half a file of byte code for each module that nobody has imported before.
    start = [sys.executable, "-B", "-m", "envbuild", "trace"]
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1000, 1000))
    done = completed([*start, str(folder / NAME), "--output", str(folder), "--format", form], preexec_fn=limit)
    assert (done.returncode, done.stderr.partition("]")[0]) == (2, "error[output-unwritable"), done.stderr
    assert [path.name for path in folder.iterdir()] == [NAME]


@pytest.mark.parametrize(("form", "output"), [("chrome", "/proc/self"), ("xlsx", f"{NAME}/below")])
def test_a_folder_that_cannot_be_made_or_takes_no_file_is_said(folder: Path, form: str, output: str) -> None:
    words = ["trace", str(folder / NAME), "--output", str(folder / output), "--format", form]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert getattr(done.exception, "code", done.exception) == "output-unwritable"
