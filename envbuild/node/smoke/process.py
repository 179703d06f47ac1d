"""Processes of smoke programs: one for one program, or a worker of a rank that runs several one after another.

Their output is drained, so that it can neither block nor fill a disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import uuid

_STATUS = re.compile(rb" (-?\d+)\n")


class Turn:
    """One program in a process: `returncode` (negative: a signal; None while it runs) and the end of its `output`."""

    def __init__(self, process: Process, end: str = "") -> None:
        """`end` begins the line with which a worker says how the program ended; empty: with its process."""
        self.returncode: int | None = None
        self.output = b""
        self.end = ("\n" + end).encode("ascii") if end else b""
        self._process = process

    def ended(self) -> bool:
        """Whether the program has ended, or the process that it ran in."""
        if self.returncode is None:
            status = self._process.status()
            if self.returncode is None:
                self.returncode = status
        return self.returncode is not None

    def take(self, output: bytes, keep: int) -> None:
        """Keep the last `keep` bytes of the output so far, and the status where the worker has said it."""
        at = output.find(self.end) if self.end else -1
        status = _STATUS.match(output, at + len(self.end)) if at >= 0 else None
        self.output = (output[:at] if status else output)[-keep:]
        if status:
            self.returncode = int(status.group(1))

    def stop(self) -> None:
        """End the process, and what it has started."""
        self._process.kill()


class Process:
    """One process. Without `request`, the file that is its stdin, it is a worker (see `programs/worker.py`)."""

    def __init__(self, argv: list[str], child: dict[str, str], cwd: str, keep: int, request: str | None = None) -> None:
        """Start it; `keep`: how many bytes of the output of each program are kept."""
        self._keep = keep
        self.turn = Turn(self)
        with contextlib.ExitStack() as stack:
            stdin = stack.enter_context(open(request, "rb")) if request else subprocess.PIPE
            self._popen = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=child,
                cwd=cwd,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def next(self, name: str, request: str) -> Turn:
        """Run program `name` on the file `request` in this worker; in one that has ended, it ends as that did."""
        end = uuid.uuid4().hex
        self.turn = Turn(self, end)
        line = json.dumps({"name": name, "request": request, "end": end}) + "\n"
        with contextlib.suppress(OSError):
            self._popen.stdin.write(line.encode("ascii"))  # type: ignore[union-attr]
            self._popen.stdin.flush()  # type: ignore[union-attr]
        return self.turn

    def status(self) -> int | None:
        """Its exit status, None while it runs; once it has one, its last output has been read."""
        status = self._popen.poll()
        if status is not None:
            self._reader.join(timeout=1)  # what it has started may still hold the other end
        return status

    def _read(self) -> None:
        turn, output = self.turn, b""
        with self._popen.stdout as pipe:  # type: ignore[union-attr]
            for block in iter(lambda: os.read(pipe.fileno(), 65536), b""):
                if turn is not self.turn:
                    turn, output = self.turn, b""
                output += block
                turn.take(output, self._keep)
                output = output[-self._keep - 100 :]

    def kill(self) -> None:
        """Kill the whole process group; a group that is already gone is fine."""
        with contextlib.suppress(OSError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: nothing more can be done from here
            self._popen.wait(timeout=5)
