"""Which row of the GPU table a printed name is, and which names are of none."""

from __future__ import annotations

import pytest

from envbuild.model.facts import GpuFacts
from envbuild.resolve.compat_read import load_compat


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", None),
        ("", None),
        (None, None),
    ],
)
def test_only_the_whole_name_of_a_gpu_is_its_row(name: str | None, model: str | None) -> None:
    found = load_compat().gpu_of(name)
    assert (found.model if found else None) == model


def test_a_gpu_that_mig_divides_has_not_the_peak_of_the_whole() -> None:
    whole = GpuFacts(index=0, name="NVIDIA A100-SXM4-80GB", mig_enabled=False)
    divided = whole.model_copy(update={"mig_enabled": True})
    assert load_compat().gpu_of(whole.device_name) is not None
    assert load_compat().gpu_of(divided.device_name) is None
