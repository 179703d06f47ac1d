"""The directory of one run: `<runs>/<UTC time>-<4 hex>/` (the second and the part of it), for its owner only.

    plan.json  journal.jsonl  evidence.json  attachments/  report.*  ansible/  logs/
    staging/ (while it runs)  traceback-*.txt (of a bug in envbuild)

The status of a run is not stored: it follows from its journal, so that a killed run cannot claim anything.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import hashlib
import json
import re
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from envbuild.errors import TRACEBACK_KEPT, EnvbuildError, ExitCode
from envbuild.node import identity, paths
from envbuild.node.protocol import RUN, NodeError
from envbuild.node.redact import redact_text
from envbuild.provision.run.journal import TERMINAL, EventKind, Journal, JournalContents, Watch, read_journal

# Drivers change in maintenance windows; asking again costs one short job.
MAX_AGE = 7 * 86400.0
# What another try meets again, unlike a disk that is full.
_FOR_GOOD = (errno.EACCES, errno.EEXIST, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)


def read_recent(path: Path) -> Any:
    """What was kept in the last week, None where it is older. Raises OSError, ValueError."""
    written = path.stat().st_mtime  # before the clock: another run may write it meanwhile
    return json.loads(path.read_bytes()) if 0 <= time.time() - written < MAX_AGE else None


def keep(path: Path, data: object) -> None:
    """Keep JSON data, whole or not at all; where it cannot be written, that is no error."""
    with contextlib.suppress(OSError, NodeError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths.write_json(str(path), data)


RunStatus = Literal["running", "finished", "failed", "interrupted", "died"]


@dataclass(frozen=True)
class RunDir:
    """One run directory. `id` is its folder's name."""

    path: Path

    @property
    def id(self) -> str:
        """The name of the run, as `run show` takes it."""
        return self.path.name

    @property
    def plan(self) -> Path:
        """The plan, as JSON."""
        return self.path / "plan.json"

    @property
    def journal_path(self) -> Path:
        """The journal, one JSON object a line."""
        return self.path / "journal.jsonl"

    @property
    def attachments(self) -> Path:
        """Files that belong to the evidence, which has their digests."""
        return self.path / "attachments"

    @property
    def staging(self) -> Path:
        """What is on its way to nodes, megabytes of it; it goes when the run ends."""
        return self.path / "staging"

    @classmethod
    def create(cls, runs: Path) -> RunDir:
        """Make a new run directory in the folder `runs` (the setting of that name).

        Raises EnvbuildError `not-writable` (exit 7), `run-directory-unwritable` (exit 75).
        """
        try:
            runs.mkdir(mode=0o700, parents=True, exist_ok=True)
            while True:
                now = datetime.now(UTC)
                # The part of the second: names are in the order of time, also of runs that follow each other quickly.
                path = runs / f"{now:%Y%m%dT%H%M%SZ}-{(now.microsecond << 16) // 1_000_000:04x}"
                try:
                    path.mkdir(mode=0o700)
                except FileExistsError:
                    continue
                break
            for name in ("ansible", "logs", "staging"):
                (path / name).mkdir(mode=0o700)
        except OSError as error:
            raise _unwritable(f"cannot make a run directory under {runs}", error) from error
        return cls(path)

    def open_journal(self, watch: Watch | None = None) -> Journal:
        """The journal, open for appending; `watch` sees every event."""
        return Journal(self.journal_path, on_event=watch)

    def write_json(self, path: Path, data: Any) -> None:
        """`write_bytes` of `data` as JSON in one line, half as large as with line breaks."""
        self.write_bytes(path, (json.dumps(data, separators=(",", ":"), ensure_ascii=False) + "\n").encode())

    def write_bytes(self, path: Path, data: bytes) -> None:
        """Write `data` whole or not at all, mode 0600.

        Raises EnvbuildError `not-writable` (exit 7), `run-directory-unwritable` (exit 75).
        """
        try:
            paths.write_whole(str(path), data, 0o600)
        except OSError as error:
            raise _unwritable(f"cannot write {path}", error) from error

    def unexpected(self, what: str, error: BaseException) -> EnvbuildError:
        """`EnvbuildError.unexpected`; the traceback of a mistake of ours is kept here, and error and hint name it."""
        mistake = EnvbuildError.unexpected(what, error)
        if mistake.exit_code == ExitCode.INTERNAL:
            text = redact_text("".join(traceback.format_exception(error))).encode("utf-8", "backslashreplace")
            # Of several mistakes in a run each has its own.
            path = self.path / f"traceback-{hashlib.sha256(text).hexdigest()[:8]}.txt"
            with suppress(EnvbuildError):
                self.write_bytes(path, text)
                mistake.hint = f"{TRACEBACK_KEPT}{path}"
                error.add_note(mistake.hint)
        return mistake

    @cached_property
    def journal(self) -> JournalContents:
        """The journal as it is now (read once); empty when the run never wrote one."""
        return read_journal(self.journal_path) if self.journal_path.exists() else JournalContents(())

    @property
    def touched(self) -> float:
        """When something was last added to it (seconds since 1970)."""
        return max(path.stat().st_mtime for path in (self.path, self.journal_path) if path.exists())

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return paths.size_of(str(self.path))

    @property
    def status(self) -> RunStatus:
        """What became of the run, from its journal.

        `died`: it neither ended nor said why, and its process is gone. A process is recognised by host, boot and pid
        as `run-started` recorded them (see `node/identity.py`); a run of another host that did not end is `running`.
        """
        events = self.journal.events
        last = next((event for event in reversed(events) if event.kind in TERMINAL), None)
        if last is None:
            first = next((event for event in events if event.kind == EventKind.RUN_STARTED), None)
            return "running" if first is not None and _alive(first.data) else "died"
        if last.kind == EventKind.INTERRUPTED:
            return "interrupted"
        if last.kind == EventKind.FAILED or last.data.get("exit", 0) != 0:
            return "failed"
        return "finished"

    @property
    def outcome(self) -> str:
        """The status in words for people: a plan that nobody confirmed is `not confirmed`, and no failure."""
        error = self.journal.events[-1].data.get("error") if self.journal.events else None
        declined = isinstance(error, dict) and error.get("code") == "plan-unconfirmed"
        return "not confirmed" if declined else self.status

    @property
    def elsewhere(self) -> str:
        """The host of a run that goes on, for all that this machine can see; empty for every other."""
        first = self.journal.events[0].data if self.status == "running" else {}
        return "" if not first or identity.same_machine(first) else str(first["host"])


def _unwritable(what: str, error: OSError) -> EnvbuildError:
    return EnvbuildError(
        "not-writable" if error.errno in _FOR_GOOD else "run-directory-unwritable",
        what,
        why=str(error.strerror or error),
        hint="set ENVBUILD_RUNS to a writable directory with free space",
    )


def list_runs(runs: Path) -> list[RunDir]:
    """All runs in the folder `runs`, the newest first; an empty list when there are none.

    Folders of other names are a user's.
    """
    if not runs.is_dir():
        return []
    return sorted((RunDir(path) for path in runs.iterdir() if _is_run(path)), key=lambda run: run.id, reverse=True)


def _is_run(path: Path) -> bool:
    return re.fullmatch(RUN, path.name) is not None and path.is_dir() and not path.is_symlink()


def old_runs(runs: Path, days: float) -> list[RunDir]:
    """The runs that nothing was added to for `days`, the newest first; never one that may still run, nor the newest."""
    then = datetime.now(UTC).timestamp() - days * 86400
    return [run for run in list_runs(runs)[1:] if run.touched <= then and run.status != "running"]


def open_run(runs: Path, run: str) -> RunDir:
    """The run whose id is or begins with `run`, or ends with it after the dash; `last` is the newest.

    Raises EnvbuildError `run-unknown` (exit 2, with the nearest id) or `run-unknown` (exit 2).
    """
    known = list_runs(runs)
    if run == "last" and known:
        return known[0]
    matches = [item for item in known if item.id == run] or [
        item for item in known if run and (item.id.startswith(run) or item.id.endswith(f"-{run}"))
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = ", ".join(item.id for item in matches)
        raise EnvbuildError(
            "run-unknown", f"{len(matches)} runs begin with {run!r}", why=names, hint="give more of the id"
        )
    if not known:
        raise EnvbuildError(
            "run-unknown",
            "there is no run yet",
            why=f"looked in {runs}",
            hint="`envbuild provision` makes the first one",
        )
    near = difflib.get_close_matches(run, [item.id for item in known], n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else "`envbuild run list` lists all runs"
    raise EnvbuildError("run-unknown", f"there is no run {run!r}", why=f"looked in {runs}", hint=hint)


def _alive(process: dict[str, Any]) -> bool:
    me = identity.here()
    if process.get("host") != me["host"]:
        return "host" in process
    if process.get("boot_id") != me["boot_id"]:
        return False
    return not identity.same_machine(process) or identity.is_alive(process)
