"""Node classes of a fleet: what they are called, who stands out, and in what; which GPU a name means."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.model.facts import GpuFacts, NodeFacts
from envbuild.resolve.compat import rows_like
from envbuild.resolve.compat_read import load_compat
from envbuild.resolve.health import mig_instances
from envbuild.resolve.node_classes import NodeClass, describe, gpu_fault, group
from tests.resolve.builders import GB, node_facts

SLURM = {"kind": "slurm", "job": "4711"}


def _fleet(count: int, **odd: NodeFacts) -> dict[str, NodeFacts]:
    usual = node_facts("a100-azure", more={"product": "ND96amsr_A100_v4", "memory_bytes": 1900 * GB})
    return {f"gpu{number:02}": usual for number in range(1, count + 1)} | odd


def _odd(**more: Any) -> NodeFacts:
    short = {key: more.pop(key) for key in ("driver", "nvcc", "gpus", "physical", "visible") if key in more}
    return node_facts("a100-azure", **short, more={"product": "ND96amsr_A100_v4", "memory_bytes": 1900 * GB, **more})


def _outlier(**more: Any) -> NodeClass:
    classes = group(_fleet(4, gpu07=_odd(**more)))
    assert [len(each.nodes) for each in classes] == [4, 1]
    assert classes[0].differs == ()
    return classes[1]


def test_a_class_is_called_after_machine_gpus_driver_and_toolkit() -> None:
    (only,) = group(_fleet(3))
    assert only.label.startswith("ND96amsr_A100_v4, 8 x NVIDIA A100-SXM4-80GB, driver ")
    assert ", nvcc 1" in only.label
    assert only.nodes == ("gpu01", "gpu02", "gpu03")
    assert describe(_odd(product="Standard PC (Q35 + ICH9, 2009)")).startswith("8 x NVIDIA A100")


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ({"driver": "470.57.02"}, "driver 470.57.02 ≠ "),
        ({"gpus": "7 x NVIDIA A100-SXM4-80GB @ 8.0", "physical": 8}, "GPUs 7 of 8 x NVIDIA A100-SXM4-80GB ≠ 8 x"),
        ({"visible": "0,1"}, "GPUs 2 of 8 x NVIDIA A100-SXM4-80GB ≠ 8 x NVIDIA A100-SXM4-80GB"),
        ({"nvcc": ()}, "nvcc none ≠ 1"),
        ({"memory_bytes": 1740 * GB}, "memory 1740 GB ≠ 1900 GB"),
        ({"umask": "0077"}, "umask 0077 ≠ none"),
        ({"tools": {"git": None}}, "other tools (git)"),
        ({"containers": ("podman",)}, "other containers"),
    ],
)
def test_an_outlier_is_named_with_what_differs(odd: dict[str, Any], says: str) -> None:
    found = _outlier(**odd)
    assert found.nodes == ("gpu07",)
    assert len(found.differs) == 1
    assert found.differs[0].startswith(says)


def test_which_gpus_a_job_got_makes_no_class_but_how_many_does() -> None:
    fleet = {f"n{number}": _odd(memory_bytes=1900 * GB + number * 3_000_000) for number in range(8)}
    assert len(group(fleet)) == 1, "some megabytes of memory make none either"
    a, b, c = (_odd(visible=text, scheduler=SLURM) for text in ("0,1", "2,3", "2,3,4"))
    assert [each.nodes for each in group({"a": a, "b": b, "c": c})] == [("a", "b"), ("c",)]


@pytest.mark.parametrize(
    ("facts", "exclusive", "fault"),
    [
        ({}, False, ""),
        ({"gpus": "7 x A100", "physical": 8}, False, "7 of 8 GPUs visible"),
        ({"gpus": "7 x A100", "physical": 8, "scheduler": SLURM}, False, ""),
        ({"gpus": "7 x A100", "physical": 8, "scheduler": SLURM}, True, "7 of 8 GPUs visible"),
        ({"visible": "0,1", "scheduler": SLURM}, False, ""),
        ({"visible": "0,1"}, False, "2 of 8 GPUs visible: CUDA_VISIBLE_DEVICES is '0,1'"),
        ({"gpus": "", "physical": 8, "driver": None}, False, "0 of 8 GPUs visible"),
    ],
)
def test_fewer_gpus_are_a_fault_only_where_the_node_is_ours(facts: dict[str, Any], exclusive: bool, fault: str) -> None:
    said, helps = gpu_fault(_odd(**facts), exclusive=exclusive)
    assert said == fault
    assert bool(helps) == bool(fault)


def test_mig_instances_are_counted_as_a_process_may_use_them() -> None:
    gpus = [
        {"index": 0, "name": "NVIDIA A100", "mig_enabled": True, "mig": ["3g.40gb MIG-a", "3g.40gb MIG-b"]},
        {"index": 1, "name": "NVIDIA A100", "mig_enabled": True, "mig": ["7g.80gb MIG-c"]},
    ]
    both = _odd(**{"gpus": "", "physical": 2}, scheduler=SLURM).model_copy(
        update={"gpus": NodeFacts.model_validate({**_odd().model_dump(), "gpus": gpus}).gpus}
    )
    assert mig_instances(both) == 3
    assert "2 x NVIDIA A100 with 3 MIG instances" in describe(both)
    one = both.model_copy(update={"visible_devices": "MIG-b,MIG-other"})
    assert mig_instances(one) == 1
    other_layout = both.model_copy(update={"gpus": (both.gpus[0].model_copy(update={"mig": ()}), both.gpus[1])})
    found = group({"a": both, "b": both, "c": other_layout})
    assert [each.nodes for each in found] == [("a", "b"), ("c",)]
    assert found[1].differs == ("GPUs 2 x NVIDIA A100 with 1 MIG instance ≠ 2 x NVIDIA A100 with 3 MIG instances",)


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
    divided = GpuFacts(index=0, name=name or "", mig_enabled=True)
    assert load_compat().gpu_of(divided.device_name) is None, "one that MIG divides has not the peak of the whole"


@pytest.mark.parametrize(
    ("text", "models"),
    [
        *((name, [gpu.model]) for gpu in load_compat().gpus.values() for name in (gpu.model, gpu.name)),
        ("A100 80 GB", ["A100-SXM4-80GB", "A100-PCIE-80GB"]),
        ("nvidia_a100_80gb_pcie", ["A100-PCIE-80GB"]),
        ("H100 SXM", ["H100-SXM5-80GB"]),
        ("A100 16GB", []),
        ("", []),
    ],
)
def test_a_name_that_people_write_fits_every_row_that_it_does_not_contradict(text: str, models: list[str]) -> None:
    assert [gpu.model for gpu in rows_like(text, load_compat())] == models
