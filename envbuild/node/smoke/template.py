"""The other end of the smoke program `template`: copies of one process that has torch imported, as Popen shows them."""

import array
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time

from envbuild.node.protocol import Json

_LARGEST = 65536
_PATIENCE = 120.0  # s for the import of torch
_ANSWER = 20.0  # s for a fork


class Copy:
    """One program that runs as a copy: as much of `subprocess.Popen` as its reader needs."""

    def __init__(self, template: "Template", pid: int) -> None:
        """Made by `Template.start`."""
        self.pid = pid
        self.returncode: int | None = None
        self._template = template

    def poll(self) -> "int | None":
        """Its exit status (negative: the signal), None while it runs."""
        if self.returncode is None:
            self.returncode = self._template.status(self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Its exit status; raises subprocess.TimeoutExpired after `timeout` seconds."""
        until = time.monotonic() + timeout
        while True:
            status = self.poll()
            if status is not None:
                return status
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired("template", timeout)
            time.sleep(0.02)


class Template:
    """The process itself; it imports while something else runs. Used by several threads."""

    def __init__(self, argv: "list[str]", child: "dict[str, str]", cwd: str) -> None:
        """Start it with the argument list, the variables and the folder of the programs."""
        self._lock = threading.Lock()
        self._statuses: dict[int, int] = {}
        self._ready = False
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(os.devnull, "r+b") as nowhere:
            self._popen = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=nowhere,
                stderr=nowhere,
                env=child,
                cwd=cwd,
                start_new_session=True,
            )

    def start(self, name: str, request: str, output: int, seconds: float) -> "Copy | None":
        """Run program `name` on the file `request`; None where it needs a process of its own.

        Torch gets half of `seconds` to be imported, and two minutes at most; after that no more copies are made.
        """
        with self._lock:
            try:
                while not self._ready:
                    self._ready = bool(self._receive(min(seconds / 2, _PATIENCE)).get("ready"))
                message = json.dumps({"name": name, "request": request}).encode("utf-8")
                handed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [output]).tobytes())
                self._socket.sendmsg([message], [handed])
                answer: Json = {}
                while "started" not in answer:
                    answer = self._receive(_ANSWER)
            except (OSError, ValueError):  # it has ended, or does not answer
                self.close()
                return None
            return Copy(self, int(answer["started"])) if answer["started"] else None

    def status(self, pid: int) -> "int | None":
        """How the copy ended, None while it runs; the copies of a template that has ended are killed with it."""
        with self._lock:
            try:
                while pid not in self._statuses and select.select([self._socket], [], [], 0)[0]:
                    self._receive(0.0)
            except (OSError, ValueError):
                self._statuses[pid] = -signal.SIGKILL
            return self._statuses.get(pid)

    def _receive(self, seconds: float) -> Json:
        """The next message, the end of a copy noted; raises OSError or ValueError where there is none."""
        if not select.select([self._socket], [], [], seconds)[0]:
            raise OSError("no answer")
        answer: Json = json.loads(self._socket.recv(_LARGEST).decode("utf-8"))
        if "ended" in answer:
            self._statuses[int(answer["ended"])] = int(answer["status"])
        return answer

    def close(self) -> None:
        """End it, and its copies with it."""
        self._socket.close()
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)
        except OSError:
            pass
        self._popen.wait()
