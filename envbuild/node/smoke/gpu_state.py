"""Clocks, throttle reasons, ECC and power of the GPUs while something runs on them, as nvidia-smi says them.

And who else uses them before anything of ours does.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial

from envbuild.node import proc
from envbuild.node.protocol import Json
from envbuild.node.read_text import integer, number, read, search_path, which
from envbuild.node.variables import VISIBLE, visible_devices

# Name in the evidence, field of nvidia-smi; numbers where they are.
_FIELDS = (
    ("index", "index"),
    ("uuid", "uuid"),
    ("sm_mhz", "clocks.sm"),
    ("sm_max_mhz", "clocks.max.sm"),
    ("memory_mhz", "clocks.mem"),
    ("power_w", "power.draw"),
    ("power_limit_w", "power.limit"),
    ("temperature_c", "temperature.gpu"),
    ("ecc", "ecc.mode.current"),
    ("ecc_uncorrected", "ecc.errors.uncorrected.volatile.total"),
    ("throttle", "%s.active"),
    ("memory_used_mib", "memory.used"),
    ("memory_total_mib", "memory.total"),
)
# Drivers from 535 on have the second name; a driver that does not know one of them ends at once.
_NAMES = ("clocks_throttle_reasons", "clocks_event_reasons")
# nvml.h, nvmlClocksThrottleReason*; that a GPU was idle in between is no reason of its work.
_REASONS = (
    (0x2, "application clocks"),
    (0x4, "software power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "hardware power brake"),
    (0x100, "display clocks"),
)
_INTERVAL = 100  # ms
_END = 5.0  # s that a killed nvidia-smi is waited for
_FULL = 0.95  # of the memory: the products themselves take some GiB
_ANSWER = 10.0  # s that a sick driver has to say who uses its GPUs
_FORMAT = "--format=csv,noheader,nounits"
_USED = "--query-gpu=index,uuid,memory.used,utilization.gpu,mig.mode.current,name"
_PROCESSES = "--query-compute-apps=gpu_uuid,pid,used_gpu_memory,process_name"
# MiB of a GPU that nobody uses, by kind and driver up to some 600; and of a context, below which 100 % in use is what a
# driver says that was loaded just now.
_UNUSED, _CONTEXT = 1024, 256
_BUSY = 50  # %
_DIVIDED = "Enabled"  # by MIG
_TOLD = 3  # processes of a GPU
# A path with a space in it may name a person where its first word ends.
_PROGRAM = re.compile(r"(?:/\S*/bin/)?([\w.:+-]{1,40})(?=\s|\Z)")
_MPS = "nvidia-cuda-mps-server"  # it computes nothing itself


@contextlib.contextmanager
def sampled(path: str, variables: Json | None = None) -> Iterator[list[Json]]:
    """Look at the GPUs while the body runs; afterwards the list has one row for each.

    What is printed goes to files that begin with `path`. `variables`: those of the body's programs, above this
    process's. The list stays empty where `watching` has no answer.
    """
    rows: list[Json] = []
    paths = [f"{path}.{name}" for name in _NAMES]
    fields = ",".join(field for _, field in _FIELDS)
    devices = visible(variables)
    with contextlib.ExitStack() as stack:
        for name, file in zip(_NAMES, paths):  # noqa: B905 - of 3.10
            stack.enter_context(watching(file, fields % name, _INTERVAL, devices))
        yield rows
    texts = [read(file) for file in paths]
    rows.extend(busiest(texts[0]) or busiest(texts[1]))


@contextlib.contextmanager
def watching(path: str, fields: str, interval: int, devices: Sequence[str] | None = None) -> Iterator[None]:
    """What nvidia-smi says of `fields`, each `interval` ms while the body runs, in a file; none where it is not there.

    `devices`: of these GPUs alone (None: of all), and none for instances of MIG, as its figures are of whole GPUs.
    """
    smi, words = which("nvidia-smi", search_path()), watch(fields, interval, devices)
    if smi is None or not words:
        yield
        return
    with proc.starting(), open(path, "wb") as out:
        child = subprocess.Popen(
            [smi] + words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True
        )
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the driver: nothing more can be done from here
            child.wait(_END)


def watch(fields: str, interval: int, devices: Sequence[str] | None) -> list[str]:
    """What nvidia-smi is told for `watching`; nothing for instances of MIG."""
    of = _whole(devices)
    return [] if of is None else ["--query-gpu=" + fields, _FORMAT, "-lms", str(interval)] + of


def visible(variables: Json | None = None) -> list[str] | None:
    """The GPUs that programs with these variables above this process's see; None: all."""
    return visible_devices(dict(os.environ, **(variables or {})).get(VISIBLE))


def _whole(devices: Sequence[str] | None) -> list[str] | None:
    """Words that ask of these GPUs alone; None where none is a whole one."""
    if devices is not None and (not devices or any(device.startswith("MIG-") for device in devices)):
        return None
    return [] if devices is None else ["-i", ",".join(devices)]


def questions(devices: Sequence[str] | None) -> list[list[str]]:
    """What nvidia-smi is asked for `occupied`, of these GPUs (None: of all); nothing for instances of MIG."""
    of = _whole(devices)
    return [] if of is None else [[_USED, _FORMAT] + of, [_PROCESSES, _FORMAT] + of]


def in_use(devices: Sequence[str] | None) -> list[Json]:
    """What `occupied` finds now, on this node. To be asked while nothing of ours is on the GPUs."""
    smi = which("nvidia-smi", search_path())
    argvs = [[smi] + words for words in questions(devices)] if smi else []
    answers = proc.parallel([partial(proc.run, argv, timeout=_ANSWER) for argv in argvs])
    return occupied(*((answer.out if answer else "") for answer in answers)) if answers else []


def occupied(used: str, processes: str) -> list[Json]:
    """`index`, `uuid` and `how` of each GPU that is in use, from the answers to both questions.

    Processes of other containers are not told: then what is taken of the GPU says that there is one. No path and no
    word of a command line is kept.
    """
    on: dict[str, list[str]] = {}
    for line in processes.splitlines():
        cells = [cell.strip() for cell in line.split(",", 3)]
        if len(cells) == 4 and integer(cells[1]) is not None and _MPS not in cells[3]:
            name, size = _PROGRAM.match(cells[3]), number(cells[2])
            words = [name.group(1)] if name else []
            words += [] if size is None else [f"{size:,.0f} MiB"]
            named = f" ({', '.join(words)})" if words else ""
            on.setdefault(cells[0], []).append(f"pid {cells[1]}{named}")
    gpus = []
    for index, uuid, memory, busy, mig, _ in _gpus(used):
        if mig != _DIVIDED:
            how = _others(on.get(uuid, []), number(memory) or 0.0, number(busy) or 0.0)
            gpus += [{"index": int(index), "uuid": uuid, "how": how}] if how else []
    return gpus


def names(used: str) -> list[str]:
    """The name of each GPU, marked where MIG divides it, from the answer to the first question of `occupied`."""
    return [name + " MIG" * (mig == _DIVIDED) for _, _, _, _, mig, name in _gpus(used)]


def _gpus(used: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split(",", 5)] for line in used.splitlines()]
    return [cells for cells in rows if len(cells) == 6 and integer(cells[0]) is not None]


def _others(named: list[str], used: float, busy: float) -> str:
    """How a GPU is in use; empty where it is not."""
    if named:
        more = f" and {len(named) - _TOLD} more" if len(named) > _TOLD else ""
        return f"in use by other processes: {', '.join(named[:_TOLD])}{more}"
    if used <= _UNUSED and (used < _CONTEXT or busy < _BUSY):
        return ""
    who = "processes that nvidia-smi does not name here"
    return f"in use by {who}: {used:,.0f} MiB of its memory, {busy:.0f} % busy"


def in_words(rows: list[Json]) -> list[str]:
    """One sentence for each GPU that `occupied` found."""
    return [f"GPU {row['index']} is {row['how']}; figures may be lower than what it can do" for row in rows]


def busiest(text: str) -> list[Json]:
    """Of each GPU the sample with most power, that is under load, with how many there were; in the order of indices."""
    best: dict[int, Json] = {}
    count: dict[int, int] = {}
    for line in text.splitlines():
        row = _row(line)
        if row is None:
            continue
        index = row["index"]
        count[index] = count.get(index, 0) + 1
        if index not in best or (row["power_w"] or 0) > (best[index]["power_w"] or 0):
            best[index] = row
    return [dict(best[index], samples=count[index]) for index in sorted(best)]


def _row(line: str) -> Json | None:
    """One line of numbers; None for one that is torn, or words about a sick GPU."""
    values = [cell.strip() for cell in line.split(",")]
    if len(values) != len(_FIELDS) or integer(values[0]) is None:
        return None
    row: Json = {name: number(value) for (name, _), value in zip(_FIELDS, values)}  # noqa: B905 - of 3.10
    row.update(index=int(values[0]), uuid=values[1], ecc={"Enabled": True, "Disabled": False}.get(values[8]))
    row["throttle"] = reasons(values[10])
    return row


def full(rows: list[Json]) -> list[str]:
    """One sentence for each GPU of whose memory all but a twentieth was in use."""
    reasons = []
    for row in rows:
        used, total = row.get("memory_used_mib"), row.get("memory_total_mib")
        if used and total and used > _FULL * total:
            reasons.append(f"GPU {row['index']} was full: nvidia-smi saw {used:,.0f} of {total:,.0f} MiB in use")
    return reasons


def reasons(text: str) -> list[str] | None:
    """The names of a mask such as `0x0000000000000004`; None where it is none."""
    try:
        mask = int(text, 16)
    except ValueError:
        return None
    return [name for bit, name in _REASONS if mask & bit]
