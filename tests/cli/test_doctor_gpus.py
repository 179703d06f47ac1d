"""`envbuild doctor` of this machine says what is wrong with its GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from envbuild.cli.doctor_cmd import doctor
from tests.support.programs import executable


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; echo 'NVML library version: 570'; exit 18",
         ("are not those of the kernel module", "570", "reboot the node", "apt-mark hold")),
        ('case "$1" in --query*) echo "0, A100, GPU-0, 40960, 00000000:3B:00.0, 580.126.09, 8.0, Disabled, 0";; esac;'
         "echo 'Unable to determine the device handle for GPU0000:BA:00.0: Unknown Error'; exit 15",
         ("GPU 0000:BA:00.0 is lost", "gpu-reset -i 0000:BA:00.0", "1 × A100")),
    ],
)  # fmt: skip
def test_d58_doctor_of_this_machine_names_a_broken_driver_and_a_lost_gpu(
    script: str, says: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(tmp_path / "nvidia-smi", f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    shown = " ".join(CliRunner().invoke(doctor, []).output.split())
    line = shown[shown.index("warning gpus") :]
    assert all(words in line for words in says), line
