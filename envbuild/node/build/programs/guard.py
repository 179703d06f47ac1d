"""A program around a whole build: at its end, or when who started it is gone, it ends all that the build started.

    guard.py PYTHON ...

Runs under any Python >= 3.6 with `-I -S`, and imports nothing else of the node program.
"""

import os
import signal
import subprocess
import sys
import time

_SWEEPS = 50  # times to look for what a session still runs, 20 ms apart


def _in_session(session: int) -> "list[int]":
    """Process ids of a session, those that ended and wait for their parent left out (proc(5), fields 3 and 6)."""
    pids = []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        try:
            with open("/proc/%d/stat" % pid) as stream:
                fields = stream.read().rpartition(")")[2].split()
        except (OSError, UnicodeDecodeError):
            continue
        if len(fields) > 3 and int(fields[3]) == session and fields[0] not in ("Z", "X"):
            pids.append(pid)
    return pids


def _end_session() -> None:
    """End what the command left running. Not by group: ninja gives every compile command a group of its own."""
    own = os.getpid()
    if os.getsid(0) != own:
        return  # not started as a build is: the session has others in it
    for _ in range(_SWEEPS):
        left = [pid for pid in _in_session(own) if pid != own]
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        if not left:
            return
        time.sleep(0.02)


def main(command: "list[str]") -> int:
    """Run `command` with errors among the output; returns its exit code. Nothing of it runs on afterwards.

    143 after SIGTERM, 125 when the builder is gone.
    """
    os.dup2(1, 2)
    builder = os.getppid()
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    process = subprocess.Popen(command)
    while process.poll() is None and not signals and os.getppid() == builder:
        time.sleep(0.05)
    code = process.poll()
    _end_session()
    if code is None:
        return 143 if signals else 125
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
