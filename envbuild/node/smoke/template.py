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
        """Run program `name` on the file `request`; None where no copies can be had within `seconds`."""
        with self._lock:
            try:
                self._ready = self._ready or bool(self._receive(seconds).get("ready"))
                if not self._ready:
                    return None
                message = json.dumps({"name": name, "request": request}).encode("utf-8")
                handed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [output]).tobytes())
                self._socket.sendmsg([message], [handed])
                answer: Json = {}
                while "started" not in answer:
                    answer = self._receive(seconds)
                return Copy(self, int(answer["started"]))
            except (OSError, ValueError):  # it has ended, or did not answer: the program gets a process of its own
                self._ready = False
                return None

    def status(self, pid: int) -> "int | None":
        """How the copy ended, None while it runs; 1 where nobody is left who could tell."""
        with self._lock:
            try:
                while pid not in self._statuses and select.select([self._socket], [], [], 0)[0]:
                    self._receive(0.0)
            except (OSError, ValueError):
                self._statuses[pid] = 1
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
        """End it; its copies are ended by whoever started them."""
        self._socket.close()
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)
        except OSError:
            pass
        self._popen.wait()
