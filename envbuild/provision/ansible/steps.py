"""What carrying out steps has in common, with Ansible and without: nodes, events, results, deadlines, interruption."""

from __future__ import annotations

import posixpath
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from envbuild.errors import EnvbuildError
from envbuild.transport.processes import end_marked, marker_value

TaskStatus = Literal["started", "ok", "changed", "failed", "unreachable", "skipped"]

# Every process of one such run carries this variable, so that all of them can be found and ended.
MARKER = "ENVBUILD_PLAYBOOK_RUN"


@dataclass(frozen=True)
class NodeHost:
    """One node and what its steps need.

    `python`: interpreter on the node that runs the node program at `pyz` (both absolute paths on the node). `requests`:
    verb to the request file on the controller, of `run`; a verb that is missing is not run. `payload`: a toolchain
    payload on the controller to run first. `bundles`: name in `store` on the node to a bundle on the controller;
    `image`: a file that goes into `store`. `tmp`: the folder for temporary files that the target names, None when it
    names none; `prefix`: the node's (absolute).
    """

    name: str
    python: str
    pyz: str
    requests: Mapping[str, Path] = field(default_factory=dict)
    payload: Path | None = None
    bundles: Mapping[str, Path] = field(default_factory=dict)
    image: Path | None = None
    store: str | None = None
    run: str = ""
    tmp: str | None = None
    prefix: str | None = None

    def steps(self) -> frozenset[str]:
        """The roles that will do something on this node; all others are skipped."""
        extra = {"toolchain": self.payload, "deliver": self.bundles, "carry": self.image}
        return frozenset(self.requests) | {role for role, file in extra.items() if file}

    @property
    def ansible_tmp(self) -> str | None:
        """Where Ansible keeps temporary files once the toolchain has made the prefix."""
        return self.tmp or (posixpath.join(self.prefix, "tmp") if self.prefix else None)


def tmp_folder(template: str | None, user: str, home: str = "") -> str | None:
    """The `tmp` of a target on a node; None when the target names none, or by what only the node knows (`{data}`)."""
    text = (template or "").replace("{user}", user)
    if home:
        text = text.replace("{home}", home)
    return text if text and "{" not in text else None


@dataclass(frozen=True)
class TaskEvent:
    """One task on one node: begun, or ended. `role` is the step (`install`, `smoke`, …), `task` its sentence.

    `seconds` is the time that Ansible measured (None for `started`); `stdout` and `stderr` are the command's own.
    """

    node: str
    task: str
    status: TaskStatus
    role: str = ""
    seconds: float | None = None
    rc: int | None = None
    stdout: str = ""
    stderr: str = ""
    message: str = ""


@dataclass(frozen=True)
class StepsResult:
    """The outcome. `nodes` has the last event of each node, `tasks_run` counts ended tasks that were not skipped."""

    rc: int
    status: Literal["successful", "failed"]
    nodes: Mapping[str, TaskEvent] = field(default_factory=dict)
    tasks_run: int = 0


@dataclass(frozen=True)
class Limits:
    """When steps must stop: `deadline` in seconds from now; `cancel` is asked about ten times a second.

    `on_interrupt` is called before they are ended, which takes a while; they are ended whatever it raises.
    """

    deadline: float
    cancel: Callable[[], bool] = lambda: False
    on_interrupt: Callable[[], None] = lambda: None


class Watch:
    """Says when the run must stop, and why; ends its processes the moment it says so."""

    def __init__(self, limits: Limits) -> None:
        """`marker`: the value of `MARKER` in the environment of its processes."""
        self._limits, self._until = limits, time.monotonic() + limits.deadline
        self.marker = marker_value()
        self.signalled = threading.Event()
        self.reason: Literal["", "deadline", "interrupted"] = ""

    def __call__(self) -> bool:
        """Asked again and again; True cancels."""
        if not self.reason:
            if self.signalled.is_set() or self._limits.cancel():
                self.reason = "interrupted"
            elif time.monotonic() > self._until:
                self.reason = "deadline"
            if self.reason:
                try:
                    if self.reason == "interrupted":
                        with suppress(OSError):  # who read what it says may be gone
                            self._limits.on_interrupt()
                finally:
                    # Not every process is in one group: workers of Ansible leave theirs.
                    end_marked(MARKER, self.marker)
        return bool(self.reason)


@contextmanager
def signals(watch: Watch) -> Iterator[None]:
    """SIGINT and SIGTERM cancel the run (main thread only; elsewhere Python allows no handlers).

    Whoever has a handler of its own for SIGTERM hands it on as an interrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signal.SIGINT: signal.getsignal(signal.SIGINT)}
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        before[signal.SIGTERM] = signal.SIG_DFL
    for number in before:
        signal.signal(number, lambda *_: watch.signalled.set())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ended_early(name: str, reason: str, deadline: float, events: Mapping[str, TaskEvent]) -> EnvbuildError:
    """What a run raises that a deadline or an interrupt has ended; `events`: the last of each node."""
    nodes = {node: f"{event.task}: {event.status}" for node, event in events.items()}
    if reason == "deadline":
        return EnvbuildError(
            "playbook-deadline",
            f"{name} did not end within {deadline:g} s and was stopped",
            why="; ".join(f"{node}: {last}" for node, last in nodes.items()),
            hint="give more time, or look into the log of the node that hangs; the same command continues",
            details={"nodes": nodes},
        )
    return EnvbuildError(
        "interrupted",
        "the run was interrupted",
        why="what ran has ended; nothing half-built is in use, environments in use and built wheels stay as they are",
        hint="the same command continues where this one stopped",
        details={"nodes": nodes},
    )
