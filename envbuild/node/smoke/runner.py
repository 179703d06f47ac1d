"""Runs smoke programs in the environment's interpreter: isolated, with a deadline, and told apart when they die.

The programs are the modules of `programs/`. Their text is copied to a scratch folder and started from there: the
package may lie inside a zip file that the environment's interpreter does not know. A process runs one program, or as
the worker of a rank several one after another. Its output is drained, so that it can neither block nor fill a disk.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from envbuild.node import paths, proc, program_files, redact
from envbuild.node.build import build_dir
from envbuild.node.conda import activation
from envbuild.node.protocol import Json
from envbuild.node.read_text import json_lines, read
from envbuild.node.smoke import training_log

# `-I` ignores PYTHONPATH, the user's site packages and the current folder.
# A stack without numpy has none on purpose, and the last words of a program that fails are to be its own.
_QUIET = "ignore:Failed to initialize NumPy:UserWarning"
FLAGS = ["-I", "-u", "-X", "faulthandler", "-W", _QUIET]
# The kernel ends a program with the thread that started it, also where its process is killed: alone it would write on
# into a folder that another run removes. So a thread that starts one has to live as long as the folder. A rank of
# torchrun has a session of its own.
# What every program needs of the standard library is read from the byte code that this has: compiling it takes longer
# than a check. What the environment has is compiled beside it, once for all programs.
_START = (
    "import contextlib\nwith contextlib.suppress(ImportError):\n"
    "    import ctypes; ctypes.CDLL(None).prctl(1, 9)\n"  # PR_SET_PDEATHSIG, SIGKILL
    "with contextlib.suppress(ImportError):\n    import importlib.metadata\n"  # Python 3.8
    "import ast, inspect, json, runpy, statistics, sys, traceback, typing; "
    "sys.pycache_prefix = sys.argv[1] + '/byte-code'; sys.dont_write_bytecode = False; "
    "sys.path.insert(0, sys.argv[1]); name = sys.argv[2]; "
    "sys.argv[1:] = []; from envbuild_smoke import common; common.run(name)"
)
_PROGRAMS = "envbuild.node.smoke.programs"
# Set in NVIDIA's images: with TF32 no product in float32 equals its reference. Torch 1.12 and 1.13 obey nothing else.
_TF32 = frozenset({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"})
_TAIL = 6000
_EVENTS_LIMIT = 4 * 1024 * 1024
_GRACE = 3.0  # s after the deadline, for the stack dump of the program itself
_SIBLING_GRACE = 5.0  # s for the other ranks to end by themselves after one has died
_STATUS = re.compile(rb" (-?\d+)\n")


@dataclass
class Outcome:
    """How one process ended: `events` as it wrote them, `stderr` its last lines."""

    returncode: int | None = None
    timed_out: bool = False
    stopped: bool = False
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
        errors = _RAISED.findall("\n".join(training_log.without_ignored(text.splitlines())))
        lines = [errors[-1][1]] if errors else lines
    return lines[-1][:300] if lines else ""


def causes_first(outcomes: list[Outcome]) -> list[tuple[int, Outcome]]:
    """(rank, outcome): a hang before the time-out that it gave another rank, and what was stopped for it last."""
    return sorted(enumerate(outcomes), key=lambda row: (row[1].stopped, not row[1].timed_out))


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


class Turn:
    """One program in a process; `outcome` says how it ended, once it has. `events`: the file that it writes them to."""

    def __init__(self, process: Process, end: str = "") -> None:
        """`end` begins the line with which a worker says how the program ended; empty: with its process."""
        self.outcome = Outcome()
        self.events = ""
        self.end = ("\n" + end).encode("ascii") if end else b""
        self.process = process
        self._output = b""
        self._said: int | None = None

    def ended(self) -> bool:
        """Whether the program has ended, or the process that it ran in."""
        if self.outcome.returncode is None:
            status = self.process.status()
            self.outcome.returncode = status if self._said is None else self._said
        return self.outcome.returncode is not None

    def take(self, output: bytes, keep: int) -> None:
        """Keep the last `keep` bytes of the output so far, and the status where the worker has said it."""
        at = output.find(self.end) if self.end else -1
        status = _STATUS.match(output, at + len(self.end)) if at >= 0 else None
        self._output = (output[:at] if status else output)[-keep:]
        if status:
            self._said = int(status.group(1))

    def finish(self) -> Outcome:
        """Collect events and the last lines of output; what still runs is ended."""
        if not self.ended():
            self.process.kill()
        self.outcome.stderr = redact.redact_text(self._output.decode("utf-8", "replace"))
        self.outcome.events = redact.redact_data(read_events(self.events))
        # A worker goes on with another program; what else has been left is for none.
        if self.outcome.returncode != 0 or self.outcome.of("again") or not self.end:
            self.process.kill()
        return self.outcome


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


class Scratch:
    """A private folder with the programs' text; removed at the end. Use it in a `with` statement."""

    def __init__(
        self, environment: str, variables: Json, tmp: str | None, programs: dict[str, str] | None = None
    ) -> None:
        """For programs of an environment, with the stack's variables.

        `tmp` is where the folder goes (None: the system's place), `programs` replaces texts by module name.
        """
        self.environment, self.variables = environment, variables
        self._tmp, self._programs, self.path = tmp, programs or {}, ""
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
        build_dir.remove(self.path)

    def close(self) -> None:
        """End what still runs; nothing is started any more."""
        with self._lock:
            self._closed = True
        for turn in self._live:
            if not turn.ended():
                turn.process.kill()
        for worker in self._workers.values():
            worker.kill()

    def _write(self, name: str, text: str) -> None:
        with open(os.path.join(self.path, "envbuild_smoke", name + ".py"), "w", encoding="utf-8") as file:
            file.write(text)

    def fresh(self, name: str) -> str:
        """A path in the folder that was not given before."""
        return os.path.join(self.path, f"{name}-{next(self._count)}")

    def flags(self) -> list[str]:
        """The flags of a Python that runs no program of ours; what one has compiled, the next need not."""
        return FLAGS + ["-X", "pycache_prefix=" + os.path.join(self.path, "byte-code")]

    def start(self, make: Callable[[], Turn]) -> Turn:
        """Start a program, which ends with this folder at the latest. Raises RuntimeError once that is closed."""
        with proc.starting(), self._lock:
            if self._closed:
                raise RuntimeError("the smoke test has ended")
            self._live.append(make())
            return self._live[-1]

    def child(self) -> dict[str, str]:
        """The variables of a process here."""
        return child_environment(self.environment, self.variables, self.path)

    def program(self, name: str) -> list[str]:
        """The words that run program `name` in the environment's interpreter."""
        python = os.path.join(self.environment, "bin", "python")
        return [python] + FLAGS + ["-B", "-c", _START, self.path, name]

    def worker(self, rank: int) -> Process:
        """The worker of a rank; a new one where there is none, or where the last program has ended it."""
        worker = self._workers.get(rank)
        if worker is None or worker.status() is not None:
            worker = self._workers[rank] = Process(self.program("worker"), self.child(), self.path, _TAIL)
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


def read_events(path: str) -> list[Json]:
    """The events in a file; what is not a JSON object on a line of its own (a torn write) is left out."""
    return json_lines(read(path, _EVENTS_LIMIT))


def run_programs(
    scratch: Scratch, name: str, requests: list[Json], deadline: float, alone: bool = False
) -> list[Outcome]:
    """Run program `name` once per request, at the same time, for at most `deadline` seconds; outcomes in order.

    When one process ends badly the others get a few seconds to notice and are then stopped. Each runs in the worker of
    its rank, which has torch imported; `alone`: in a process that has imported nothing before.
    """
    if alone:
        return run_processes(scratch, scratch.program(name), scratch.child(), requests, deadline)
    until = time.monotonic() + deadline
    with scratch.turns:
        workers = [scratch.worker(rank) for rank in range(len(requests))]

        def start(rank: int, request: str) -> Turn:
            return workers[rank].next(name, request)

        return _run(scratch, start, requests, max(until - time.monotonic(), 0.1))


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
    running: list[Turn] = []
    try:
        for rank, request in enumerate(requests):
            full = dict({"events": scratch.fresh("events")}, **request, deadline=max(deadline, 0.1))
            path = scratch.fresh("request")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(full, file)
            running.append(scratch.start(partial(start, rank, path)))
            running[-1].events = str(full["events"])
        _wait(running, until)
    finally:
        outcomes = [turn.finish() for turn in running]
    return outcomes


def _wait(running: list[Turn], until: float) -> None:
    stop_at: float | None = None
    while sum(turn.ended() for turn in running) < len(running):  # every one is asked each time
        now = time.monotonic()
        if stop_at is None and any(turn.outcome.returncode for turn in running):
            stop_at = now + _SIBLING_GRACE
        if now >= until or (stop_at is not None and now >= stop_at):
            for turn in running:
                if not turn.ended():
                    turn.outcome.timed_out, turn.outcome.stopped = now >= until, now < until
            return
        time.sleep(0.02)
