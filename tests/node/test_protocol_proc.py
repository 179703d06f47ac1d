"""Programs that the node program runs: deadlines, groups, caps, missing ones."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from envbuild.node import proc


def test_result_has_code_and_both_streams() -> None:
    done = proc.run(["/bin/sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in")
    assert (done.rc, done.out, done.err, done.ok) == (3, "in", "err\n", False)
    assert proc.run(["true"]).ok


def test_missing_program_is_a_value() -> None:
    done = proc.run(["/nonexistent/program"])
    assert (done.rc, done.missing, done.ok) == (None, True, False)


def test_deadline_kills_the_whole_group(tmp_path: Path) -> None:
    marker = tmp_path / "late"
    begun = time.monotonic()
    done = proc.run(["/bin/sh", "-c", f"trap '' TERM; (sleep 1.5; touch {marker}) & sleep 30"], timeout=0.3)
    assert done.timed_out
    assert done.rc is None
    assert time.monotonic() - begun < 5
    time.sleep(1.6)
    assert not marker.exists()


def test_grandchild_that_keeps_the_pipe_open_does_not_hold_us() -> None:
    begun = time.monotonic()
    done = proc.run(["/bin/sh", "-c", "echo done; sleep 30 &"])
    assert time.monotonic() - begun < 5
    assert (done.rc, done.out, done.timed_out) == (0, "done\n", False)


def test_large_output_arrives_whole() -> None:
    assert len(proc.run(["head", "-c", "20000000", "/dev/zero"]).out) == 20_000_000


def test_output_is_cut_at_the_cap_and_says_so() -> None:
    done = proc.run(["/bin/sh", "-c", "head -c 300000 /dev/zero"], limit=1000)
    assert done.truncated
    assert len(done.out) == 1000
    assert done.rc == 0


def test_locale_is_english_whatever_the_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    assert proc.run(["/bin/sh", "-c", 'echo "$LC_ALL-$LANGUAGE"']).out == "C.UTF-8-\n"
    assert "HOME" not in proc.clean_env({"HOME": None})


def test_parallel_calls_keep_their_order_and_late_ones_are_none() -> None:
    begun = time.monotonic()
    calls = [partial(time.sleep, 5), partial(int, "7")]
    assert proc.parallel(calls, timeout=0.2) == [None, 7]
    assert time.monotonic() - begun < 3
