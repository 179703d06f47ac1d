"""What a run of a stack's own command takes of the GPUs: torch's own peaks of memory, and what nvidia-smi sees.

That is memory, how much of the time they were busy, and their clock and power: a figure that is low because they waited
for processors or the network, or were throttled, says so.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import NamedTuple

from envbuild.model.launch import Launch, LaunchFile
from envbuild.node.protocol import Json
from envbuild.node.read_text import number
from envbuild.node.smoke.gpu_state import in_words as in_use_in_words
from envbuild.node.smoke.gpu_state import names, occupied, questions, watch
from envbuild.node.smoke.programs import torch_peak
from envbuild.node.variables import VISIBLE
from envbuild.strategy.memory import OUTSIDE

GIB = 2**30
_SEEN = "nvidia-smi"  # what it said
_OTHERS = "others"  # what it said before anything of a job was on the GPUs
_NEXT = "envbuild: next answer"  # between what nvidia-smi said to two questions
_NODE = "envbuild: next node"
_ANSWER = 10  # s that a sick driver has
_MEMORY = 3  # fields of `Taken`
_PEAKS = re.compile(r'\{"allocated": ([0-9]{1,18}), "reserved": ([0-9]{1,18})\}')
_ROW = re.compile(r"([0-9]{1,18}), (Disabled|\[N/A\])(, ([0-9.]{1,24}|\[[A-Za-z/ ]{1,40}\])){3}")
_FIELDS = "memory.used,mig.mode.current,utilization.gpu,clocks.sm,power.draw"
_INTERVAL = 500  # ms
_ROWS = 2000  # of those with most memory in use, of a host: eight GPUs for two minutes


@dataclass(frozen=True, slots=True)
class Taken:
    """GiB of the fullest GPU at its peak, and medians of all GPUs; None: nothing told it.

    `tensors` and `reserved`: torch's allocator, where the ranks ended by themselves. `used`: all of it as nvidia-smi
    counts it, CUDA's context and NCCL's buffers included; not of a part of a GPU (MIG). `busy` (percent of the time in
    which a kernel ran), `mhz` (of the SMs) and `watts`: while at least half of `used` was, so not while programs start.
    """

    tensors: float | None = None
    reserved: float | None = None
    used: float | None = None
    busy: float | None = None
    mhz: float | None = None
    watts: float | None = None


class OfJob(NamedTuple):
    """What a job took of its GPUs, who else used them when it began, a sentence each, and their names."""

    taken: Taken
    others: list[str]
    names: list[str]


def below(output: str) -> str:
    """The folder of a run for what it takes of the GPUs, in that of its output."""
    return posixpath.join(output, ".gpus")


def probed(launch: Launch, folder: str) -> Launch:
    """The same, and its processes write torch's peaks into the folder when they end."""
    commands = []
    for command in launch.commands:
        path = [folder, *filter(None, [command.environment.get("PYTHONPATH")])]
        environment = {**command.environment, "PYTHONPATH": os.pathsep.join(path)}
        commands.append(command.model_copy(update={"environment": environment}))
    probe = LaunchFile(path=f"{folder}/sitecustomize.py", text=Path(torch_peak.__file__).read_text())
    return launch.model_copy(update={"commands": tuple(commands), "files": (*launch.files, probe)})


def watched(folder: str, devices: Sequence[str], rank: int) -> str:
    """Lines for `/bin/sh`: what nvidia-smi says of these GPUs, twice a second, into the folder, until the shell ends.

    Hosts may share the folder. Nothing without nvidia-smi.
    """
    words = watch(_FIELDS, _INTERVAL, devices)
    return _watching(folder, shlex.join(words), str(rank)) if words else ""


def watched_in_job(folder: str) -> str:
    """The same on a node of a job, of the GPUs that the job gives it; first, which they are and who else uses them."""
    chosen, rank = f'${{{VISIBLE}:+-i "${VISIBLE}"}}', '"${NODE_RANK:-0}"'
    words = f"{shlex.join(watch(_FIELDS, _INTERVAL, None))} {chosen}"
    others = f"{{ uname -n; {ask_others(None, chosen)}; }} > {shlex.quote(folder)}/{_OTHERS}.{rank}"
    lines = _watching(folder, words, rank, f"{others} 2> /dev/null < /dev/null || :")
    return f'case "${{{VISIBLE}-}}" in *MIG-*) ;; *)\n{lines};;\nesac\n'


def _watching(folder: str, words: str, rank: str, *first: str) -> str:
    at = shlex.quote(folder)
    lines = [
        f"mkdir -p {at}",
        *first,
        f"nvidia-smi {words} > {at}/{_SEEN}.{rank} 2> /dev/null < /dev/null &",
        'trap "kill $! 2> /dev/null || :" EXIT',  # with `set -e` its exit code would be the shell's
    ]
    return "\n".join(lines)


def ask_others(devices: Sequence[str] | None, more: str = "") -> str:
    """What prints for `others` who uses these GPUs (None: all), for `/bin/sh`; `more` words choose them there."""
    asked = (f"timeout {_ANSWER} nvidia-smi {shlex.join(words)} {more}".rstrip() for words in questions(devices))
    return f"; echo {_NEXT}; ".join(asked)


def others(answer: str) -> list[Json]:
    """The GPUs in use by what was answered to `ask_others`, as `occupied` has them."""
    used, _, processes = answer.partition(f"{_NEXT}\n")
    return occupied(used, processes)


def of_job(answer: str) -> OfJob:
    """What nodes answered to `ask_job`; empty: nothing."""
    *nodes, last = answer.split(f"{_NODE}\n")
    answers = [text.partition("\n") for text in nodes]
    in_use = [f"{node}: {process}" for node, _, text in answers for process in in_use_in_words(others(text))]
    return OfJob(used([last]), in_use, [name for _, _, text in answers for name in names(text.partition(_NEXT)[0])])


def ask_job(folder: str) -> str:
    """Lines for `/bin/sh` that print for `of_job` what nodes have left, and remove it."""
    return f'for file in {shlex.quote(folder)}/{_OTHERS}.*; do cat "$file"; echo {_NODE}; done\n{ask_used(folder)}'


def ask_used(folder: str) -> str:
    """Lines for `/bin/sh` that print for `used` what is in the folder of a host, and remove it."""
    at = shlex.quote(folder)
    seen = f"grep -hE '^{_ROW.pattern}$' {at}/{_SEEN}.* | sort -n -s | tail -n {_ROWS}"
    return f'for file in {at}/*.json; do cat "$file"; echo; done; {seen}; rm -rf {at}'


def used(answers: Iterable[str]) -> Taken:
    """What `probed` and `watched` have left, by what hosts answered to `ask_used`."""
    lines = [line for text in answers for line in text.splitlines()]
    peaks = [(int(match[1]), int(match[2])) for line in lines if (match := _PEAKS.fullmatch(line))]
    allocated = max((size for size, _ in peaks), default=0)
    reserved = max((size for _, size in peaks), default=0)
    # Of whole GPUs: where MIG divides one, nvidia-smi counts what others have of it too.
    rows = [[number(cell) for cell in line.split(", ")] for line in lines if _ROW.fullmatch(line)]
    seen = int(max((row[0] or 0 for row in rows), default=0))
    if not seen or seen << 20 < reserved:
        # Less than torch has is of other GPUs: where they are of several kinds, CUDA has another order of them.
        return Taken(_gib(allocated), _gib(reserved))
    working = [row[2:] for row in rows if (row[0] or 0) >= seen / 2]
    return Taken(_gib(allocated), _gib(reserved), _gib(seen << 20), *map(_median, zip(*working, strict=True)))


def together(runs: Iterable[Taken]) -> Taken:
    """Of several runs: of the memory the greatest, of all else the median."""
    columns = list(zip(*(astuple(run) for run in runs), strict=True))
    memory = [max((figure for figure in column if figure), default=None) for column in columns[:_MEMORY]]
    return Taken(*memory, *map(_median, columns[_MEMORY:]))


def compared(taken: Taken, held: float | None = None, reserved: float | None = None) -> dict[str, float]:
    """What was measured, memory in GiB, and what percent of it an estimate in bytes is, where there is one."""
    used = reserved + OUTSIDE if reserved else None
    pairs = {"tensors": (taken.tensors, held), "reserved": (taken.reserved, reserved), "used": (taken.used, used)}
    figures: dict[str, float] = {}
    for name, (measured, estimate) in pairs.items():
        if measured:
            figures[f"{name}_gib"] = measured
            figures |= {f"{name}_percent": round(100 * estimate / GIB / measured)} if estimate else {}
    at_work = {"busy_percent": taken.busy, "sm_mhz": taken.mhz, "power_w": taken.watts}
    return figures | {name: round(figure) for name, figure in at_work.items() if figure is not None}


def in_words(figures: Mapping[str, float]) -> str:
    """What `compared` gives, as one piece of a sentence; empty where nothing was measured."""
    parts = []
    for name, what in (("tensors", "in tensors"), ("reserved", "reserved"), ("used", "used")):
        percent = f" (estimate {figures[f'{name}_percent']:.0f} %)" if f"{name}_percent" in figures else ""
        parts += [f"{figures[f'{name}_gib']:.1f} GiB {what}{percent}"] if f"{name}_gib" in figures else []
    memory = f"measured {', '.join(parts)}" if parts else ""
    at = [f"{figures[name]:,.0f} {unit}" for name, unit in (("sm_mhz", "MHz"), ("power_w", "W")) if name in figures]
    busy = f"GPUs {figures['busy_percent']:.0f} % busy" if "busy_percent" in figures else ""
    return "; ".join(filter(None, (memory, f"{busy} at {' and '.join(at)}" if busy and at else busy)))


def _median(figures: Iterable[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return statistics.median(known) if known else None


def _gib(size: int) -> float | None:
    return round(size / GIB, 1) if size else None
