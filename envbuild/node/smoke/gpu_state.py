"""Clocks, throttle reasons, ECC and power of the GPUs while something runs on them, as nvidia-smi says them."""

import contextlib
import os
import re
import signal
import subprocess

from envbuild.node import proc
from envbuild.node.protocol import Json
from envbuild.node.read_text import number, read, search_path, which

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

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
_FULL = 0.95  # of the memory: the products themselves take some GiB


@contextlib.contextmanager
def sampled(path: str) -> "Iterator[list[Json]]":
    """Look at the GPUs while the body runs; afterwards the list has one row for each.

    What is printed goes to files that begin with `path`. The list stays empty where there is no nvidia-smi, or
    it has no answer.
    """
    rows = []  # type: list[Json]
    smi = which("nvidia-smi", search_path())
    if smi is None:
        yield rows
        return
    argv = [smi, "--format=csv,noheader,nounits", "-lms", str(_INTERVAL)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if re.match(r"(\d+|GPU-[0-9a-f-]+)(,(\d+|GPU-[0-9a-f-]+))*\Z", visible):
        argv += ["-i", visible]
    query = "--query-gpu=" + ",".join(field for _, field in _FIELDS)
    children = [_start(argv + [query % name], "%s.%s" % (path, name)) for name in _NAMES]
    try:
        yield rows
    finally:
        for child in children:
            _end(child)
        texts = [read("%s.%s" % (path, name)) for name in _NAMES]
        rows.extend(busiest(texts[0]) or busiest(texts[1]))


def _start(argv: "list[str]", path: str) -> "subprocess.Popen[bytes]":
    with proc.starting(), open(path, "wb") as out:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True
        )


def _end(child: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the driver: nothing more can be done from here
        child.wait(timeout=5)


def busiest(text: str) -> "list[Json]":
    """Of each GPU the sample with most power, that is under load, with how many there were; in the order of indices."""
    best = {}  # type: dict[int, Json]
    count = {}  # type: dict[int, int]
    for line in text.splitlines():
        row = _row(line)
        if row is None:
            continue
        index = row["index"]
        count[index] = count.get(index, 0) + 1
        if index not in best or (row["power_w"] or 0) > (best[index]["power_w"] or 0):
            best[index] = row
    return [dict(best[index], samples=count[index]) for index in sorted(best)]


def _row(line: str) -> "Json | None":
    """One line of numbers; None for one that is torn, or words about a sick GPU."""
    values = [each.strip() for each in line.split(",")]
    if len(values) != len(_FIELDS) or not values[0].isdigit():
        return None
    row = {name: number(value) for (name, _), value in zip(_FIELDS, values)}  # type: Json  # noqa: B905 - of 3.10
    row.update(index=int(values[0]), uuid=values[1], ecc={"Enabled": True, "Disabled": False}.get(values[8]))
    row["throttle"] = reasons(values[10])
    return row


def full(rows: "list[Json]") -> "list[str]":
    """One sentence for each GPU of whose memory all but a twentieth was in use."""
    found = []
    for row in rows:
        used, total = row.get("memory_used_mib"), row.get("memory_total_mib")
        if used and total and used > _FULL * total:
            told = (row["index"], "{:,.0f}".format(used), "{:,.0f}".format(total))
            found.append("GPU %d was full: nvidia-smi saw %s of %s MiB in use" % told)
    return found


def reasons(text: str) -> "list[str] | None":
    """The names of a mask such as `0x0000000000000004`; None where it is none."""
    try:
        mask = int(text, 16)
    except ValueError:
        return None
    return [name for bit, name in _REASONS if mask & bit]
