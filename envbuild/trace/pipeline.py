"""What a trace says of its pipeline: which stage a rank is, which microbatch an index, and the share of the bubble."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from envbuild.errors import EnvbuildError
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
    said = _NAME.search(name)
    stages = stages or (int(said[1]) if said else None)
    chunks = chunks or (int(said[2]) if said else None)
    ranks = max(trace.ranks) + 1
    if not stages or not chunks or ranks % stages:
        why = "neither an option nor the name of the file says them"
        raise EnvbuildError(
            "trace-unusable",
            f"it is not known how {ranks} ranks make a pipeline",
            why=f"{stages} stages do not divide them" if stages and chunks else why,
            hint="--pipeline STAGES --chunks CHUNKS, as the run was started with",
        )
    return Pipeline(ranks, stages, chunks)


def iterations(trace: Trace) -> list[Iteration]:
    """Every iteration in order. Passes of a rank that overlap count once."""
    rank_of = [rank for rank, _, _ in trace.kinds]
    rows: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # by iteration and rank
    for row, key in enumerate(zip(trace.iterations, map(rank_of.__getitem__, trace.which), strict=True)):
        rows[key].append(row)
    ranks: defaultdict[int, list[tuple[float, float, float]]] = defaultdict(list)  # first, last and busy of each
    for (number, _), found in rows.items():
        times = sorted((trace.starts[row], trace.ends[row]) for row in found)
        until, busy = times[0][0], 0.0
        for start, end in times:
            if end > until:
                busy += end - max(start, until)
                until = end
        ranks[number].append((times[0][0], until, busy))
    spans = Counter(trace.iterations)
    out = []
    for number, each in sorted(ranks.items()):
        seconds = max(last for _, last, _ in each) - min(first for first, _, _ in each)
        share = 1 - sum(busy for _, _, busy in each) / (seconds * len(trace.ranks)) if seconds else 0.0
        out.append(Iteration(number, spans[number], seconds, max(0.0, share)))
    return out


def bubble(found: Iterable[Iteration]) -> float:
    """The median share, without the first iteration where there are others: it warms up."""
    shares = [each.bubble for each in found]
    return statistics.median(shares[1:] or shares)


def shown(trace: Trace, found: list[Iteration], number: int | None) -> tuple[Iteration, list[Span]]:
    """One iteration and its spans by rank and time: the asked one, else the last that has as many as the fullest.

    Raises EnvbuildError `trace-unusable` (exit 2).
    """
    most = max(each.spans for each in found)
    wanted = number if number is not None else next(each.number for each in reversed(found) if each.spans == most)
    chosen = next((each for each in found if each.number == wanted), None)
    if chosen is None:
        raise EnvbuildError(
            "trace-unusable",
            f"there is no iteration {wanted}",
            hint=f"--iteration {found[0].number} to {found[-1].number}",
        )
    return chosen, sorted(trace.spans(wanted), key=lambda span: (span.rank, span.start, span.end))
