"""One make job server for all builds of a run: a FIFO with a byte for each compile job, bounded by cores and memory.

ninja (1.13) takes a byte before each command that it runs beside its first, and puts it back after it, as make does.
Each build may run one command without a byte. A build whose tools take none is alone while it runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import tempfile
import threading
from collections.abc import Iterator

from envbuild.node import paths
from envbuild.node.build import build_dir
from envbuild.node.probe import system
from envbuild.node.probe.processes import at_work
from envbuild.node.protocol import Json
from envbuild.node.read_text import read

MEMORY_PER_JOB = 2.5  # GB; what cicc takes for Apex's larger kernels
_GB = 10**9
_PREFIX = "envbuild-jobs-"
_PAUSE = 0.2  # seconds between two looks for bytes


def free_memory(root: str = "/") -> float | None:
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


class Budget:
    """`jobs` compile jobs at once, as many as `memory` GB hold, for `builds` builds; a context manager.

    `retried`: the sources of which something was killed for memory and that were built once more. `fifo`: the path of
    the FIFO.
    """

    def __init__(self, jobs: int | None = None, memory: float | None = None, builds: int = 1) -> None:
        """Defaults: the cores and the free memory of this node."""
        self.memory = free_memory() if memory is None else memory
        self.jobs = max(1, jobs or system.cpu_count())
        self.jobs = self.limit()
        self.retried: set[str] = set()
        self.fifo = ""
        self.at_work: dict[str, tuple[str, str]] = {}  # project folder and report of the builds that run, by source
        self._left = builds
        self._running = 0
        self._alone = False
        self._changed = threading.Condition()

    def limit(self, memory_per_job: float = MEMORY_PER_JOB) -> int:
        """How many jobs of `memory_per_job` GB may run at once."""
        return max(1, self.jobs if self.memory is None else min(self.jobs, int(self.memory / memory_per_job)))

    @contextlib.contextmanager
    def build(self, alone: bool) -> Iterator[None]:
        """Wait until one more build may run, or, where its tools take no bytes, until it is `alone`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone and self._running < (1 if alone else self.jobs))
            self._running, self._alone = self._running + 1, alone
        try:
            yield
        finally:
            with self._changed:
                self._running, self._alone = self._running - 1, False
                self._settle()

    def ended(self) -> None:
        """One of the `builds` is over, or had nothing to build: another one may take its job."""
        with self._changed:
            self._left -= 1
            if self._running and self._left < self.jobs:
                os.write(self._handle, b"+")
            self._settle()

    def halve(self, source: str) -> None:
        """After something of `source` (its name) was killed for memory: half as many jobs from here on."""
        with self._changed:
            gone = self.jobs - max(1, self.jobs // 2)
            self.jobs -= gone
            self.retried.add(source)
        while gone and self._running:  # what others hold comes back
            if select.select([self._handle], [], [], _PAUSE)[0]:
                with contextlib.suppress(BlockingIOError):
                    gone -= len(os.read(self._handle, 1))
        with self._changed:
            self._settle()

    def _settle(self) -> None:
        """Where nothing runs, as many bytes as there should be: who was killed has put none back."""
        if not self._running:
            with contextlib.suppress(BlockingIOError):
                os.read(self._handle, 65536)
            os.write(self._handle, b"+" * (self.jobs - max(1, self._left)))
        self._changed.notify_all()

    def told(self) -> Json:
        """For `progress`: a file that is compiled now, and of the builds that say how many they have, how many are."""
        done = total = 0
        for project, report in list(self.at_work.values()):
            files = (paths.read_json(report) or {}).get("files", 0)
            objects = os.walk(os.path.join(project, "build")) if files else ()
            done += min(files, sum(name.endswith(".o") for _, _, names in objects for name in names))
            total += files
        return dict(at_work(), done=done, total=total, unit="files") if total else at_work()

    def __enter__(self) -> Budget:
        """Make the FIFO."""
        top = tempfile.gettempdir()
        build_dir.sweep(top, _PREFIX)
        self._folder = tempfile.mkdtemp(prefix=_PREFIX, dir=top)
        build_dir.sign(self._folder)
        self.fifo = os.path.join(self._folder, "jobs")
        os.mkfifo(self.fifo, 0o600)
        self._handle = os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK)  # its bytes live as long as somebody has it open
        with self._changed:
            self._settle()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it."""
        os.close(self._handle)
        shutil.rmtree(self._folder, ignore_errors=True)
