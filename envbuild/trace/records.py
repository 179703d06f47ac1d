"""Reading the lines of a trace, among all else that a run prints; what is broken is counted and named by its line.

A record is `RANK, INDEX, forward start, SECONDS%` (or `forward finished`, `backward start`, `backward finished`),
`RANK, CHUNK, can reduce, SECONDS%`, or `rank RANK iteration starts at timestamp SECONDS%` (or `ends`). Ranks write into
one pipe: several records can stand in one line, and a line can be torn.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

FORWARD, BACKWARD = 0, 1
DIRECTIONS = ("forward", "backward")
_AT = rb"([0-9]{1,11}\.[0-9]{1,9})%"
_RECORD = re.compile(
    rb"(?<![0-9.])(?:([0-9]{1,6}), ([0-9]{1,9}), (forward start|forward finished|backward start|backward finished|"
    rb"can reduce)|rank ([0-9]{1,6}) (iteration starts|iteration ends) at timestamp),? " + _AT
)
# What only a record has: where it is left over, the line is broken.
_LEFT = re.compile(
    rb"(?:forward|backward) (?:start|finished)|can reduce, |iteration (?:starts|ends) at|^[0-9]+, [0-9]+, |"
    rb"^rank [0-9]+ iteration"
)
_NAMED = 20  # broken lines that are named


@dataclass(frozen=True, slots=True)
class Span:
    """One forward or backward pass of a rank; times in seconds since the epoch, iterations from 1."""

    rank: int
    iteration: int
    direction: int
    index: int
    start: float
    end: float


@dataclass(slots=True)
class Trace:
    """All spans, as columns (a trace of 100 MB has a million), marks, and what was broken.

    `marks`: (seconds, rank, text). `broken`: how many lines by kind of fault; `lines`: the first of them, each as
    `FILE:LINE: fault`. `others`: lines without any record, which a log is full of.
    """

    ranks: array[int] = field(default_factory=lambda: array("i"))
    iterations: array[int] = field(default_factory=lambda: array("i"))
    directions: array[int] = field(default_factory=lambda: array("b"))
    indices: array[int] = field(default_factory=lambda: array("i"))
    starts: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))
    marks: list[tuple[float, int, str]] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    others: int = 0

    def __len__(self) -> int:
        """How many spans."""
        return len(self.ranks)

    def spans(self, iteration: int) -> Iterator[Span]:
        """Those of one iteration, in the order in which they ended."""
        rows = zip(self.ranks, self.iterations, self.directions, self.indices, self.starts, self.ends, strict=True)
        return (Span(*row) for row in rows if row[1] == iteration)

    def fault(self, where: str, says: str) -> None:
        """Count a broken line, and name it while there are few."""
        self.broken[says] += 1
        if len(self.lines) < _NAMED:
            self.lines.append(f"{where}: {says}")


@dataclass(slots=True)
class _Reader:
    """`open`: when a pass began, by rank, direction and index; `seen`: in which iteration, the last time.

    `current`: the iteration of a rank; `within`: whether its last mark began one, for ranks that write marks.
    """

    trace: Trace
    open: dict[tuple[int, int, int], float] = field(default_factory=dict)
    seen: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    current: Counter[int] = field(default_factory=Counter)
    within: dict[int, bool] = field(default_factory=dict)

    def line(self, text: bytes, name: str, number: int) -> None:
        """All records of a line."""
        match = _RECORD.match(text)
        if match is not None and match.end() == len(text) - 1:  # most lines: one record and the line's end
            self._record(match, name, number)
            return
        at, whole = 0, text.rstrip()
        for match in _RECORD.finditer(whole):
            if match.start() != at and _LEFT.search(whole[at : match.start()]):
                self.trace.fault(f"{name}:{number}", "a broken record")
            self._record(match, name, number)
            at = match.end()
        if at == len(whole) and at:
            return
        if _LEFT.search(whole[at:]):
            self.trace.fault(f"{name}:{number}", "a broken record")
        elif not at:
            self.trace.others += 1

    def _record(self, match: re.Match[bytes], name: str, number: int) -> None:
        rank_, index_, what, marked, event, seconds = match.groups()
        at = float(seconds)
        if what is None:
            rank = int(marked)
            starts = event == b"iteration starts"
            if starts or self.within.get(rank) is False:  # the second end in a row: its start is lost
                self.current[rank] += 1
            self.within[rank] = starts
            self.trace.marks.append((at, rank, f"iteration {self.current[rank]} {event[10:].decode()}"))
        elif what == b"can reduce":
            self.trace.marks.append((at, int(rank_), f"model chunk {int(index_)} can reduce"))
        else:
            key = (int(rank_), BACKWARD if what[0] == 98 else FORWARD, int(index_))
            if what[-1] == 116:  # start
                if key in self.open:
                    self.trace.fault(f"{name}:{number}", "a pass starts twice")
                self._begins(key)
                self.open[key] = at
            else:
                self._finished(key, at, name, number)

    def _begins(self, key: tuple[int, int, int]) -> None:
        """The pass belongs to the rank's iteration or, where a mark is lost or none is written, begins the next one."""
        rank, _, index = key
        within = self.within.get(rank)
        # Without marks: an index comes once in an iteration in each direction, forward before backward.
        if within is False or (
            within is None and max(self.seen[key], self.seen[rank, BACKWARD, index]) == self.current[rank]
        ):
            self.current[rank] += 1
        if within is False:
            self.within[rank] = True
        self.seen[key] = self.current[rank]

    def _finished(self, key: tuple[int, int, int], end: float, name: str, number: int) -> None:
        start = self.open.pop(key, None)
        if start is not None and self.seen[key] != self.current[key[0]]:
            start = None  # an earlier iteration's
        if start is None:
            self._begins(key)
        if start is None or end < start:
            says = "a pass ends before it starts" if start is not None else "a pass ends that did not start"
            self.trace.fault(f"{name}:{number}", says)
            return
        trace = self.trace
        trace.ranks.append(key[0])
        trace.iterations.append(self.seen[key])
        trace.directions.append(key[1])
        trace.indices.append(key[2])
        trace.starts.append(start)
        trace.ends.append(end)


def read(files: Iterable[Path]) -> Trace:
    """The trace in some files, one after another: those of all nodes of a run. Nothing in them makes it fail."""
    reader = _Reader(Trace())
    for path in files:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                reader.line(line, path.name, number)
    for rank, direction, index in sorted(reader.open):
        reader.trace.fault(f"rank {rank}, {DIRECTIONS[direction]} {index}", "a pass does not end")
    return reader.trace
