"""What a run of a stack's own command takes of the GPUs' memory: torch's own peaks, and what nvidia-smi sees."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from pathlib import Path

from envbuild.model.launch import Launch
from envbuild.node.smoke.gpu_state import watching
from envbuild.node.smoke.programs import torch_peak
from envbuild.strategy.memory import OUTSIDE

GIB = 2**30
_SEEN = "nvidia-smi"  # what it said
_FIELDS = "memory.used,mig.mode.current"
_INTERVAL = 500  # ms


@dataclass(frozen=True, slots=True)
class Taken:
    """GiB of the fullest GPU at its peak; None: nothing told it.

    `tensors` and `reserved`: torch's allocator, where the ranks ended by themselves. `used`: all of it as nvidia-smi
    counts it, CUDA's context and NCCL's buffers included; not of a part of a GPU (MIG).
    """

    tensors: float | None = None
    reserved: float | None = None
    used: float | None = None


def probed(launch: Launch, folder: Path) -> Launch:
    """The same, and its processes write torch's peaks into the folder when they end."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(torch_peak.__file__, folder / "sitecustomize.py")
    commands = []
    for command in launch.commands:
        path = [str(folder), *filter(None, [command.environment.get("PYTHONPATH")])]
        environment = {**command.environment, "PYTHONPATH": os.pathsep.join(path)}
        commands.append(command.model_copy(update={"environment": environment}))
    return launch.model_copy(update={"commands": tuple(commands)})


def watched(folder: Path, devices: Sequence[str], environment: Mapping[str, str]) -> AbstractContextManager[None]:
    """What nvidia-smi says of the memory in use of these GPUs, twice a second, into the folder; nothing without it.

    `environment`: of its process, on top of this one's.
    """
    return watching(str(folder / _SEEN), _FIELDS, _INTERVAL, devices, {**os.environ, **environment})


def used(folder: Path) -> Taken:
    """What `probed` and `watched` have left in the folder."""
    peaks = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    reserved = max((peak["reserved"] for peak in peaks), default=0)
    seen = max(_seen(folder / _SEEN), default=0)
    return Taken(
        _gib(max((peak["allocated"] for peak in peaks), default=0)),
        _gib(reserved),
        # Less than torch has is of other GPUs: where they are of several kinds, CUDA has another order of them.
        _gib(seen) if seen >= reserved else None,
    )


def _seen(path: Path) -> Iterator[int]:
    """Bytes in use, of whole GPUs: where MIG divides one, nvidia-smi counts what others have of it too."""
    text = path.read_text() if path.exists() else ""
    for line in text.rpartition("\n")[0].splitlines():
        size, _, mig = line.partition(", ")
        if size.isdigit() and mig != "Enabled":
            yield int(size) * 2**20


def most(runs: Iterable[Taken]) -> Taken:
    """Of several runs, of each figure the greatest."""
    columns = zip(*(astuple(each) for each in runs), strict=True)
    return Taken(*(max((figure for figure in column if figure), default=None) for column in columns))


def compared(taken: Taken, held: float | None = None, reserved: float | None = None) -> dict[str, float]:
    """What was measured, in GiB, and what percent of it an estimate in bytes is, where there is one."""
    used = reserved + OUTSIDE if reserved else None
    told = {"tensors": (taken.tensors, held), "reserved": (taken.reserved, reserved), "used": (taken.used, used)}
    figures: dict[str, float] = {}
    for name, (measured, estimate) in told.items():
        if measured:
            figures[f"{name}_gib"] = measured
            figures |= {f"{name}_percent": round(100 * estimate / GIB / measured)} if estimate else {}
    return figures


def in_words(figures: Mapping[str, float]) -> str:
    """What `compared` gives, as one piece of a sentence; empty where nothing was measured."""
    found = []
    for name, what in (("tensors", "in tensors"), ("reserved", "reserved"), ("used", "used")):
        percent = f" (estimate {figures[f'{name}_percent']:.0f} %)" if f"{name}_percent" in figures else ""
        found += [f"{figures[f'{name}_gib']:.1f} GiB {what}{percent}"] if f"{name}_gib" in figures else []
    return f"measured {', '.join(found)}" if found else ""


def _gib(size: int) -> float | None:
    return round(size / GIB, 1) if size else None
