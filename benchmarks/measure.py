"""Runs commands in turn (A B A B ...) and prints medians, spread and ratios."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Of `ru_oublock`: pages that a process made dirty, also those that were removed before they reached the disk.
_BLOCK = 512


@dataclass
class Sample:
    """Seconds of wall and CPU time (user + system), and bytes written, of finished runs with their children."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    written: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One command; `before` runs before each timed run and is not counted."""

    name: str
    argv: Sequence[str]
    before: Callable[[], None] | None = None
    env: dict[str, str] | None = None


def time_once(case: Case) -> tuple[float, float, int]:
    """Wall and CPU seconds and bytes written of one run; a failing command ends the benchmark with its output."""
    if case.before:
        case.before()
    # Byte code is kept, as it is for everybody who installs these tools.
    env = {key: value for key, value in (case.env or os.environ).items() if key != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(case.argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{case.name}: exit {process.returncode}\n{output.decode(errors='replace')[-3000:]}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_oublock * _BLOCK


def measure(cases: Sequence[Case], *, runs: int, warmup: int = 1) -> dict[str, Sample]:
    """Run all cases in turn so that a drifting machine touches each alike."""
    samples = {case.name: Sample() for case in cases}
    for index in range(runs + warmup):
        for case in cases:
            wall, cpu, written = time_once(case)
            if index >= warmup:
                samples[case.name].wall.append(wall)
                samples[case.name].cpu.append(cpu)
                samples[case.name].written.append(written)
    return samples


def spread(values: Sequence[float]) -> str:
    """`median (least-greatest)` in seconds."""
    return f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Median of the ratios taken pair by pair."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A plain table with the machine under it."""
    widths = [max(len(str(row[i])) for row in [headers, *rows]) for i in range(len(headers))]
    print(f"\n{title}")
    for row in [headers, ["-" * width for width in widths], *rows]:
        print("  " + "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"  ({os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()})")


def program(name: str) -> str:
    """A program of this interpreter's environment, or of PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        sys.exit(f"{name} is not installed; this benchmark needs it")
    return found
