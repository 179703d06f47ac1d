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

from envbuild.regular_file import opened, unreadable

FORWARD, BACKWARD = 0, 1
DIRECTIONS = ("forward", "backward")
# What stands before the time, which says all but the time and is the same in every iteration; and the time.
_RECORD = re.compile(
    rb"(?<![0-9.])([0-9]{1,6}, [0-9]{1,9}, (?:forward start|forward finished|backward start|backward finished|"
    rb"can reduce)|rank [0-9]{1,6} iteration (?:starts|ends) at timestamp),? ([0-9]{1,11}\.[0-9]{1,9})%"
)
# What only a record has: where it is left over, the line is broken.
_LEFT = re.compile(
    rb"(?:forward|backward) (?:start|finished)|can reduce, |iteration (?:starts|ends) at|^[0-9]+, [0-9]+, |"
    rb"^rank [0-9]+ iteration"
)
_NAMED = 20  # broken lines that are named
_AT_ONCE = 1 << 20  # bytes that are read at once, and to the end of their last line


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

    `kinds`: (rank, direction, index) of what comes once in an iteration; the column `which` points into it. `marks`:
    (seconds, rank, text). `broken`: how many lines by kind of fault; `lines`: the first of them, each as
    `FILE:LINE: fault`. `others`: lines without any record, which a log is full of.
    """

    kinds: list[tuple[int, int, int]] = field(default_factory=list)
    which: array[int] = field(default_factory=lambda: array("i"))
    iterations: array[int] = field(default_factory=lambda: array("i"))
    starts: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))
    marks: list[tuple[float, int, str]] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    others: int = 0

    def __len__(self) -> int:
        """How many spans."""
        return len(self.which)

    @property
    def ranks(self) -> set[int]:
        """Those that have spans."""
        return {rank for rank, _, _ in self.kinds}

    def spans(self, iteration: int) -> Iterator[Span]:
        """Those of one iteration, in the order in which they ended."""
        for which, number, start, end in zip(self.which, self.iterations, self.starts, self.ends, strict=True):
            if number == iteration:
                rank, direction, index = self.kinds[which]
                yield Span(rank, number, direction, index, start, end)

    def fault(self, where: str, says: str) -> None:
        """Count a broken line, and name it while there are few."""
        self.broken[says] += 1
        if len(self.lines) < _NAMED:
            self.lines.append(f"{where}: {says}")


@dataclass(slots=True)
class _Rank:
    """`current`: its iteration; `within`: whether its last mark began one, None for ranks that write no marks."""

    current: int = 0
    within: bool | None = None


@dataclass(slots=True)
class _Pass:
    """`open`: when it began, where it did not end; `seen`: in which iteration, the last time; `which`: its kind's."""

    kind: tuple[int, int, int]
    rank: _Rank
    open: float | None = None
    seen: int = 0
    which: int | None = None


@dataclass(slots=True)
class _Reader:
    """`heads`: what a record is, by what stands before its time: a pass and whether it starts, or None for a mark."""

    trace: Trace
    ranks: dict[int, _Rank] = field(default_factory=dict)
    passes: dict[tuple[int, int, int], _Pass] = field(default_factory=dict)
    heads: dict[bytes, tuple[_Pass | None, bool]] = field(default_factory=dict)

    def text(self, text: bytes, name: str, number: int) -> int:
        """All records of whole lines, of which the first has this number; the number after that of the last."""
        parts = _RECORD.split(text)  # what is between, a head, a time, what is between, a head, a time ...
        number = self._between(b"\n" + parts[0], name, number - 1)
        for head, at, between in zip(parts[1::3], map(float, parts[2::3]), parts[3::3], strict=True):
            passed, starts = self.heads.get(head) or self._head(head)
            if passed is None:
                self._mark(head, at)
            elif starts:
                if passed.open is not None:
                    self.trace.fault(f"{name}:{number}", "a pass starts twice")
                self._begins(passed)
                passed.open = at
            else:
                self._finished(passed, at, name, number)
            number = number + 1 if between == b"\n" else self._between(between, name, number)
        return number

    def _between(self, text: bytes, name: str, number: int) -> int:
        """What is left between two records: the end of a line, whole lines, the begin of a line; its number."""
        *lines, begin = text.split(b"\n")
        for place, line in enumerate(lines):
            if _LEFT.search(line.rstrip()):
                self.trace.fault(f"{name}:{number + place}", "a broken record")
            elif place:
                self.trace.others += 1
        if _LEFT.search(begin):
            self.trace.fault(f"{name}:{number + len(lines)}", "a broken record")
        return number + len(lines)

    def _rank(self, number: int) -> _Rank:
        return self.ranks.setdefault(number, _Rank())

    def _pass(self, kind: tuple[int, int, int]) -> _Pass:
        if kind not in self.passes:
            self.passes[kind] = _Pass(kind, self._rank(kind[0]))
        return self.passes[kind]

    def _head(self, head: bytes) -> tuple[_Pass | None, bool]:
        """Read a head that is new."""
        rank, index, what, event = head.split()[:4]
        parsed: tuple[_Pass | None, bool] = (None, False)
        if what in {b"forward", b"backward"}:
            direction = DIRECTIONS.index(what.decode())
            parsed = self._pass((int(rank[:-1]), direction, int(index[:-1]))), event == b"start"
        self.heads[head] = parsed
        return parsed

    def _mark(self, head: bytes, at: float) -> None:
        first, second, _, event = head.split()[:4]
        if first != b"rank":
            self.trace.marks.append((at, int(first[:-1]), f"model chunk {int(second[:-1])} can reduce"))
            return
        rank, starts = self._rank(int(second)), event == b"starts"
        if starts or rank.within is False:  # the second end in a row: its start is lost
            rank.current += 1
        rank.within = starts
        self.trace.marks.append((at, int(second), f"iteration {rank.current} {event.decode()}"))

    def _begins(self, passed: _Pass) -> None:
        """The pass belongs to the rank's iteration or, where a mark is lost or none is written, begins the next one."""
        rank, (number, _, index) = passed.rank, passed.kind
        # Without marks: an index comes once in an iteration in each direction, forward before backward.
        if rank.within is False or (
            rank.within is None and max(passed.seen, self._pass((number, BACKWARD, index)).seen) == rank.current
        ):
            rank.current += 1
        if rank.within is False:
            rank.within = True
        passed.seen = rank.current

    def _finished(self, passed: _Pass, end: float, name: str, number: int) -> None:
        start, passed.open = passed.open, None
        if start is not None and passed.seen != passed.rank.current:
            start = None  # an earlier iteration's
        if start is None:
            self._begins(passed)
        if start is None or end < start:
            says = "a pass ends before it starts" if start is not None else "a pass ends that did not start"
            self.trace.fault(f"{name}:{number}", says)
            return
        trace = self.trace
        if passed.which is None:
            passed.which = len(trace.kinds)
            trace.kinds.append(passed.kind)
        trace.which.append(passed.which)
        trace.iterations.append(passed.seen)
        trace.starts.append(start)
        trace.ends.append(end)


def read(files: Iterable[Path]) -> Trace:
    """The trace in some files, one after another: those of all nodes of a run. Nothing in them makes it fail.

    Raises EnvbuildError `file-unreadable` (exit 2).
    """
    reader = _Reader(Trace())
    for path in files:
        number = 1
        try:
            with opened(path) as file:
                while text := file.read(_AT_ONCE):
                    text += file.readline()
                    number = reader.text(text if text.endswith(b"\n") else text + b"\n", path.name, number)
        except OSError as error:
            raise unreadable(path, error) from error
    for (rank, direction, index), passed in sorted(reader.passes.items()):
        if passed.open is not None:
            reader.trace.fault(f"rank {rank}, {DIRECTIONS[direction]} {index}", "a pass does not end")
    return reader.trace
