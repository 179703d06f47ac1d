"""The journal of a run: append-only JSON lines. What is shown, watched and learned of a run is read from these events.

Each is on the disk before the work that follows it begins, except what only tells how far a step is.

One line is `{"seq": 3, "t": "2026-01-31T12:00:00.123456Z", "kind": "step-started", "node": "gpu1", "data": {...}}`.
`seq` counts from 1 without gaps, `t` is UTC (RFC 3339), `node` is there for events about one node. A process that dies
while it writes leaves at most one torn line, the last; readers drop it and say so.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.node.paths import sync_folder
from envbuild.node.redact import redact_data
from envbuild.regular_file import read_file
from envbuild.text import visible_data


class EventKind(enum.StrEnum):
    """What happened."""

    RUN_STARTED = "run-started"
    CONTACTED = "contacted"
    RESOLVED = "resolved"
    PLANNED = "planned"
    WAVE_STARTED = "wave-started"
    NOT_BEGUN = "not-begun"
    PLAYBOOK_STARTED = "playbook-started"
    HANDED_OVER = "handed-over"
    JOB_SUBMITTED = "job-submitted"
    JOB_STATE = "job-state"
    STEP_STARTED = "step-started"
    STEP_FINISHED = "step-finished"
    NODE_FINISHED = "node-finished"
    EVIDENCE_WRITTEN = "evidence-written"
    RUN_FINISHED = "run-finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    STAGE = "stage"
    NOW = "now"


_PAUSE = 0.5  # seconds between looks at a journal that another process writes
TERMINAL = frozenset({EventKind.RUN_FINISHED, EventKind.INTERRUPTED, EventKind.FAILED})
# For who watches. Of what nodes tell, a journal takes so many bytes, and then no more.
TOLD = 8 * 1024 * 1024
# These change nothing on a node. They are on the disk with the next event that does, or ends the run.
_LOOKS = frozenset(
    {
        EventKind.RUN_STARTED,
        EventKind.CONTACTED,
        EventKind.RESOLVED,
        EventKind.PLANNED,
        EventKind.NODE_FINISHED,
        EventKind.EVIDENCE_WRITTEN,
    }
)


@dataclass(frozen=True)
class Event:
    """One line of a journal. `kind` is plain text, so that a newer journal can be read."""

    seq: int
    t: str
    kind: str
    node: str | None = None
    data: dict[str, Any] = field(default_factory=dict)

    def line(self) -> bytes:
        """As it stands in the journal."""
        about = {} if self.node is None else {"node": self.node}
        line = {"seq": self.seq, "t": self.t, "kind": self.kind, **about, "data": self.data}
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str)
        return (text + "\n").encode("utf-8", "backslashreplace")


Watch = Callable[[Event], object]
"""who is shown every event"""


def utc_now() -> str:
    """The time as RFC 3339 in UTC with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Journal(contextlib.AbstractContextManager["Journal"]):
    """Appends events to one file; every event of work is synchronised to the disk before `append` returns.

    Safe to use from several threads. `on_event` sees each event after it is written. `stage` and `now`, and steps of
    work that changes nothing, are only told: they may be lost, and a full disk costs nothing but them.
    """

    def __init__(self, path: Path, *, on_event: Watch | None = None) -> None:
        """Make the file `path`. Raises EnvbuildError `journal-unwritable` (exit 75)."""
        self.path = path
        self._lock = threading.Lock()
        self._on_event = on_event
        self._room, self._seq = TOLD, 0
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            sync_folder(str(path.parent))  # its name, too, and not only its contents
        except OSError as error:
            raise _unwritable(path, error) from error

    def append(self, kind: EventKind, *, node: str | None = None, **data: Any) -> Event:
        """Write one event. `data` must be JSON; secrets in it are redacted.

        Raises EnvbuildError `journal-unwritable` (exit 75), for example when the disk is full.
        """
        with self._lock:
            event = Event(self._seq + 1, utc_now(), str(kind), node, redact_data(data))
            try:
                self._write(event.line())
                if kind not in _LOOKS:
                    os.fsync(self._fd)
            except OSError as error:
                raise _unwritable(self.path, error) from error
            self._seq = event.seq
        if self._on_event is not None:
            self._on_event(event)
        return event

    def tell(self, kind: EventKind, *, node: str | None = None, **data: Any) -> None:
        """One event for who watches: redacted, without what a terminal would act on, and perhaps not kept."""
        with self._lock:
            event = Event(self._seq + 1, utc_now(), str(kind), node, visible_data(redact_data(data)))
            line = event.line()
            self._room -= len(line)
            if self._room > 0:
                with contextlib.suppress(OSError):
                    self._write(line)
                    self._seq = event.seq
        if self._on_event is not None:
            self._on_event(event)

    def stage(self, text: str) -> None:
        """The run as a whole begins something."""
        self.tell(EventKind.STAGE, text=text)

    def now(self, node: str, state: Mapping[str, Any]) -> None:
        """What a node does under its step, as its node program tells it."""
        self.tell(EventKind.NOW, node=node, **state)

    def _write(self, raw: bytes) -> None:
        while raw:
            raw = raw[os.write(self._fd, raw) :]

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


@dataclass(frozen=True)
class JournalContents:
    """A journal as read: its events and what was wrong with the file (empty when nothing was)."""

    events: tuple[Event, ...]
    remarks: tuple[str, ...] = ()


def read_journal(path: Path) -> JournalContents:
    """Read a journal, tolerantly: a torn last line is dropped and said, an unreadable line in between too.

    Raises EnvbuildError `journal-unreadable` (exit 2) when the file itself cannot be read.
    """
    try:
        raw = read_file(path)
    except OSError as error:
        raise EnvbuildError("journal-unreadable", f"cannot read {path}", why=str(error.strerror or error)) from error
    lines = raw.split(b"\n")
    last = lines.pop()
    remarks: list[str] = []
    events: list[Event] = []
    for number, line in enumerate(lines, start=1):
        event = _parse(line)
        if event is None:
            remarks.append(f"line {number} is not an event and was left out")
        else:
            events.append(event)
    if last:
        remarks.append(f"the last line is torn ({len(last)} bytes) and was dropped")
    return JournalContents(tuple(events), tuple(remarks))


def follow(path: Path, running: Callable[[], bool]) -> Iterator[Event]:
    """Every event of a journal as it comes, those that are there first, until the run no longer is `running`."""
    rest, place = b"", 0
    while True:
        goes_on = running()
        with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
            stream.seek(place)
            new = stream.read()
            place += len(new)
            *lines, rest = (rest + new).split(b"\n")
            yield from filter(None, map(_parse, lines))
        if not goes_on:
            return
        time.sleep(_PAUSE)


def _parse(line: bytes) -> Event | None:
    """One event, or None for anything else."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    seq, t, kind = data.get("seq"), data.get("t"), data.get("kind")
    node, extra = data.get("node"), data.get("data", {})
    if not isinstance(seq, int) or not isinstance(t, str) or not isinstance(kind, str) or not isinstance(extra, dict):
        return None
    return Event(seq, t, kind, node if isinstance(node, str) else None, extra)


def _unwritable(path: Path, error: OSError) -> EnvbuildError:
    return EnvbuildError(
        "journal-unwritable",
        f"cannot write the journal {path}",
        why=str(error.strerror or error),
        hint="free space there, or set ENVBUILD_RUNS to a writable directory",
    )
