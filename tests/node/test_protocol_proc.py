"""Programs that the node program runs: deadlines, groups, caps, missing ones."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import __main__ as node_main
from envbuild.node import proc
from envbuild.node.protocol import Interrupted, NodeError
from tests.support.patience import PATIENCE, processes_of, until


def test_result_has_code_and_both_streams() -> None:
    done = proc.run(["/bin/sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in")
    assert (done.rc, done.out, done.err, done.ok) == (3, "in", "err\n", False)
    assert proc.run(["true"]).ok
    done = proc.run(["/nonexistent/program"])
    assert (done.rc, done.missing, done.ok) == (None, True, False)
    assert len(proc.run(["head", "-c", "20000000", "/dev/zero"]).out) == 20_000_000
    done = proc.run(["/bin/sh", "-c", "head -c 300000 /dev/zero"], limit=1000)
    assert (done.truncated, len(done.out)) == (True, 1000)
    assert done.rc is None, "a cut answer is never taken for a whole one"


def test_deadline_kills_the_whole_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "_GRACE", 0.3)
    marker = tmp_path / "late"
    begun = time.monotonic()
    done = proc.run(["/bin/sh", "-c", f"trap '' TERM; (sleep 600; touch {marker}) & sleep 600"], timeout=0.3)
    assert done.timed_out
    assert done.rc is None
    assert time.monotonic() - begun < PATIENCE
    until(lambda: not processes_of(str(marker)))


@pytest.fixture
def signalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This process gets SIGTERM while it starts a program, once that has made the file here."""
    began, start = tmp_path / "began", subprocess.Popen

    def started(*args: Any, **options: Any) -> Any:
        process = start(*args, **options)
        while not began.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(proc, "_LIVE", proc._Live())
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGTERM, node_main._on_signal)
    yield began
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_a_signal_while_a_program_starts_ends_it_too(tmp_path: Path, signalled: Path) -> None:
    marker = tmp_path / "late"
    with pytest.raises(Interrupted):
        proc.run(["/bin/sh", "-c", f"touch {signalled}; sleep 600; touch {marker}"])
    until(lambda: not processes_of(str(marker)))


@pytest.mark.parametrize(
    "ends",
    [
        "sleep 0.3",
        # More than a pipe holds: somebody has to read it, or the program never gets to what it has to end.
        'trap "" TERM; head -c 1000000 /dev/zero',
    ],
)
def test_d50_a_signal_while_a_program_starts_leaves_it_its_grace(tmp_path: Path, signalled: Path, ends: str) -> None:
    ended = tmp_path / "ended"
    trap = f"trap '{ends}; touch {ended}; exit 143' TERM"
    with pytest.raises(Interrupted):
        proc.run(["/bin/sh", "-c", f"{trap}; touch {signalled}; while :; do sleep 0.1; done"], grace=PATIENCE)
    assert ended.exists()


def test_what_cannot_be_read_has_ended_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(proc, "os", types.SimpleNamespace(**{**vars(os), "read": broken}))
    done = proc.run(["/bin/sh", "-c", "echo x"])
    assert (done.rc, done.out) == (0, "")


def test_grandchild_that_keeps_the_pipe_open_does_not_hold_us() -> None:
    begun = time.monotonic()
    done = proc.run(["/bin/sh", "-c", "echo done; sleep 100 &"])
    assert time.monotonic() - begun < 90
    assert (done.rc, done.out, done.timed_out) == (0, "done\n", False)


@pytest.mark.parametrize("noisy", ["yes", "yes >&2", "trap '' TERM; while :; do printf %065536d 0; done", "yes & wait"])
def test_d42_a_program_that_prints_without_end_is_ended_at_the_cap(noisy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "_GRACE", 0.3)
    done = proc.run(["/bin/sh", "-c", noisy], timeout=60.0, limit=1 << 20)
    assert done.seconds < 50
    assert (done.truncated, done.timed_out, done.ok) == (True, False, False)
    assert max(len(done.out), len(done.err)) < (1 << 20) + 100
    assert done.err.endswith("\nended: more than 1048576 bytes of output\n")


def test_locale_is_english_whatever_the_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    assert proc.run(["/bin/sh", "-c", 'echo "$LC_ALL-$LANGUAGE"']).out == "C.UTF-8-\n"
    assert "HOME" not in proc.clean_env({"HOME": None})


def test_each_item_keeps_its_place_and_after_a_failure_none_is_begun() -> None:
    begun = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 3:
            raise NodeError("hash-mismatch", "three")
        return item * item

    assert proc.pool_map(work, [1, 2, 4], 8) == [1, 4, 16]
    assert proc.pool_map(work, [], 8) == []
    begun.clear()
    with pytest.raises(NodeError, match="three"):
        proc.pool_map(work, [1, 2, 3, 4, 5], 1)
    assert begun == [1, 2, 3]


def test_parallel_calls_keep_their_order_and_late_ones_are_none() -> None:
    begun = time.monotonic()
    calls = [partial(time.sleep, 600), partial(int, "7")]
    assert proc.parallel(calls, timeout=0.5) == [None, 7]
    assert time.monotonic() - begun < PATIENCE
