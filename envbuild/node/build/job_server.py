"""One make job server for all builds of a run: a FIFO with a byte for each compile job, bounded by cores and memory.

ninja (1.13) takes a byte before each command that it runs beside its first, and puts it back after it, as make does.
The first command of a build goes without: the build itself holds a byte. One whose tools take none is alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import tempfile
import threading
from collections.abc import Iterable, Iterator

from envbuild.node import paths
from envbuild.node.build import build_dir
from envbuild.node.probe import system
from envbuild.node.probe.processes import at_work
from envbuild.node.protocol import Json
from envbuild.node.read_text import first, integer, read

MEMORY_PER_JOB = 2.5  # GB; what cicc takes for Apex's larger kernels
_GB = 10**9
_KIND = "envbuild-jobs"


def free_memory(root: str = "/") -> float | None:
    """GB that new processes may take: MemAvailable, or what the cgroup leaves where that is less."""
    available = first(r"(?m)^MemAvailable:\s*(\d+) kB", read(os.path.join(root, "proc/meminfo")))
    values = [int(available) * 1024] if available else []
    for folder, names in (("", ("max", "current")), ("memory", ("limit_in_bytes", "usage_in_bytes"))):
        base = os.path.join(root, "sys/fs/cgroup", folder, "memory.")
        limit, usage = (integer(read(base + name).strip()) for name in names)
        if limit is not None and usage is not None:
            # Page cache that the kernel gives up first is counted as used.
            values.append(limit - usage + int(first(r"(?m)^(?:total_)?inactive_file (\d+)", read(base + "stat")) or 0))
    values += filter(None, [system.memory_bytes(root)])
    return max(0, min(values)) / _GB if values else None


class Budget:
    """`jobs` compile jobs at once, as many as `memory` GB hold; a context manager. `fifo`: the path of the FIFO."""

    def __init__(self, jobs: int | None = None, memory: float | None = None) -> None:
        """Defaults: the cores and the free memory of this node."""
        self.memory = free_memory() if memory is None else memory
        self.jobs = max(1, jobs or system.cpu_count())
        self.jobs = self.limit()
        self.fifo = ""
        self.at_work: dict[str, tuple[str, str]] = {}  # project folder and report of the builds that run, by source
        self._running = 0
        self._alone = False
        self._changed = threading.Condition()

    def limit(self, memory_per_job: float = MEMORY_PER_JOB) -> int:
        """How many jobs of `memory_per_job` GB may run at once."""
        return max(1, self.jobs if self.memory is None else min(self.jobs, int(self.memory / memory_per_job)))

    def expect(self, names: Iterable[str]) -> None:
        """Make a file `fifo`-NAME for each build that will begin; there it writes how many files it compiles."""
        for name in names:
            open(f"{self.fifo}-{name}", "w").close()

    def forget(self, name: str) -> None:
        """Let no build wait for `name` (any more)."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.fifo}-{name}")

    @contextlib.contextmanager
    def build(self, name: str, alone: bool) -> Iterator[None]:
        """Wait for a job and hold it; a build whose tools take no bytes waits until it is `alone`, and has all."""
        with self._changed:

            def free() -> bool:
                return not self._alone and self._running < (1 if alone else self.jobs)

            if not free():
                self.forget(name)  # those that it waits for do not wait for it
            self._changed.wait_for(free)
            if not self._running:  # who was killed has put no bytes back
                if select.select([self._handle], [], [], 0)[0]:
                    os.read(self._handle, 65536)
                os.write(self._handle, b"+" * self.jobs)
            self._running, self._alone = self._running + 1, alone
        byte = b"" if alone else os.read(self._handle, 1)
        try:
            yield
        finally:
            with self._changed:
                os.write(self._handle, byte)
                self._running, self._alone = self._running - 1, False
                self._changed.notify_all()

    def progress(self) -> Json:
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
        build_dir.sweep(top, _KIND)
        self._folder = tempfile.mkdtemp(prefix=f"{_KIND}-", dir=top)
        build_dir.sign(self._folder)
        self.fifo = os.path.join(self._folder, "jobs")
        os.mkfifo(self.fifo, 0o600)
        self._handle = os.open(self.fifo, os.O_RDWR)  # its bytes live as long as somebody has it open
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it."""
        os.close(self._handle)
        build_dir.remove(self._folder)
