"""Processes are found by a variable of their environment, also while their program is being started."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from envbuild.transport import processes
from tests.support.patience import PATIENCE

NAME = "ENVBUILD_TEST_MARKER"


def entry(proc: Path, pid: int, *, env_end: int, environment: bytes, program: bool = True) -> Path:
    """What the kernel shows of a process, as far as it is read."""
    made = proc / str(pid)
    made.mkdir(parents=True)
    if program:
        (made / "exe").symlink_to("/bin/sh")
    (made / "stat").write_text(f"{pid} (a (b) c) S " + " ".join(["7"] * 47 + [str(env_end), "0"]))
    (made / "environ").write_bytes(environment)
    return made


def test_what_is_being_started_has_no_environment_for_a_moment_and_is_found_when_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    monkeypatch.setattr(processes, "_LOADED", 600.0)
    starting = entry(tmp_path, 70001, env_end=0, environment=b"")
    asked = threading.Event()
    monkeypatch.setattr(processes.time, "sleep", lambda _: asked.set())

    def load() -> None:
        asked.wait()
        (starting / "environ").write_bytes(f"A=1\0{NAME}=mine\0".encode())

    loader = threading.Thread(target=load)
    loader.start()
    assert processes.find_marked(NAME, "mine") == [70001]
    loader.join()


def test_what_has_its_environment_just_after_it_was_looked_at_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    started = entry(tmp_path, 70001, env_end=4096, environment=b"")
    ask = processes._is_loading

    def loaded(process: Path) -> bool:
        (started / "environ").write_bytes(f"{NAME}=mine\0".encode())
        return ask(process)

    monkeypatch.setattr(processes, "_is_loading", loaded)
    assert processes.find_marked(NAME, "mine") == [70001]


def test_what_never_has_an_environment_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    monkeypatch.setattr(processes.time, "sleep", lambda _: pytest.fail("waited"))
    entry(tmp_path, 70001, env_end=0, environment=b"", program=False)  # of the kernel, or a zombie
    entry(tmp_path, 70002, env_end=4096, environment=b"")  # started with none
    entry(tmp_path, 70003, env_end=4096, environment=f"{NAME}=mine\0".encode())
    assert processes.find_marked(NAME, "mine") == [70003]


def test_a_program_that_is_never_loaded_is_left_after_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    monkeypatch.setattr(processes, "_LOADED", 0.01)
    entry(tmp_path, 70001, env_end=0, environment=b"")
    assert processes.find_marked(NAME, "mine") == []


def test_what_a_process_starts_while_it_is_told_to_end_is_told_too() -> None:
    for number in range(10):
        started = subprocess.Popen(["/bin/sh", "-c", "sleep 600; :"], env={NAME: f"{number}"}, start_new_session=True)
        assert started.pid in processes.end_marked(NAME, f"{number}", grace=600)
        assert processes.find_marked(NAME, f"{number}") == []
        started.wait(PATIENCE)


def test_what_no_signal_ends_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_signal", lambda *_: None)
    monkeypatch.setattr(processes, "KILLED", 0.2)
    with subprocess.Popen(["/bin/sleep", "600"], env={NAME: "stuck"}, start_new_session=True) as started:
        assert processes.end_marked(NAME, "stuck", grace=0.1) == [started.pid]
        assert processes.find_marked(NAME, "stuck") == [started.pid]
        started.kill()
