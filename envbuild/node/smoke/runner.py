"""Runs smoke programs in the environment's interpreter: isolated, with a deadline, and told apart when they die.

The programs are the modules of `programs/`. Their text is copied to a scratch folder and started from there: the
package may lie inside a zip file that the environment's interpreter does not know.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from envbuild.node import paths, proc, program_files, redact
from envbuild.node.build import build_dir
from envbuild.node.conda import activation
from envbuild.node.protocol import Json
from envbuild.node.read_text import json_lines, read
from envbuild.node.smoke import training_log
from envbuild.node.smoke.process import Process, Turn

# `-I` ignores PYTHONPATH, the user's site packages and the current folder.
# A stack without numpy has none on purpose, and the last words of a program that fails are to be its own.
_QUIET = "ignore:Failed to initialize NumPy:UserWarning"
FLAGS = ["-I", "-u", "-X", "faulthandler", "-W", _QUIET]
_START = (
    "import runpy, sys; sys.path.insert(0, sys.argv[1]); name = sys.argv[2]; "
    "sys.argv[1:] = []; runpy.run_module('envbuild_smoke.' + name, run_name='__main__', alter_sys=True)"
)
_PROGRAMS = "envbuild.node.smoke.programs"
# Set in NVIDIA's images: with TF32 no product in float32 equals its reference. Torch 1.12 and 1.13 obey nothing else.
_TF32 = frozenset({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"})
_TAIL = 6000
_EVENTS_LIMIT = 4 * 1024 * 1024
_GRACE = 3.0  # s after the deadline, for the stack dump of the program itself
_SIBLING_GRACE = 5.0  # s for the other ranks to end by themselves after one has died


@dataclass
class Outcome:
    """How one process ended: `events` as it wrote them, `stderr` its last lines, `seconds` of wall time."""

    returncode: int | None = None
    timed_out: bool = False
    stopped: bool = False
    seconds: float = 0.0
    events: list[Json] = field(default_factory=list)
    stderr: str = ""

    def of(self, kind: str) -> list[Json]:
        """The events of one kind, in order."""
        return [event for event in self.events if event.get("kind") == kind]

    def stage(self) -> str:
        """What it was doing last, as it said itself."""
        stages = self.of("stage")
        return str(stages[-1].get("what")) if stages else "start-up"

    def facts(self) -> Json:
        """All facts it reported, later ones over earlier ones."""
        merged: Json = {}
        for event in self.of("facts"):
            merged.update(event.get("data") or {})
        return merged


# The first line of what was raised, below its traceback; torch puts a rank before each line.
_RAISED = re.compile(
    r"^((?:\[rank\d+\]: )?)Traceback \(most recent call last\):\n(?:\1[ \t].*\n)*\1(\S.*)$", re.MULTILINE
)


def last_words(text: str, raised: bool = False) -> str:
    """The last line that is not empty, at most 300 characters; where it `raised`, that of the last traceback.

    What torch raises for a CUDA error ends with general advice.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if raised:
        found = _RAISED.findall("\n".join(training_log.without_ignored(text.splitlines())))
        lines = [found[-1][1]] if found else lines
    return lines[-1][:300] if lines else ""


def causes_first(outcomes: list[Outcome]) -> list[tuple[int, Outcome]]:
    """(rank, outcome): a hang before the time-out that it gave another rank, and what was stopped for it last."""
    return sorted(enumerate(outcomes), key=lambda each: (each[1].stopped, not each[1].timed_out))


def how_it_ended(outcome: Outcome, deadline: float) -> str | None:
    """One phrase for an end that is not a regular one; None when the program reached its end."""
    during = f" during {outcome.stage()}"
    if outcome.timed_out:
        return f"hung past its deadline of {round(deadline, 1):g} s{during}"
    if outcome.stopped:
        return f"was stopped{during}, because another rank had ended"
    code = outcome.returncode
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        note = " (the kernel does this when memory runs out)" if name == "SIGKILL" else ""
        return f"crashed with {name}{note}{during}"
    if code != 0:
        last = last_words(outcome.stderr, raised=code == 1)
        return f"ended with exit code {code}{during}{': ' + last if last else ''}"
    if not outcome.of("done"):
        return f"ended without saying that it was done{during}"
    return None


class Scratch:
    """A private folder with the programs' text; removed at the end. Use it in a `with` statement."""

    def __init__(self, tmp: str | None, programs: dict[str, str] | None = None) -> None:
        """`tmp` is where the folder goes (None: the system's place), `programs` replaces texts by module name."""
        self._tmp = tmp
        self._programs = programs or {}
        self.path = ""
        self._workers: dict[int, Process] = {}
        self.turns = threading.Lock()  # held while workers run a program
        self._live: list[Turn] = []
        self._lock = threading.Lock()
        self._closed = False
        self._count = itertools.count(1)

    def __enter__(self) -> Scratch:
        """Make the folder (mode 0700) and write the programs."""
        if self._tmp and not os.path.isdir(self._tmp):
            os.makedirs(self._tmp)
        self.path = tempfile.mkdtemp(prefix="smoke-", dir=self._tmp or None)
        build_dir.sign(self.path)
        package = os.path.join(self.path, "envbuild_smoke")
        os.mkdir(package)
        os.mkdir(os.path.join(self.path, "tmp"))
        self._write("__init__", "")
        program_files.write(_PROGRAMS, package)
        for name, text in self._programs.items():
            self._write(name, text)
        return self

    def __exit__(self, *exc: object) -> None:
        """Remove everything."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """End what still runs; nothing is started any more."""
        with self._lock:
            self._closed = True
        for turn in self._live:
            if not turn.ended():
                turn.stop()
        for worker in self._workers.values():
            worker.kill()

    def _write(self, name: str, text: str) -> None:
        with open(os.path.join(self.path, "envbuild_smoke", name + ".py"), "w", encoding="utf-8") as file:
            file.write(text)

    def fresh(self, name: str) -> str:
        """A path in the folder that was not given before."""
        return os.path.join(self.path, f"{name}-{next(self._count)}")

    def flags(self) -> list[str]:
        """The flags of every Python that the test starts; what one has compiled, the next need not."""
        return FLAGS + ["-X", "pycache_prefix=" + os.path.join(self.path, "byte-code")]

    def start(self, make: Callable[[], Turn]) -> Turn:
        """Start a program, which ends with this folder at the latest. Raises RuntimeError once that is closed."""
        with proc.starting(), self._lock:
            if self._closed:
                raise RuntimeError("the smoke test has ended")
            self._live.append(make())
            return self._live[-1]

    def worker(self, rank: int, environment: str, variables: Json) -> Process:
        """The worker of a rank; a new one where there is none, or where the last program has ended it."""
        worker = self._workers.get(rank)
        if worker is None or worker.status() is not None:
            child = child_environment(environment, variables, self.path)
            worker = Process(program(self, environment, "worker"), child, self.path, _TAIL)
            self._workers[rank] = worker
        return worker


def child_environment(environment: str, variables: Json, scratch: str) -> dict[str, str]:
    """The variables of a smoke process: the caller's without PYTHON* and TF32, conda packages', the stack's above them.

    Caches lie in the scratch folder.
    """
    child = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON") and key not in _TF32}
    child["VIRTUAL_ENV"] = environment
    child["PATH"] = paths.search_path(environment, child.get("PATH"))
    child.update(activation.onto(environment, child))
    child["PYTHONPYCACHEPREFIX"] = os.path.join(scratch, "byte-code")  # for Python that an imported module starts
    child["PYTHONNOUSERSITE"] = "1"
    for key in ("TMPDIR", "XDG_CACHE_HOME", "CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR"):
        child[key] = os.path.join(scratch, "tmp")
    for key, value in variables.items():
        if isinstance(value, dict):
            if os.path.exists(str(value.get("path"))):
                child[key] = str(value["path"])
        else:
            child[key] = str(value)
    return child


class _Running:
    """One program that runs."""

    def __init__(self, turn: Turn, events: str) -> None:
        self.outcome = Outcome()
        self._turn = turn
        self._events = events
        self._started = time.monotonic()

    def ended(self) -> bool:
        """True once the program has ended; records when."""
        if self.outcome.returncode is None and self._turn.ended():
            self.outcome.returncode = self._turn.returncode
            self.outcome.seconds = time.monotonic() - self._started
        return self.outcome.returncode is not None

    def finish(self) -> Outcome:
        """Collect events and the last lines of output; what still runs is ended."""
        if not self.ended():
            self.outcome.seconds = time.monotonic() - self._started
            self._turn.stop()
        self.outcome.stderr = redact.redact_text(self._turn.output.decode("utf-8", "replace"))
        self.outcome.events = redact.redact_data(read_events(self._events))
        if self.outcome.returncode != 0 or self.outcome.of("again"):  # what it has left is for no other program
            self._turn.stop()
        return self.outcome


def read_events(path: str) -> list[Json]:
    """The events in a file; what is not a JSON object on a line of its own (a torn write) is left out."""
    return json_lines(read(path, _EVENTS_LIMIT))


def run_programs(
    scratch: Scratch,
    environment: str,
    variables: Json,
    name: str,
    requests: list[Json],
    deadline: float,
    alone: bool = False,
) -> list[Outcome]:
    """Run program `name` once per request, at the same time, for at most `deadline` seconds; outcomes in order.

    When one process ends badly the others get a few seconds to notice and are then stopped. Each runs in the worker of
    its rank, which has torch imported; `alone`: in a process that has imported nothing before.
    """
    if alone:
        child = child_environment(environment, variables, scratch.path)
        return run_processes(scratch, program(scratch, environment, name), child, requests, deadline)
    until = time.monotonic() + deadline
    with scratch.turns:
        workers = [scratch.worker(rank, environment, variables) for rank in range(len(requests))]

        def start(rank: int, request: str) -> Turn:
            return workers[rank].next(name, request)

        return _run(scratch, start, requests, max(until - time.monotonic(), 0.1))


def program(scratch: Scratch, environment: str, name: str, first: str = "") -> list[str]:
    """The argument list that runs program `name` in the environment's interpreter, after the Python text `first`."""
    return [os.path.join(environment, "bin", "python")] + scratch.flags() + ["-c", first + _START, scratch.path, name]


def run_processes(
    scratch: Scratch,
    argv: list[str],
    child: dict[str, str],
    requests: list[Json],
    deadline: float,
    keep: int = _TAIL,
) -> list[Outcome]:
    """The same for an argument list and the variables `child`; of each output the last `keep` bytes are kept."""

    def start(_: int, request: str) -> Turn:
        return Process(argv, child, scratch.path, keep, request).turn

    return _run(scratch, start, requests, deadline)


def _run(scratch: Scratch, start: Callable[[int, str], Turn], requests: list[Json], deadline: float) -> list[Outcome]:
    until = time.monotonic() + deadline + _GRACE
    running: list[_Running] = []
    try:
        for rank, request in enumerate(requests):
            full = dict({"events": scratch.fresh("events")}, **request)
            full["deadline"] = max(deadline, 0.1)
            path = scratch.fresh("request")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(full, file)
            turn = scratch.start(partial(start, rank, path))
            running.append(_Running(turn, str(full["events"])))
        _wait(running, until)
    finally:
        outcomes = [each.finish() for each in running]
    return outcomes


def _wait(running: list[_Running], until: float) -> None:
    stop_at: float | None = None
    while sum(each.ended() for each in running) < len(running):  # every one is asked each time
        now = time.monotonic()
        if stop_at is None and any(each.outcome.returncode for each in running):
            stop_at = now + _SIBLING_GRACE
        if now >= until or (stop_at is not None and now >= stop_at):
            for each in running:
                if not each.ended():
                    each.outcome.timed_out = now >= until
                    each.outcome.stopped = now < until
            return
        time.sleep(0.02)
