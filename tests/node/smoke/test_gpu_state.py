"""What nvidia-smi says of GPUs under load, from lines as it prints them; and a stand-in that prints them in a loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.node.smoke import gpu_state
from tests.support.patience import until

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


@pytest.mark.parametrize("text", ["", "No devices were found", "Unable to determine the device handle for GPU0000:01"])
def test_words_are_no_gpus(text: str) -> None:
    assert gpu_state.busiest(text) == []
    assert gpu_state.reasons("[N/A]") is None


def test_it_looks_while_the_body_runs_at_the_visible_gpus_and_not_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi, out = tmp_path / "nvidia-smi", tmp_path / "out"
    # A driver that has the new name alone.
    old = 'case "$*" in *clocks_throttle*) echo "Field is not a valid field to query."; exit 2;; esac'
    told = f'{old}\necho $$ > {tmp_path}/pid\necho "$@" > {tmp_path}/words\n'
    smi.write_text(f"#!/bin/sh\n{told}while :; do echo '{BUSY}'; sleep 0.05; done\n")
    smi.chmod(0o755)
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
