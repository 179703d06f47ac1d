"""The steps of a playbook: nodes, events, results, deadlines, interruption; and how they run here, without Ansible.

Nothing lies between this process and its own machine that Ansible could bridge, and it takes 1.7 s to start. The node
program is that of this installation: a zip file has no byte code, and compiling it takes 0.15 s in three steps.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from envbuild.errors import EnvbuildError
from envbuild.node import proc
from envbuild.node.protocol import CONNECTION
from envbuild.node_program import call_here
from envbuild.provision.contact.payload import read_answer
from envbuild.transport.processes import GRACE, end_marked, end_orphans, marker_value

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
    """One task on one node: begun, or ended. `role` is the step (`install`, `smoke`, …).

    `seconds` is the time that Ansible measured (None for `started`); `stdout` and `stderr` are the command's own.
    """

    node: str
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
    nodes: Mapping[str, TaskEvent] = field(default_factory=dict)
    tasks_run: int = 0


class Watch:
    """Ends the processes of steps at a deadline, a signal, or when `cancel` is true; `reason` is which of these."""

    def __init__(
        self,
        deadline: float,
        cancel: Callable[[], bool] = lambda: False,
        on_interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        """`deadline`: in seconds from now; `cancel` is asked about ten times a second.

        `on_interrupt` is called before processes are ended, which takes a while; they are ended whatever it raises.
        `marker`: the value of `MARKER` in their environment.
        """
        self.deadline, self._cancel, self._on_interrupt = deadline, cancel, on_interrupt
        self._until = time.monotonic() + deadline
        self.marker = marker_value()
        self.signalled = threading.Event()
        self.reason: Literal["", "deadline", "interrupted"] = ""

    def __call__(self) -> bool:
        """Asked again and again; True cancels."""
        if not self.reason:
            if self.signalled.is_set() or self._cancel():
                self.reason = "interrupted"
            elif time.monotonic() > self._until:
                self.reason = "deadline"
            if self.reason:
                try:
                    if self.reason == "interrupted":
                        with suppress(OSError):  # who read what it says may be gone
                            self._on_interrupt()
                finally:
                    # Not every process is in one group: workers of Ansible leave theirs.
                    end_marked(MARKER, self.marker)
        return bool(self.reason)

    def ended_early(self, name: str, events: Mapping[str, TaskEvent]) -> EnvbuildError:
        """What a run raises that has stopped; `events`: the last of each node.

        Its details have by node the step, as the plan and the journal name it, and how far it got: `install: started`.
        """
        nodes = {node: f"{event.role}: {event.status}" for node, event in events.items() if event.role}
        if self.reason == "deadline":
            return EnvbuildError(
                "playbook-deadline",
                f"{name} did not end within {self.deadline:g} s and was stopped",
                why="; ".join(f"{node}: {last}" for node, last in nodes.items()),
                hint="read the log of the node that hangs; `--step-timeout` waits longer",
                details={"nodes": nodes},
            )
        return EnvbuildError(
            "interrupted",
            "the run was interrupted",
            why="its processes have ended; no half-built environment is in use, and built wheels are kept",
            hint="the same command continues where this one stopped",
            details={"nodes": nodes},
        )


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


# The roles of each playbook in order.
STEPS = {
    "provision.yml": ("toolchain", "deliver", "install", "smoke", "activate"),
    "image.yml": ("toolchain", "carry", "container"),
}
# Those of them that call the node program with a request, and those that only copy files.
VERBS = ("install", "smoke", "activate", "container")
_PUT = ("deliver", "carry")
_POLL_SECONDS = 0.1


def run_here(playbook: str, host: NodeHost, *, on_event: Callable[[TaskEvent], None], watch: Watch) -> StepsResult:
    """Run the steps that `host` is asked for, up to the first that fails; arguments and errors as of `run_playbook`."""
    end_orphans(MARKER)
    last, count = TaskEvent(host.name, "ok"), 0
    with signals(watch):
        try:
            for role in STEPS[playbook]:
                if role not in host.steps():
                    continue
                if watch():
                    break
                last = TaskEvent(host.name, "started", role)
                on_event(last)
                ended = _step(role, host, watch, {MARKER: watch.marker, CONNECTION: "local"})
                if watch.reason:
                    break
                last, count = ended, count + 1
                on_event(last)
                if last.status == "failed":
                    break
        finally:
            end_marked(MARKER, watch.marker)
    if watch.reason:
        raise watch.ended_early(playbook, {host.name: last})
    return StepsResult(int(last.status == "failed"), {host.name: last}, count)


def _step(role: str, host: NodeHost, watch: Watch, variables: Mapping[str, str]) -> TaskEvent:
    began = time.monotonic()
    if role == "toolchain":
        done = _watched(["/bin/sh", str(host.payload)], None, watch, variables)
    elif role in _PUT:
        done = _put(host)
    else:
        done = _watched(call_here(host.python, role), host.requests[role].read_bytes(), watch, variables)
    answer = read_answer(done.out) or {}
    status: TaskStatus = "failed" if done.rc != 0 else "changed" if answer.get("changed", role in _PUT) else "ok"
    seconds = round(time.monotonic() - began, 6)
    return TaskEvent(host.name, status, role, seconds, done.rc, done.out.rstrip(), done.err.rstrip())


def _watched(argv: list[str], stdin: bytes | None, watch: Watch, variables: Mapping[str, str]) -> proc.Finished:
    """Run `argv`, and end it when the run must stop; it also ends with this process."""
    ended: list[proc.Finished] = []
    env = {**os.environ, **variables}

    def work() -> None:
        ended.append(proc.run(argv, timeout=None, env=env, cwd="/", stdin=stdin, grace=GRACE, tied=True))

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(_POLL_SECONDS)
        watch()
    return ended[0]


def _put(host: NodeHost) -> proc.Finished:
    """The bundles or the image of a node into its store."""
    store = Path(host.store or "")
    try:
        store.mkdir(mode=0o755, parents=True, exist_ok=True)
        if host.bundles:
            # Named by the run, so that another run which ends now leaves what this one delivers.
            (store / "runs" / host.run).mkdir(mode=0o755, parents=True, exist_ok=True)
        for name, bundle in host.bundles.items():
            shutil.copyfile(bundle, store / name)
        if host.image is not None:
            place = store / host.image.name
            place.touch(mode=0o600)
            shutil.copyfile(host.image, place)
    except OSError as error:
        return proc.Finished(1, err=str(error))
    return proc.Finished(0)
