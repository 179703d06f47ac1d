"""One budget of compile jobs for every source and extension of a run, bounded by cores and memory.

The budget listens on a Unix socket; gates (`programs/job_client.py`) ask it before each compile command. A token is a
line that is open: a gate that is killed gives its own back, and a builder that is killed closes all, which ends the
compilers.
"""

import contextlib
import heapq
import json
import os
import re
import selectors
import shutil
import socket
import tempfile
import threading
import time

from envbuild.node.build import build_dir
from envbuild.node.probe import system
from envbuild.node.probe.processes import at_work
from envbuild.node.protocol import Json, log, plural
from envbuild.node.read_text import read

MEMORY_PER_JOB = 2.5  # GB; what cicc takes for Apex's larger kernels
_GB = 10**9
_SOCKET_LIMIT = 90  # bytes of a Unix socket's path; the system's limit is 107
_PREFIX = "envbuild-jobs-"
# The first files of a source are held until no other has come for so long, or for so long in all (seconds): in three
# recorded builds of 39 to 44 files the first sixteen came within half a second, and the longest of all behind them.
_QUIET, _BOUND = 0.5, 3.0


def free_memory(root: str = "/") -> "float | None":
    """GB that new processes may take: MemAvailable, or what the cgroup leaves where that is less."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", read(os.path.join(root, "proc/meminfo")), re.MULTILINE)
    values = [int(found.group(1)) * 1024.0] if found else []
    base = os.path.join(root, "sys/fs/cgroup")
    places = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
    for limit, usage in places:
        texts = [read(os.path.join(base, name)).strip() for name in (limit, usage)]
        if all(re.match(r"\d{1,18}\Z", text) for text in texts):
            values.append(float(int(texts[0]) - int(texts[1]) + _reclaimable(base, limit)))
    total = system.memory_bytes(root)
    if total is not None:
        values.append(float(total))
    return max(0.0, min(values)) / _GB if values else None


def _reclaimable(base: str, limit: str) -> int:
    """Bytes of page cache that the kernel gives up first; they are counted as used."""
    text = read(os.path.join(base, os.path.dirname(limit), "memory.stat"))
    found = re.search(r"^(?:total_)?inactive_file (\d+)", text, re.MULTILINE)
    return int(found.group(1)) if found else 0


class _Line:
    """One gate: what it asked for, and what it holds."""

    def __init__(self, connection: "socket.socket") -> None:
        self.connection = connection
        self.data = b""
        self.source = ""
        self.cores = 0
        self.memory = 0.0
        self.kills = 0
        self.file = ""


class Budget:
    """`jobs` compile jobs at once, and no more memory than `memory` GB as the jobs estimate it; a context manager.

    `retried`: the sources of which something was killed for memory and ran once more. `peak` is the most that ran at
    once.
    """

    def __init__(self, jobs: "int | None" = None, memory: "float | None" = None) -> None:
        """Defaults: the cores and the free memory of this node."""
        self.jobs = max(1, jobs or system.cpu_count())
        self.memory = free_memory() if memory is None else memory
        self.retried: set[str] = set()
        self.peak = 0
        self._files, self._compiled = 0, 0
        self._lock = threading.RLock()
        self._waiting: list[tuple[int, int, _Line, Json]] = []
        self._lines: dict[socket.socket, _Line] = {}
        self._count = 0
        self._sources: set[str] = set()
        self._begin, self._bound = 0.0, 0.0  # of what is held, monotonic: when it is granted, and at the latest
        self._folder = ""
        self._thread: threading.Thread | None = None

    @property
    def socket(self) -> str:
        """Path of the socket."""
        return os.path.join(self._folder, "jobs")

    def limit(self, memory_per_job: "float | None" = None) -> int:
        """How many jobs of `memory_per_job` GB may run at once."""
        each = memory_per_job or MEMORY_PER_JOB
        with self._lock:
            return max(1, self.jobs if self.memory is None else min(self.jobs, int(self.memory / each)))

    def told(self) -> Json:
        """For `progress`: how many files are compiled, of how many, and one that is compiled now."""
        with self._lock:
            running = [line for line in list(self._lines.values()) if line.file and line.cores]
            if not self._files and not running:
                return at_work()
            what = "%s: %s" % (running[0].source, running[0].file) if running else ""
            total = max(self._files, self._compiled + len(running))
            return {"what": what, "done": self._compiled, "total": total, "unit": "files"}

    def halve(self, source: str) -> None:
        """After an OOM kill of a compiler of `source` (its name): half as many as ran."""
        with self._lock:
            running = sum(line.cores for line in self._lines.values())
            self.jobs = max(1, min(self.jobs, running or self.jobs) // 2)
            self.retried.add(source)

    def __enter__(self) -> "Budget":
        """Open the socket."""
        top = tempfile.gettempdir()
        if len(os.fsencode(top)) > _SOCKET_LIMIT - 30:
            top = "/tmp"  # noqa: S108 - mkdtemp makes a private folder
        build_dir.sweep(top, _PREFIX)
        self._folder = tempfile.mkdtemp(prefix=_PREFIX, dir=top)
        build_dir.sign(self._folder)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.socket)
        self._listener.listen(128)
        self._wake, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close every line, which ends what still compiles."""
        self._waker.send(b"x")
        if self._thread is not None:
            self._thread.join(10.0)
        for each in [self._listener, self._wake, self._waker] + list(self._lines):
            each.close()
        self._selector.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(self._held()):
                if key.fileobj is self._wake:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(self._lines[key.fileobj])  # type: ignore[index]
            with self._lock:
                if not self._held():
                    self._bound = 0.0
                    self._grant()

    def _held(self) -> "float | None":
        """Seconds until what came first is granted, in order with all that came with it; None where nothing is held."""
        return max(0.0, self._begin - time.monotonic()) if self._bound else None

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        self._lines[connection] = _Line(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, line: "_Line") -> None:
        try:
            part = line.connection.recv(65536)
        except OSError:
            part = b""
        if not part:
            self._close(line)
            return
        line.data += part
        while b"\n" in line.data:
            text, _, line.data = line.data.partition(b"\n")
            self._answer(line, json.loads(text.decode("ascii")))

    def _close(self, line: "_Line") -> None:
        self._selector.unregister(line.connection)
        with self._lock:
            self._compiled += bool(line.file and line.cores)
            del self._lines[line.connection]
            self._waiting = [each for each in self._waiting if each[2] is not line]
            heapq.heapify(self._waiting)
        line.connection.close()

    def _answer(self, line: "_Line", message: Json) -> None:
        if message["op"] == "take":
            with self._lock:
                self._count += 1
                line.source, line.file = str(message.get("source", "")), str(message.get("file", ""))
                now = time.monotonic()
                if line.file and line.source not in self._sources:
                    self._sources.add(line.source)
                    self._bound = now + _BOUND
                self._begin = min(now + _QUIET, self._bound)
                heapq.heappush(self._waiting, (-int(message["weight"]), self._count, line, message))
        elif message["op"] == "killed":
            with self._lock:
                line.kills += 1
                if line.kills == 1:
                    self.halve(line.source)
                line.cores, line.memory = 0, 0.0
                now = self.jobs
            log("a compiler was killed for memory: %s at once from here on" % plural(now, "job"))
            self._send(line, {"again": line.kills == 1})
        elif message["op"] == "event":
            log(str(message["text"])[:500])
        elif message["op"] == "files":
            with self._lock:
                self._files += int(message["count"])

    def _grant(self) -> None:
        """Start what fits, the longest first; the first that does not fit holds back the rest, so that none starves."""
        while self._waiting:
            running = sum(line.cores for line in self._lines.values())
            used = sum(line.memory for line in self._lines.values())
            _, _, line, message = self._waiting[0]
            cores = max(1, min(int(message["cores"]), self.jobs))
            each = float(message["memory"])
            free = float("inf") if self.memory is None else self.memory - used
            if running and (running + cores > self.jobs or each * cores > free):
                return
            heapq.heappop(self._waiting)
            idle = 0
            if not self._waiting:  # nobody else wants them now: an nvcc of several architectures may
                idle = min(int(message.get("more", 0)), (self.jobs - running - cores + 1) // 2)
                while idle > 0 and each * (cores + idle) > free:
                    idle -= 1
                idle = max(0, idle)
            line.cores, line.memory = cores + idle, each * (cores + idle)
            self.peak = max(self.peak, running + line.cores)
            self._send(line, {"idle": idle})

    def _send(self, line: "_Line", message: Json) -> None:
        with contextlib.suppress(OSError):  # it is gone; the next read sees the end and gives its token back
            line.connection.sendall(json.dumps(message).encode("ascii") + b"\n")
