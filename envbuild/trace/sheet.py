"""What a trace is written as: Chrome trace, SVG, and the document's sheet of one iteration.

The sheet has a row a rank, in order; a forward pass has one column, a backward pass two.
"""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.text import grouped
from envbuild.trace.pipeline import Iteration, Pipeline
from envbuild.trace.records import BACKWARD, DIRECTIONS, Span, Trace


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


_WIDTH, _ROW, _LEFT, _TOP = 1600, 20, 130, 34
_LABEL = 26  # a pass this wide has its name written in it


def svg(spans: Sequence[Span], iteration: Iteration, pipeline: Pipeline) -> Iterator[str]:
    """The parts of the picture; `spans` are those of the iteration, by rank."""
    ranks = sorted({span.rank for span in spans})
    row = {rank: number for number, rank in enumerate(ranks)}
    begin = min(span.start for span in spans)
    scale = (_WIDTH - _LEFT - 10) / (iteration.seconds or 1.0)
    height = _TOP + _ROW * len(ranks) + 24
    title = (
        f"iteration {iteration.number}: {iteration.seconds * 1000:.1f} ms, bubble {iteration.bubble:.1%} of all ranks"
    )
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11">\n<title>{title}</title>\n<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="10" y="20" font-size="14">{title}; forward blue, backward green</text>\n'
    )
    for rank in ranks:
        y = _TOP + _ROW * row[rank]
        yield f'<text x="10" y="{y + 14}">rank {rank}, stage {pipeline.stage(rank)}</text>\n'
        yield f'<rect x="{_LEFT}" y="{y + 1}" width="{_WIDTH - _LEFT - 10}" height="{_ROW - 2}" fill="#eeeeee"/>\n'
    for span in spans:
        x, width = _LEFT + (span.start - begin) * scale, (span.end - span.start) * scale
        y = _TOP + _ROW * row[span.rank]
        name = pipeline.name(span.direction, span.index)
        yield (
            f'<g><title>{name}: {(span.end - span.start) * 1000:.2f} ms</title><rect x="{x:.2f}" y="{y + 1}" '
            f'width="{max(width, 0.2):.2f}" height="{_ROW - 2}" fill="#{colour(span, pipeline)}"/>'
        )
        if width >= _LABEL:
            yield f'<text x="{x + 2:.2f}" y="{y + 14}" fill="#ffffff" font-size="9">{name.split()[1]}</text>'
        yield "</g>\n"
    end = f"{iteration.seconds * 1000:.1f} ms"
    yield f'<text x="{_LEFT}" y="{height - 8}">0 ms</text>\n'
    yield f'<text x="{_WIDTH - 10}" y="{height - 8}" text-anchor="end">{end}</text>\n</svg>\n'


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

    found = places(spans, pipeline)
    widest = max(column for _, column in found) + 2
    if widest > _COLUMNS:
        raise EnvbuildError(
            "trace-unusable",
            f"an iteration of {widest} columns has no place in a sheet",
            why=f"a sheet has {_COLUMNS}",
            hint="--format svg --format chrome",
        )
    rows = {rank: row for row, rank in enumerate(sorted({span.rank for span in spans}))}
    # In memory: xlsxwriter's own error of a file that it cannot write is no OSError.
    made = io.BytesIO()
    with xlsxwriter.Workbook(made, {"in_memory": True}) as book:
        book.set_properties({"created": _CREATED})
        page, formats = book.add_worksheet(), dict[str, Any]()
        for span, column in found:
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
