"""One iteration as the document's sheet: a row a rank, in order; a forward pass has one column, a backward pass two."""

from __future__ import annotations

import datetime
import io
from collections.abc import Sequence
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.text import grouped
from envbuild.trace.picture import colour
from envbuild.trace.pipeline import Pipeline
from envbuild.trace.records import BACKWARD, Span

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
    """The file's bytes. Raises EnvbuildError `trace-wide` (exit 2) for more passes than a sheet has columns for."""
    import xlsxwriter

    found = places(spans, pipeline)
    widest = max(column for _, column in found) + 2
    if widest > _COLUMNS:
        raise EnvbuildError(
            "trace-wide",
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
