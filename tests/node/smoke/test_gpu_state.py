"""What nvidia-smi says of GPUs under load, from lines as it prints them; and a stand-in that prints them in a loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.node.smoke import gpu_state
from tests.support.patience import until
from tests.support.programs import executable

IDLE = "0, GPU-aa, 345, 1980, 3201, 76.21, 700.00, 31, Enabled, 0, 0x0000000000000001, 524, 81559"
BUSY = "0, GPU-aa, 1755, 1980, 3201, 698.40, 700.00, 52, Enabled, 0, 0x0000000000000004, 3100, 81559"
SICK = "1, GPU-bb, 1155, 1980, 3201, 401.00, 700.00, 91, Disabled, [N/A], 0x0000000000000060, 81012, 81559"


def test_the_sample_with_most_power_stands_for_a_gpu() -> None:
    zero, one = gpu_state.busiest("\n".join([IDLE, BUSY, SICK, IDLE, "0, GPU-aa, 17"]))
    assert (zero["sm_mhz"], zero["power_w"], zero["temperature_c"], zero["samples"]) == (1755.0, 698.4, 52.0, 3)
    assert (zero["throttle"], zero["ecc"], zero["ecc_uncorrected"]) == (["software power cap"], True, 0.0)
    assert one["throttle"] == ["software thermal slowdown", "hardware thermal slowdown"]
    assert (one["index"], one["uuid"], one["ecc"], one["ecc_uncorrected"]) == (1, "GPU-bb", False, None)


def test_a_gpu_that_others_fill_is_named() -> None:
    rows = gpu_state.busiest(f"{BUSY}\n{SICK}")
    assert gpu_state.full(rows) == ["GPU 1 was full: nvidia-smi saw 81,012 of 81,559 MiB in use"]
    assert gpu_state.full([{"index": 0}, {"index": 1, "memory_used_mib": None, "memory_total_mib": 5.0}]) == []


def test_words_are_no_gpus_and_who_uses_a_part_of_one_is_not_asked() -> None:
    for text in ("", "No devices were found", "Unable to determine the device handle for GPU0000:01"):
        assert gpu_state.busiest(text) == []
    assert gpu_state.reasons("[N/A]") is None
    for devices in ([], ["MIG-5c"]):
        assert gpu_state.questions(devices) == [] == gpu_state.in_use(devices)
    assert [words[-2:] for words in gpu_state.questions(["2", "3"])] == [["-i", "2,3"]] * 2


def test_it_looks_while_the_body_runs_at_the_visible_gpus_and_not_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi, out = tmp_path / "nvidia-smi", tmp_path / "out"
    # A driver that has the new name alone.
    old = 'case "$*" in *clocks_throttle*) echo "Field is not a valid field to query."; exit 2;; esac'
    told = f'{old}\necho $$ > {tmp_path}/pid\necho "$@" > {tmp_path}/words\n'
    executable(smi, f"#!/bin/sh\n{told}while :; do echo '{BUSY}'; sleep 0.05; done\n")
    monkeypatch.setattr(gpu_state, "search_path", lambda: [str(tmp_path)])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with gpu_state.sampled(str(out), {"CUDA_VISIBLE_DEVICES": "0,GPU-1f"}) as rows:
        until(lambda: any(path.read_text().count("\n") > 1 for path in tmp_path.glob("out.*")))
    assert [(row["index"], row["sm_mhz"]) for row in rows] == [(0, 1755.0)]
    assert " -i 0,GPU-1f" in (tmp_path / "words").read_text()
    pid = (tmp_path / "pid").read_text().strip()
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_without_nvidia_smi_there_is_nothing_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_state, "search_path", lambda: [str(tmp_path)])
    with gpu_state.sampled(str(tmp_path / "out")) as rows:
        assert rows == []
    assert list(tmp_path.iterdir()) == []


USED = """\
0, GPU-a, 1810, 100, Disabled, NVIDIA A, B
1, GPU-b, 30720, 0, Disabled, NVIDIA A, B
2, GPU-c, 558, 78, Disabled, NVIDIA A, B
3, GPU-d, 601, 3, Disabled, NVIDIA A, B
4, GPU-e, 3, 100, Disabled, NVIDIA A, B
5, GPU-f, 40000, [N/A], Enabled, NVIDIA A, B
6, GPU-g, 28, 0, [N/A], NVIDIA A, B
"""
PROCESSES = """\
GPU-a, 23104, 1808, /home/ann b/bin/python train.py --key, secret
GPU-a, 23105, [N/A], [Not Found]
GPU-a, 7, 1, /opt/ours/bin/python3.12 train.py --key, secret
GPU-a, 8, 1, x
GPU-f, 9, 39000, python
GPU-g, 10, 28, nvidia-cuda-mps-server
No running processes found
"""


def test_who_uses_a_gpu_is_told_by_pid_and_program_and_nothing_of_a_command_line() -> None:
    rows = gpu_state.occupied(USED, PROCESSES)
    zero, one, two = gpu_state.in_words(rows)
    assert [(row["index"], row["uuid"]) for row in rows] == [(0, "GPU-a"), (1, "GPU-b"), (2, "GPU-c")]
    told = "pid 23104 (1,808 MiB), pid 23105, pid 7 (python3.12, 1 MiB) and 1 more"
    assert zero == f"GPU 0 is in use by other processes: {told}; figures may be lower than what it can do"
    unnamed = "is in use by processes that nvidia-smi does not name here: "
    assert f"GPU 1 {unnamed}30,720 MiB of its memory, 0 % busy; " in one
    assert f"GPU 2 {unnamed}558 MiB of its memory, 78 % busy; " in two, "another container has a context on it"
