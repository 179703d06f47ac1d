"""A trace as Chrome and Perfetto read it: JSON, one process a rank, microseconds since the epoch."""

from __future__ import annotations

import json
from collections.abc import Iterator

from envbuild.trace.pipeline import Pipeline
from envbuild.trace.records import DIRECTIONS, Trace


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
