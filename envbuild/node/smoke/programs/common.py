"""What every smoke program does the same way; imported inside the environment, so neither torch nor numpy here.

A program is a module with a function `main`. Its request is JSON, from stdin or from the file that `SHARED` names. It
appends one JSON event a line to the file that the request names. Its standard output belongs to whatever it imports.
Events survive a crash, so the reader knows what was being done.
"""

import faulthandler
import importlib
import json
import math
import os
import statistics
import sys
import time
from typing import Any, Dict, List, Tuple

# Class and machine of an ELF header (elf.h).
_MACHINES: Dict[Tuple[int, ...], str] = {
    (1, 3): "i386",
    (2, 62): "x86_64",
    (1, 40): "arm",
    (2, 183): "aarch64",
    (2, 21): "ppc64le",
    (2, 243): "riscv64",
}


SHARED = "ENVBUILD_SMOKE_REQUEST"  # the variable that names the file of a request which ranks share
NO_GPU = "torch sees no GPU (driver missing, too old for this build, or CUDA_VISIBLE_DEVICES empty)"

# With these Open MPI (4, and 5 through PRRTE) starts what it would refuse: as root, as whom containers run, and more
# ranks than the slots that it knows of, which are the cores, or what a scheduler tells.
OPEN_MPI_AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
OPEN_MPI_OVERSUBSCRIBED = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class Channel:
    """Appends events to the file that the orchestrator reads."""

    def __init__(self, path: str) -> None:
        """Open `path` for appending, line by line."""
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - lives as long as the process

    def emit(self, kind: str, data: Dict[str, Any]) -> None:
        """One event, on disk before this returns."""
        self._file.write(json.dumps(dict(data, kind=kind)) + "\n")
        self._file.flush()

    def stage(self, what: str) -> None:
        """Say what is being done now; named when the program dies or hangs in it."""
        self.emit("stage", {"what": what})

    def failure(self, what: str) -> None:
        """A check that did not hold."""
        self.emit("failure", {"what": what})

    def facts(self, data: Dict[str, Any]) -> None:
        """Values worth keeping in the evidence."""
        self.emit("facts", {"data": data})

    def metric(self, name: str, unit: str, values: List[float]) -> None:
        """A measured number with its sample: median, least and greatest of `values` (at least one)."""
        if not all(math.isfinite(value) for value in values):
            self.failure("%s is not a finite number" % name)
            return
        sample = {"name": name, "unit": unit, "n": len(values), "median": statistics.median(values)}
        self.emit("metric", dict(sample, least=min(values), greatest=max(values)))

    def done(self) -> None:
        """The program reached its end; without this event it did not."""
        self.emit("done", {})


def begin() -> Tuple[Dict[str, Any], Channel]:
    """The request and the channel for its answer. At the deadline all stacks go to stderr, then the reader kills.

    The request is this process's own, or that of all ranks of a launcher, which hands them nothing.
    """
    shared = os.environ.get(SHARED)
    stacks = 2  # type: Any
    if shared is None:
        args = dict(json.load(sys.stdin))
    else:
        with open(shared, encoding="utf-8") as file:
            args = dict(json.load(file))
    if "until" in args:  # of ranks that torchrun starts each has files of its own, and what is left of the time
        args["events"] = "%s-%s" % (args["events"], os.environ["LOCAL_RANK"])
        args["deadline"] = max(0.1, float(args["until"]) - time.monotonic())
        stacks = open(args["events"] + ".stacks", "w", encoding="utf-8")  # noqa: SIM115 - faulthandler keeps it
    faulthandler.enable(file=stacks, all_threads=True)
    faulthandler.dump_traceback_later(float(args["deadline"]), exit=False, file=stacks)
    return args, Channel(args["events"])


def run(name: str) -> None:
    """Import a program and run its `main` with the request and the channel for its answer. A worker has no `main`."""
    main = getattr(importlib.import_module("." + name, __package__), "main", None)
    if main is not None:
        args, channel = begin()
        main(args, channel)
        channel.done()


def torch_version(torch: Any) -> List[int]:
    """`[1, 8]` of `1.8.0a0+17f8c32`."""
    return [int(part) for part in str(torch.__version__).split(".")[:2]]


def other_machine(error: BaseException) -> str:
    """` (it is built for aarch64, this is x86_64)` of an extension that the loader refused for that, else nothing.

    The loader itself says that there is no such file.
    """
    path = getattr(error, "path", None) if isinstance(error, ImportError) else None
    built, here = _elf_machine(path or ""), _elf_machine(sys.executable)
    if not built or not here or built == here:
        return ""
    return " (it is built for %s, this is %s)" % tuple(_MACHINES.get(kind, "another machine") for kind in (built, here))


def _elf_machine(path: str) -> Tuple[int, ...]:
    """Class (32 or 64 bit) and machine of an ELF file; nothing of anything else."""
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:
        return ()
    if len(head) < 20 or not head.startswith(b"\x7fELF"):
        return ()
    return head[4], int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
