"""Reading traces: what stands between and inside of records never makes it fail, and nothing is lost silently."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild.trace import records
from envbuild.trace.records import BACKWARD, FORWARD, Trace, read
from tests.trace.support import iteration, write

TMP = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def of(path: Path, data: bytes) -> Trace:
    path.write_bytes(data)
    return read([path])


def test_every_pass_of_every_rank_and_iteration_is_read(tmp_path: Path) -> None:
    lines = [line for number in range(3) for line in iteration(16, 4, 8, begin=1700000000.0 + number)]
    trace = read([write(tmp_path / "t.txt", ["[EXEC] torchrun", *lines, " iteration 3/ 20 | lm loss: 9.1"])])
    assert (len(trace), trace.broken, trace.others) == (3 * 16 * 8 * 2, {}, 2)
    assert (trace.ranks, set(trace.iterations)) == (set(range(16)), {1, 2, 3})
    assert len(trace.marks) == 3 * 16 * 3
    span = next(span for span in trace.spans(2) if (span.rank, span.direction, span.index) == (13, BACKWARD, 7))
    assert span.end - span.start == pytest.approx(0.02)


@given(
    noise=st.lists(
        st.sampled_from(["", "log text", "0: ", "\x1b[36m[EXEC]\x1b[0m ", "naïve "]), min_size=16, max_size=16
    ),
    ends=st.lists(st.sampled_from(["\n", "", "\r\n", " \n\n"]), min_size=16, max_size=16),
)
@TMP
def test_records_are_found_however_lines_are_glued_or_prefixed(
    tmp_path: Path, noise: list[str], ends: list[str]
) -> None:
    lines = iteration(2, 2, 2, marks=False)
    text = "".join(before + line + end for before, line, end in zip(noise, lines, ends, strict=False))
    trace = of(tmp_path / "t.txt", text.encode())
    whole = read([write(tmp_path / "u.txt", lines[: len(noise)])])
    assert (trace.starts, trace.ends, trace.which) == (whole.starts, whole.ends, whole.which)
    assert trace.broken == whole.broken, "nothing of it is broken but passes that the cut left open"


@given(st.binary(max_size=400))
@TMP
def test_no_bytes_make_it_fail(tmp_path: Path, data: bytes) -> None:
    trace = of(tmp_path / "t.txt", data)
    assert len(trace) <= data.count(b"finished")


@given(st.data())
@TMP
def test_a_trace_with_a_piece_cut_out_or_doubled_is_read_and_its_fault_is_named(
    tmp_path: Path, data: st.DataObject
) -> None:
    whole = "\n".join(iteration(2, 2, 3)).encode() + b"\n"
    begin = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(begin + 1, min(len(whole), begin + 120)))
    trace = of(
        tmp_path / "t.txt", whole[:begin] + data.draw(st.sampled_from([b"", b"\n", whole[begin:end] * 2])) + whole[end:]
    )
    assert all(span.end >= span.start for span in trace.spans(1))
    assert len(trace.lines) == min(20, sum(trace.broken.values()))


@given(
    st.lists(
        st.sampled_from([*iteration(2, 2, 2), "0, 1, forward st", "", "a log", "0, 0, can reduce, "]), max_size=30
    ),
    st.lists(st.sampled_from(["", "\n", "\n", "\r\n", "\n\n"]), min_size=30, max_size=30),
    st.integers(1, 300),
)
@TMP
def test_how_much_is_read_at_once_makes_no_difference(
    tmp_path: Path, lines: list[str], ends: list[str], size: int
) -> None:
    data = "".join(line + end for line, end in zip(lines, ends, strict=False)).encode()
    whole = of(tmp_path / "t.txt", data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_AT_ONCE", size)
        assert of(tmp_path / "t.txt", data) == whole


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["0, 1, forward start, 5.0%", "0, 1, forward fin"], "t.txt:2: a broken record"),
        (["0, 1, forward start, 5.00, 2, forward start, 5.1%"], "t.txt:1: a broken record"),
        (["0, 1, forward start, nan%"], "t.txt:1: a broken record"),
        (["0, 1, forward finished, 5.0%"], "t.txt:1: a pass ends that did not start"),
        (["0, 1, forward start, 5.0%", "0, 1, forward finished, 4.0%"], "t.txt:2: a pass ends before it starts"),
        (["0, 1, backward start, 5.0%", "0, 1, backward start, 5.1%"], "t.txt:2: a pass starts twice"),
        (["3, 1, backward start, 5.0%"], "rank 3, backward 1: a pass does not end"),
        (["rank 2 iteration starts at timestamp soon%"], "t.txt:1: a broken record"),
        (["rank 0 is ready", "rank 0 iteration sta"], "t.txt:2: a broken record"),
    ],
)
def test_what_is_broken_is_named_by_its_line(tmp_path: Path, lines: list[str], fault: str) -> None:
    trace = read([write(tmp_path / "t.txt", lines)])
    assert fault in trace.lines
    assert trace.others == lines.count("rank 0 is ready")


def test_without_marks_iterations_are_counted_by_the_index(tmp_path: Path) -> None:
    lines = [line for n in range(2) for line in iteration(2, 2, 2, begin=5.0 + n, marks=False)]
    trace = read([write(tmp_path / "t.txt", lines)])
    assert [len(list(trace.spans(number))) for number in (1, 2, 3)] == [8, 8, 0]
    assert {span.direction for span in trace.spans(2)} == {FORWARD, BACKWARD}


def test_files_of_several_nodes_are_one_trace_and_of_many_faults_twenty_are_named(tmp_path: Path) -> None:
    lines = iteration(4, 4, 2)
    parts = [[line for line in lines if line.removeprefix("rank ")[0] in ranks] for ranks in ("01", "23")]
    files = [write(tmp_path / f"{number}.txt", part) for number, part in enumerate(parts)]
    assert sorted(read(files).starts) == sorted(read([write(tmp_path / "all.txt", lines)]).starts)
    broken = read([write(tmp_path / "broken.txt", ["0, 1, forward finished, 5.0%"] * 500)])
    assert (len(broken.lines), sum(broken.broken.values())) == (20, 500)


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize(
    "torn",
    [
        ("0, 0, forward start",),
        ("0, 0, forward finished",),
        ("0, 0, forward start", "0, 0, forward finished"),
        ("1, 2, backward finished",),
        ("1, 1, backward start", "1, 1, backward finished"),
        ("rank 0 iteration starts",),
        ("rank 0 iteration ends",),
    ],
)
def test_a_torn_line_costs_its_own_pass_and_shifts_no_later_iteration(
    tmp_path: Path, marks: bool, torn: tuple[str, ...]
) -> None:
    parts = [iteration(2, 2, 3, begin=1700000000.0 + number, marks=marks) for number in range(5)]
    parts[1] = [line[: len(line) - 25] if line.startswith(torn) else line for line in parts[1]]
    trace = read([write(tmp_path / "t.txt", [line for part in parts for line in part])])
    for number in (1, 2, 3, 4, 5):
        spans = list(trace.spans(number))
        assert {int(span.start - 1700000000.0) for span in spans} == {number - 1}, number
        lost = len({line.rsplit(" ", 1)[0] for line in torn if line[0] != "r"}) if number == 2 else 0
        assert len(spans) == 12 - lost, number
