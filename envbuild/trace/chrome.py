"""A trace as Chrome and Perfetto read it: JSON, one process a rank, microseconds since the epoch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache

from envbuild.trace.pipeline import Pipeline
from envbuild.trace.records import DIRECTIONS, Trace


def chrome(trace: Trace, pipeline: Pipeline) -> Iterator[str]:
    """The parts of the document, one event a line."""
    yield '{"displayTimeUnit": "ms", "traceEvents": [\n'
    names = [
        {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}, stage {pipeline.stage(rank)}"}}
        for rank in sorted(set(trace.ranks))
    ]
    yield ",\n".join(map(json.dumps, names))
    name = cache(pipeline.name)
    rows = zip(trace.ranks, trace.directions, trace.indices, trace.starts, trace.ends, strict=True)
    for rank, direction, index, start, end in rows:
        begin = int(start * 1e6)
        # Not through `json`: there may be millions, and these words need no escape.
        yield (
            f',\n{{"name": "{name(direction, index)}", "cat": "{DIRECTIONS[direction]}", "ph": "X", "ts": {begin}, '
            f'"dur": {int(end * 1e6) - begin}, "pid": {rank}, "tid": 0}}'
        )
    for at, rank, text in trace.marks:
        yield f',\n{{"name": "{text}", "ph": "i", "s": "p", "ts": {int(at * 1e6)}, "pid": {rank}, "tid": 0}}'
    yield "\n]}\n"
