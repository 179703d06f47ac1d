"""One run of a stack's own command: its log, and what is left of a search whose owner was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.provision import own_run
from envbuild.provision.bench import _last_lines
from envbuild.provision.own_run import Log, OwnRun
from envbuild.transport.processes import end_orphans
from tests.support.patience import PATIENCE, text_of, until

LONG = "import sys; [print('x' * 999) for _ in range(1000)]; sys.stderr.write('done')"


def printed(program: str, path: Path) -> tuple[Log, int]:
    """The log of a program, and its exit code."""
    log = Log(path)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        own_run._copy(process, log, lambda _: None)
        return log, process.wait(PATIENCE)


@pytest.mark.parametrize("path", ["/dev/full", "/dev/null/run.log"])
def test_a_log_that_cannot_be_written_is_said_and_the_output_is_still_read(path: str) -> None:
    log, code = printed(LONG, Path(path))
    assert code == 0, "its output is read to the end"
    assert log.failure.startswith("its log cannot be written: ")


def test_a_line_without_an_end_is_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_run, "_LINE", 1000)
    log, _ = printed("print('x' * 5000, end='', flush=True)", tmp_path / "run.log")
    assert (log.failure, log.path.read_text()) == ("", "x" * 5000)


def test_a_run_whose_log_cannot_be_written_is_ended_and_is_not_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/trial-1.log").symlink_to("/dev/full")
    work: Any = SimpleNamespace(run=SimpleNamespace(path=tmp_path), settings=SimpleNamespace(cancel=lambda: False))
    told: Any = SimpleNamespace(log="alpa", metric="tflops")
    launch: Any = None
    monkeypatch.setattr(own_run, "steps_of", lambda *_: [SimpleNamespace(text="yes")])
    log = own_run.carry_out(work, told, OwnRun(launch, None, str(tmp_path / "out"), 60.0), "trial 1")
    assert (log.failure, log.late) == ("its log cannot be written: [Errno 28] No space left on device", False)


@pytest.mark.parametrize("prefix", ["{}: ", "[default{}]:", "[rank{}]: ", "[{}] "])
def test_of_a_log_that_names_ranks_the_last_line_of_each_is_told(prefix: str) -> None:
    said = [prefix.format(rank) + f"rank {rank} at step {step}" for step in range(9) for rank in range(11)]
    hung = [prefix.format(3) + "waiting", *(f"{prefix.format(7)}step {step}" for step in range(20))]
    lines = _last_lines("\n".join(said + hung)).splitlines()
    others = [prefix.format(rank) + f"rank {rank} at step 8" for rank in range(11) if rank not in (3, 7)]
    assert sorted(lines[:10]) == sorted([*others, hung[0]])
    assert lines[10:] == hung[-12:]


def test_of_a_log_without_ranks_the_last_lines_are_told() -> None:
    text = "\n".join(f"12:00:{second:02} at work" for second in range(30))
    assert _last_lines(text + "\n\n").splitlines() == text.splitlines()[-12:]


WATCHING = """
import pathlib, sys, time
from envbuild.provision.strategy import _watch_memory
with _watch_memory(pathlib.Path(sys.argv[1])):
    time.sleep(600)
"""


def test_what_watches_the_memory_of_a_killed_search_is_ended(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho $$\nexec sleep 600\n")
    tool.chmod(0o755)
    path, env = tmp_path / "memory", {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    with subprocess.Popen([sys.executable, "-c", WATCHING, str(path)], env=env) as search:
        until(lambda: text_of(path).endswith("\n"))
        search.kill()
    watcher = int(path.read_text())
    assert watcher in end_orphans(own_run.MARKER, grace=60)
    assert not Path(f"/proc/{watcher}/cmdline").exists() or not Path(f"/proc/{watcher}/cmdline").read_bytes()
