"""Parsers of nvidia-smi, nvcc and the kernel module on texts in the tools' own forms (see data/README.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.node.probe import gpus as parse

DATA = Path(__file__).parents[1] / "data"


def read(name: str) -> str:
    return (DATA / name).read_text()


@pytest.mark.parametrize(
    ("name", "driver", "ceiling"),
    [
        ("a100", "470.57.02", "11.4"),
        ("v100", "440.33.01", "10.2"),
        ("h200", "580.159.04", "13.0"),
        ("mig", "535.161.08", "12.2"),
        ("umd", "610.43.02", "13.3"),
    ],
)
def test_header_gives_driver_and_cuda_ceiling(name: str, driver: str, ceiling: str) -> None:
    assert parse.parse_header(read(f"{name}/plain.txt")) == {"version": driver, "cuda_ceiling": ceiling}
    assert parse.parse_problem(read(f"{name}/plain.txt")) is None


def test_query_of_a100() -> None:
    gpus = parse.parse_query(read("a100/query.txt"))
    assert [gpu["index"] for gpu in gpus] == list(range(8))
    assert gpus[7] == {
        "index": 7,
        "name": "NVIDIA A100-SXM4-80GB",
        "uuid": "GPU-00000017-1111-2222-3333-000000000017",
        "memory_mib": 81251,
        "compute_capability": "8.0",
        "pci_bus_id": "00000000:71:00.0",
        "mig_enabled": False,
        "ecc_errors": 0,
        "driver_version": "470.57.02",
    }


def test_query_of_h200() -> None:
    gpus = parse.parse_query(read("h200/query.txt"))
    assert [(gpu["name"], gpu["memory_mib"], gpu["compute_capability"]) for gpu in gpus] == [
        ("NVIDIA H200", 143771, "9.0")
    ] * 2


def test_old_driver_refuses_new_fields_and_answers_old_ones() -> None:
    assert parse.query_is_too_new(read("v100/query.txt"))
    assert parse.query_is_too_new(read("h200/badfield.txt"))
    gpus = parse.parse_query(read("v100/query_old.txt"), parse.OLD_QUERY_FIELDS)
    assert len(gpus) == 4
    assert gpus[0]["name"] == "Tesla V100-SXM2-16GB"
    assert gpus[0]["compute_capability"] is None
    assert gpus[0]["mig_enabled"] is None


def test_mig_instances_belong_to_their_gpu() -> None:
    assert [gpu["mig_enabled"] for gpu in parse.parse_query(read("mig/query.txt"))] == [True, False]
    instances = parse.parse_list(read("mig/list.txt"))
    assert [entry.split()[0] for entry in instances[0]] == ["3g.20gb", "2g.10gb", "1g.5gb+me"]
    assert instances[0][0].endswith("MIG-00000030-1111-5222-8333-000000000001")
    assert instances[1] == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_driver", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"),
        ("mismatch", "Driver/library version mismatch; NVML library version: 535.183"),
        ("no_devices", "No devices were found"),
        ("unknown_error", "Failed to initialize NVML: Unknown Error"),
    ],
)
def test_problem_is_named_in_the_tools_own_words(name: str, says: str) -> None:
    text = read(f"{name}/plain.txt")
    assert says in (parse.parse_problem(text) or "")
    assert parse.parse_query(text) == []


def test_lost_gpu_does_not_hide_the_others() -> None:
    text = read("lost/query.txt")
    assert [gpu["index"] for gpu in parse.parse_query(text)] == [1]
    assert "Unable to determine the device handle" in (parse.parse_problem(text) or "")


def test_values_that_nvidia_smi_does_not_have_are_none() -> None:
    first, second = parse.parse_query(read("na/query.txt"))
    assert (first["mig_enabled"], first["ecc_errors"]) == (None, None)
    assert (second["memory_mib"], second["compute_capability"], second["ecc_errors"]) == (None, None, None)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("proc_version.txt", "470.57.02"),
        ("proc_version_open.txt", "550.54.15"),
        ("h200/proc_version.txt", "580.159.04"),
    ],
)
def test_kernel_module_version(name: str, version: str) -> None:
    assert parse.parse_proc_version(read(name)) == version


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("10.2", "10.2.89"),
        ("11.1", "11.1.105"),
        ("11.4", "11.4.48"),
        ("11.6", "11.6.124"),
        ("11.8", "11.8.89"),
        ("12.1", "12.1.105"),
        ("12.8", "12.8.93"),
        ("13.0", "13.0.88"),
    ],
)
def test_nvcc_version_with_patch_level(release: str, version: str) -> None:
    assert parse.parse_nvcc(read(f"nvcc/{release}.txt")) == version


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_no_text_crashes_a_parser(text: str) -> None:
    for function in (parse.parse_query, parse.parse_header, parse.parse_list, parse.parse_problem):
        function(text)
    for function in (parse.parse_proc_version, parse.parse_nvcc, parse.query_is_too_new):
        function(text)


@given(st.lists(st.text(max_size=12), min_size=9, max_size=9))
def test_any_nine_cells_give_a_gpu_or_nothing(cells: list[str]) -> None:
    for gpu in parse.parse_query(", ".join(cells)):
        assert isinstance(gpu["index"], int)
        assert gpu["memory_mib"] is None or gpu["memory_mib"] >= 0
