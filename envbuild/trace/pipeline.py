"""A trace as a pipeline: its stages and microbatches, the share of the bubble; a Chrome trace, and the sheet.

The sheet is the document's of one iteration: a row a rank, in order; a forward pass has one column, a backward two.
"""

from __future__ import annotations

import datetime
import io
import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.text import grouped
from envbuild.trace.records import BACKWARD, DIRECTIONS, Span, Trace

# The name that the document gives a trace.
_NAME = re.compile(r"trace_pipeline_([0-9]{1,5})_model_chunks_([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`ranks` GPUs in `stages` stages, each with `chunks` chunks of the model."""

    ranks: int
    stages: int
    chunks: int

    def stage(self, rank: int) -> int:
        """The stage of a rank: Megatron's stages are farthest apart."""
        return rank // (self.ranks // self.stages)

    def after(self, rank: int) -> int | None:
        """The rank of the next stage that it hands its output to; None for the last stage."""
        following = rank + self.ranks // self.stages
        return following if following < self.ranks else None

    def cell(self, direction: int, index: int) -> tuple[int, int]:
        """Chunk and microbatch of the index that the schedule counts by; backward takes the chunks in reverse."""
        chunk = index % (self.chunks * self.stages) // self.stages
        microbatch = index // (self.chunks * self.stages) * self.stages + index % self.stages
        return self.chunks - 1 - chunk if direction == BACKWARD else chunk, microbatch

    def name(self, direction: int, index: int) -> str:
        """`forward 0-5`: direction, chunk, microbatch."""
        chunk, microbatch = self.cell(direction, index)
        return f"{DIRECTIONS[direction]} {chunk}-{microbatch}"


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration: seconds from its first pass to its last, and the part of it in which ranks computed nothing."""

    number: int
    spans: int
    seconds: float
    bubble: float


def pipeline_of(trace: Trace, name: str, stages: int | None, chunks: int | None) -> Pipeline:
    """Stages and chunks as they are given, else as the file's name says. Raises EnvbuildError, all exit 2:

    `trace-unusable` for no span, `trace-unusable` where neither says them or they do not divide the ranks.
    """
    if not len(trace):
        raise EnvbuildError(
            "trace-unusable",
            f"{name} has no trace of a pipeline",
            why=f"{trace.others} lines without a record, {sum(trace.broken.values())} broken ones",
            hint="it needs the log of a MegatronAPP run: lines like `0, 3, forward start, 1700000000.25%`",
        )
    match = _NAME.search(name)
    stages = stages or (int(match[1]) if match else None)
    chunks = chunks or (int(match[2]) if match else None)
    ranks = max(trace.ranks) + 1
    if not stages or not chunks or ranks % stages:
        why = "neither an option nor the name of the file says them"
        raise EnvbuildError(
            "trace-unusable",
            f"the pipeline of {ranks} ranks is unknown",
            why=f"{stages} stages do not divide them" if stages and chunks else why,
            hint="add --pipeline STAGES --chunks CHUNKS, as in the run",
        )
    return Pipeline(ranks, stages, chunks)


def iterations(trace: Trace) -> list[Iteration]:
    """Every iteration in order. Passes of a rank that overlap count once."""
    rank_of = [rank for rank, _, _ in trace.kinds]
    rows: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # by iteration and rank
    for row, key in enumerate(zip(trace.iterations, map(rank_of.__getitem__, trace.which), strict=True)):
        rows[key].append(row)
    ranks: defaultdict[int, list[tuple[float, float, float]]] = defaultdict(list)  # first, last and busy of each
    for (number, _), ids in rows.items():
        times = sorted((trace.starts[row], trace.ends[row]) for row in ids)
        until, busy = times[0][0], 0.0
        for start, end in times:
            if end > until:
                busy += end - max(start, until)
                until = end
        ranks[number].append((times[0][0], until, busy))
    spans = Counter(trace.iterations)
    out = []
    for number, passes in sorted(ranks.items()):
        seconds = max(last for _, last, _ in passes) - min(first for first, _, _ in passes)
        share = 1 - sum(busy for _, _, busy in passes) / (seconds * len(trace.ranks)) if seconds else 0.0
        out.append(Iteration(number, spans[number], seconds, max(0.0, share)))
    return out


def bubble(iterations: Iterable[Iteration]) -> float:
    """The median share, without the first iteration where there are others: it warms up."""
    shares = [iteration.bubble for iteration in iterations]
    return statistics.median(shares[1:] or shares)


def shown(trace: Trace, iterations: list[Iteration], number: int | None) -> tuple[Iteration, list[Span]]:
    """One iteration and its spans by rank and time: the asked one, else the last that has as many as the fullest.

    Raises EnvbuildError `trace-unusable` (exit 2).
    """
    if number is None:
        most = max(iteration.spans for iteration in iterations)
        fitting = [iteration for iteration in iterations if iteration.spans == most]
    else:
        fitting = [iteration for iteration in iterations if iteration.number == number]
    if not fitting:
        raise EnvbuildError(
            "trace-unusable",
            f"there is no iteration {number}",
            hint=f"--iteration {iterations[0].number} to {iterations[-1].number}",
        )
    return fitting[-1], sorted(trace.spans(fitting[-1].number), key=lambda span: (span.rank, span.start, span.end))


def chrome(trace: Trace, pipeline: Pipeline) -> Iterator[str]:
    """The parts of the document, one event a line."""
    yield '{"displayTimeUnit": "ms", "traceEvents": [\n'
    names = [
        {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}, stage {pipeline.stage(rank)}"}}
        for rank in sorted(trace.ranks)
    ]
    yield ",\n".join(map(json.dumps, names))
    # Not through `json`: there may be millions, and these words need no escape.
    kinds = [
        (
            f',\n{{"name": "{pipeline.name(direction, index)}", "cat": "{DIRECTIONS[direction]}", "ph": "X", "ts": ',
            f', "pid": {rank}, "tid": 0}}',
        )
        for rank, direction, index in trace.kinds
    ]
    for which, start, end in zip(trace.which, trace.starts, trace.ends, strict=True):
        (before, after), begin = kinds[which], int(start * 1e6)
        yield f'{before}{begin}, "dur": {int(end * 1e6) - begin}{after}'
    for at, rank, text in trace.marks:
        yield f',\n{{"name": "{text}", "ph": "i", "s": "p", "ts": {int(at * 1e6)}, "pid": {rank}, "tid": 0}}'
    yield "\n]}\n"


def colour(span: Span, pipeline: Pipeline) -> str:
    """Blue or green, darker with the chunk, as the document's sheet has them; RRGGBB."""
    shade = max(0, 255 - 40 * pipeline.cell(span.direction, span.index)[0])
    return f"00{shade:02X}00" if span.direction == BACKWARD else f"0080{shade:02X}"


_COLUMNS = 16384  # of a sheet
# The same file from the same trace, wherever and whenever it is made.
_CREATED = datetime.datetime(1980, 1, 1, tzinfo=datetime.UTC)


def places(spans: Sequence[Span], pipeline: Pipeline) -> list[tuple[Span, int]]:
    """The first column of each pass, from 0. A backward pass begins after that of the next stage has ended."""
    by_rank = grouped(spans, lambda span: span.rank)
    ended: dict[tuple[int, tuple[int, int]], int] = {}
    out = []
    for rank in sorted(by_rank, reverse=True):
        column = pipeline.stage(rank)
        for span in by_rank[rank]:
            cell, following = pipeline.cell(span.direction, span.index), pipeline.after(rank)
            if span.direction == BACKWARD:
                column = max(column, ended.get((following, cell), 0) if following is not None else 0)
                ended[rank, cell] = column + 2
            out.append((span, column))
            column += 2 if span.direction == BACKWARD else 1
    return out


def sheet(spans: Sequence[Span], pipeline: Pipeline) -> bytes:
    """The file's bytes. Raises EnvbuildError `trace-unusable` (exit 2) for more passes than a sheet has columns for."""
    import xlsxwriter

    placed = places(spans, pipeline)
    widest = max(column for _, column in placed) + 2
    if widest > _COLUMNS:
        raise EnvbuildError(
            "trace-unusable",
            f"an iteration of {widest} columns does not fit into a sheet",
            why=f"a sheet has {_COLUMNS}",
            hint="use --format chrome",
        )
    rows = {rank: row for row, rank in enumerate(sorted({span.rank for span in spans}))}
    # In memory: xlsxwriter's own error of a file that it cannot write is no OSError.
    made = io.BytesIO()
    with xlsxwriter.Workbook(made, {"in_memory": True}) as book:
        book.set_properties({"created": _CREATED})
        page, formats = book.add_worksheet(), dict[str, Any]()
        for span, column in placed:
            fill = colour(span, pipeline)
            if fill not in formats:
                formats[fill] = book.add_format({"bg_color": f"#{fill}", "align": "center", "valign": "vcenter"})
            chunk, microbatch = pipeline.cell(span.direction, span.index)
            row, text = rows[span.rank], f"{chunk}-{microbatch}"
            if span.direction == BACKWARD:
                page.merge_range(row, column, row, column + 1, text, formats[fill])
            else:
                page.write_string(row, column, text, formats[fill])
        page.set_column(0, widest - 1, 4)
    return made.getvalue()
