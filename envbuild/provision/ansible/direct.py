"""The steps of a playbook on this machine, without Ansible: the same calls of the node program in the same order.

Nothing lies between this process and its own machine that Ansible could bridge, and it takes 1.7 s to start. The node
program is that of this installation: a zip file has no byte code, and compiling it takes 0.15 s in three steps.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from envbuild.node import proc
from envbuild.node.__main__ import CONNECTION
from envbuild.node_program import call_here
from envbuild.provision.ansible.steps import (
    MARKER,
    Limits,
    NodeHost,
    StepsResult,
    TaskEvent,
    TaskStatus,
    Watch,
    ended_early,
    signals,
)
from envbuild.provision.contact.payload import read_answer
from envbuild.transport.processes import GRACE, end_marked, end_orphans

# The roles of each playbook in order, and the sentence of each role's last task.
STEPS = {
    "provision.yml": ("toolchain", "deliver", "install", "smoke", "activate"),
    "image.yml": ("toolchain", "carry", "container"),
}
SENTENCES = {
    "toolchain": "Put the toolchain in place",
    "deliver": "Deliver the bundles",
    "carry": "Send the image",
    "install": "Build the environment",
    "smoke": "Run the smoke tests in the environment",
    "activate": "Stamp the environment and make it current",
    "container": "Take the image in, test inside and write the launcher",
}
_POLL_SECONDS = 0.1


def run_here(playbook: str, host: NodeHost, *, on_event: Callable[[TaskEvent], None], limits: Limits) -> StepsResult:
    """Run the steps that `host` is asked for, up to the first that fails; arguments and errors as of `run_playbook`."""
    end_orphans(MARKER)
    watch = Watch(limits)
    last, count = TaskEvent(host.name, "", "ok"), 0
    with signals(watch):
        try:
            for role in STEPS[playbook]:
                if role not in host.steps():
                    continue
                if watch():
                    break
                last = TaskEvent(host.name, SENTENCES[role], "started", role)
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
        raise ended_early(playbook, watch.reason, limits.deadline, {host.name: last})
    failed = last.status == "failed"
    return StepsResult(int(failed), "failed" if failed else "successful", {host.name: last}, count)


def _step(role: str, host: NodeHost, watch: Watch, variables: Mapping[str, str]) -> TaskEvent:
    began = time.monotonic()
    if role == "toolchain":
        done = _watched(["/bin/sh", str(host.payload)], None, watch, variables)
    elif role in _PUT:
        done = _put(_PUT[role], host)
    else:
        done = _watched(call_here(host.python, role), host.requests[role].read_bytes(), watch, variables)
    answer = read_answer(done.out) or {}
    status: TaskStatus = "failed" if done.rc != 0 else "changed" if answer.get("changed", role in _PUT) else "ok"
    seconds = round(time.monotonic() - began, 6)
    return TaskEvent(host.name, SENTENCES[role], status, role, seconds, done.rc, done.out.rstrip(), done.err.rstrip())


def _watched(argv: list[str], stdin: bytes | None, watch: Watch, variables: Mapping[str, str]) -> proc.Finished:
    """Run `argv`, and end it when the run must stop; it also ends with this process."""
    found: list[proc.Finished] = []
    env = {**os.environ, **variables}

    def work() -> None:
        found.append(proc.run(argv, timeout=None, env=env, cwd="/", stdin=stdin, grace=GRACE, tied=True))

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(_POLL_SECONDS)
        watch()
    return found[0]


def _put(work: Callable[[NodeHost, Path], None], host: NodeHost) -> proc.Finished:
    store = Path(host.store or "")
    try:
        store.mkdir(mode=0o755, parents=True, exist_ok=True)
        work(host, store)
    except OSError as error:
        return proc.Finished(1, err=str(error))
    return proc.Finished(0)


def _deliver(host: NodeHost, store: Path) -> None:
    # Named by the run, so that another run which ends now leaves what this one delivers.
    (store / "runs" / host.run).mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, bundle in host.bundles.items():
        shutil.copyfile(bundle, store / name)


def _carry(host: NodeHost, store: Path) -> None:
    image = host.image
    assert image is not None  # noqa: S101 - else there is no such step
    place = store / image.name
    place.touch(mode=0o600)
    shutil.copyfile(image, place)


_PUT: Mapping[str, Callable[[NodeHost, Path], None]] = {"deliver": _deliver, "carry": _carry}
