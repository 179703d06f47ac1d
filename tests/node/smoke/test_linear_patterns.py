"""What programs print is read in linear time (D74), and its numbers have a bound (D75)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from envbuild.node.build import diagnose, wheel
from envbuild.node.probe import gpus
from envbuild.node.smoke import gpu_state, runner, training_log
from envbuild.provision import bench, gpu_use
from envbuild.schedule import pbs, slurm
from envbuild.trace import records
from envbuild.transport import ssh_errors

MODULES = (
    diagnose, wheel, gpus, gpu_state, runner, training_log, gpu_use, pbs, slurm,
    records, ssh_errors,
)  # fmt: skip
PIECES = (
    "a", " ", "a ", "0", "a: ", "a: 0", "/a", "[", "'a': ", "steps: 5 ", "iteration 1/ 2 |", "{'tflops': ", "error: ",
    "GPU 0: ", "srun: error: ", "\x1b[", "-", ".",
)  # fmt: skip
# Asked at the begin of a line alone.
ANCHORED = {"gpus._LIST_GPU", "gpus._LIST_MIG", "gpu_state._PROGRAM", "training_log._RANK"}


def _seconds(read: Callable[[str], object], text: str) -> float:
    """Of the processor, for the machine may be busy."""
    began = time.process_time()
    read(text)
    return time.process_time() - began


def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    found = []
    for module in MODULES:
        for name, value in vars(module).items():
            rows = value if isinstance(value, (tuple, list)) else [value]
            cells = [cell for row in rows for cell in (row if isinstance(row, tuple) else [row])]
            patterns = [each for each in cells if isinstance(each, re.Pattern) and isinstance(each.pattern, str)]
            found += [(f"{module.__name__.rpartition('.')[2]}.{name}", each) for each in patterns]
    return found


@pytest.mark.parametrize(("name", "pattern"), _patterns())
def test_d74_no_pattern_of_what_programs_print_is_quadratic(name: str, pattern: re.Pattern[str]) -> None:
    read = pattern.match if name in ANCHORED else lambda text: sum(1 for _ in pattern.finditer(text))
    for piece in PIECES:
        # A quadratic one takes seconds for so many characters, a linear one some milliseconds.
        assert _seconds(read, piece * (16384 // len(piece))) < 0.4, piece


@pytest.mark.parametrize("form", training_log.FORMATS)
@pytest.mark.parametrize("piece", PIECES)
def test_d74_no_line_of_a_log_takes_long(form: str, piece: str) -> None:
    for begin in ("", "steps: 5 ", "{'tflops': ", "iteration 1/ 2 | "):
        line = (begin + piece * 16384)[:16300] + " samples/sec: "
        assert _seconds(lambda text: training_log.read_line(form, text), line) < 0.2


@pytest.mark.parametrize("piece", PIECES)
def test_d74_the_last_lines_of_a_log_do_not_take_long(piece: str) -> None:
    line = piece * (65536 // len(piece))
    assert _seconds(bench._end, line) < 0.4
    assert _seconds(bench._last_lines, line) < 0.4


def test_d75_numbers_of_nvidia_smi_and_slurm_have_a_bound() -> None:
    endless = "9" * 4400
    for index in (endless, "\u00b2"):
        assert gpu_state.occupied(f"{index}, GPU-1, 5000, 90, Disabled, H100", f"GPU-1, {index}, 10, python") == []
        assert gpu_state.busiest(", ".join([index] * 13)) == []
        assert slurm.parse_job(f"JobId=1 JobState=RUNNING Restarts={index} ExitCode={index}:{index}") is not None
        assert slurm.parse_partition("p", "TotalNodes=1", f"p|{index}|idle|gpu:{index}|{index}", "") is not None
    assert slurm.parse_partition("p", f"TotalNodes={endless}", "", "") is None
