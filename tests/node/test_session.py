"""A step over ssh ends with its session; any other goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.node import identity

ROOT = Path(__file__).resolve().parents[2]
SERVER = "import subprocess, sys; subprocess.run([{python!r}, '-c', {code!r}, {kind!r}])"
STEP = f"""
import os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
from envbuild.node import identity
# Not by print: what prints when the signal comes may be printing still.
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"ended\\n"), os._exit(0)))
identity._POLL = 0.1
identity.follow(sys.argv[1])
# As the node program does: what is printed goes to standard error while a verb runs.
os.dup2(2, 1)
print("begun", flush=True)
time.sleep(0.8)
print("done", flush=True)
"""
# Python notices a signal that comes just before a sleep after it.
LONG = "while True: time.sleep(0.1)"


@pytest.mark.parametrize(
    ("name", "kind", "ends"),
    [
        ("sshd", "ansible.builtin.ssh", "killed"),
        ("sshd-session", "ansible.builtin.ssh", "killed"),
        # A connection that several sessions share goes on, and sshd keeps the pipe of standard error open.
        ("sshd", "ansible.builtin.ssh", "nobody reads its answer"),
        ("sshd", "ansible.builtin.local", ""),
        ("screen", "ansible.builtin.ssh", ""),
    ],
)
def test_a_step_ends_with_its_ssh_session_alone(tmp_path: Path, name: str, kind: str, ends: str) -> None:
    server = tmp_path / name
    server.symlink_to(sys.executable)
    # What has to be ended has all the time that a busy machine takes for it.
    step = STEP.replace("time.sleep(0.8)", LONG) if ends else STEP
    code = SERVER.format(python=sys.executable, code=step, kind=kind)
    pipe = subprocess.PIPE
    with subprocess.Popen([server, "-c", code], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stderr.readline() == "begun\n"
        if ends == "nobody reads its answer":
            process.stdout.close()
        else:
            process.kill()
        assert process.stderr.read() == ("ended\n" if ends else "done\n")


def test_the_first_process_is_nobodys_session() -> None:
    assert identity.find(1) is None
    assert identity.find(2**22 + 1) is None
