"""Parsers of nvidia-smi, nvcc, system files and tools on texts in their own forms (see data/README.md)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.node.probe import disks, gpus, programs, system
from envbuild.node.read_text import first

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
    text = read(f"{name}/plain.txt")
    assert (first(gpus.DRIVER, text), first(gpus.CEILING, text), gpus.parse_problem(text)) == (driver, ceiling, None)


def test_query_of_a100() -> None:
    rows = gpus.parse_query(read("a100/query.txt"))
    assert [gpu["index"] for gpu in rows] == list(range(8))
    assert rows[7] == {
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


def test_lost_gpu_does_not_hide_the_others() -> None:
    text = read("lost/query.txt")
    assert [gpu["index"] for gpu in gpus.parse_query(text)] == [1]
    assert "Unable to determine the device handle" in (gpus.parse_problem(text) or "")


def test_values_that_nvidia_smi_does_not_have_are_none() -> None:
    first, second = gpus.parse_query(read("na/query.txt"))
    assert (first["mig_enabled"], first["ecc_errors"]) == (None, None)
    assert (second["memory_mib"], second["compute_capability"], second["ecc_errors"]) == (None, None, None)


VERSIONS: list[tuple[Callable[[str], object], dict[str, object]]] = [
    (
        partial(first, gpus.MODULE),
        {"proc_version": "470.57.02", "proc_version_open": "550.54.15", "h200/proc_version": "580.159.04"},
    ),
    (
        partial(first, gpus.NVCC),
        {"nvcc/10.2": "10.2.89", "nvcc/11.4": "11.4.48", "nvcc/13.0": "13.0.88"},
    ),
    (
        programs.parse_compiler,
        {"gcc/debian": "12.2.0", "gcc/ubuntu": "9.4.0", "gcc/versioned": "11.4.0", "gcc/rhel": "8.5.0",
         "gcc/suse": "7.5.0", "gcc/centos7": "4.8.5", "gcc/conda": "12.3.0", "gcc/crosstool": "9.3.0",
         "gcc/spack": "11.2.0", "gcc/cray": "12.3.0"},
    ),
    (
        system.parse_ldd,
        {f"ldd/{name}": {"kind": name.partition("-")[0], "version": version}
         for name, version in {"glibc-debian": "2.36", "glibc-rhel": "2.28", "musl": "1.2.4"}.items()},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("parse", "name", "version"), [(parse, *row) for parse, rows in VERSIONS for row in rows.items()]
)
def test_the_version_of_a_program_is_its_own_and_not_its_vendors(
    parse: Callable[[str], object], name: str, version: object
) -> None:
    assert parse(read(f"{name}.txt")) == version


PARSERS: list[Callable[[str], object]] = [
    gpus.parse_query, gpus.parse_list, gpus.parse_problem, system.parse_os_release, system.parse_ldd,
    system.parse_cgroup_paths, system.parse_cpu_max, programs.parse_compiler, programs.parse_tool,
    disks.parse_mountinfo, disks.parse_quota,
]  # fmt: skip
PIECES = st.sampled_from(["a", "-", "1 2 3:4 / /x rw - e s o", "[global]", "find-links", "=", ":", "\\040", "\n"])


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300) | st.lists(PIECES).map("".join))
def test_no_text_crashes_a_parser(text: str) -> None:
    for parse in PARSERS:
        parse(text)


@given(st.lists(st.text(max_size=12), min_size=9, max_size=9))
def test_any_nine_cells_give_a_gpu_or_nothing(cells: list[str]) -> None:
    for gpu in gpus.parse_query(", ".join(cells)):
        assert isinstance(gpu["index"], int)
        assert gpu["memory_mib"] is None or gpu["memory_mib"] >= 0


@pytest.mark.parametrize(
    ("name", "identity", "version"),
    [
        ("rhel-8.8", "rhel", "8.8"),
        ("alpine-3.19", "alpine", "3.19.1"),
        ("debian-12", "debian", "12"),
        ("arch", "arch", None),
    ],
)
def test_os_release(name: str, identity: str, version: str | None) -> None:
    found = system.parse_os_release(read(f"os-release/{name}.txt"))
    assert (found["ID"], found.get("VERSION_ID")) == (identity, version)


def test_os_release_quoting() -> None:
    assert system.parse_os_release('# x=1\nA=\'b c\'\nB="d \\"e\\""\nC="\n') == {"A": "b c", "B": 'd "e"', "C": '"'}


def test_d56_a_warning_before_the_line_of_a_compiler_is_not_its_answer() -> None:
    line = "gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0\nCopyright (C) 2021\n"
    assert programs.parse_compiler(f"ccache: warning: version 4.8 is old\n{line}") == "11.4.0"
    assert programs.parse_compiler(f"perl: warning: Setting locale failed.\n{line}") == "11.4.0"
    assert programs.parse_compiler("x86_64-linux-gnu-gcc-12 (Debian) 12.2.0") == "12.2.0"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("git version 2.39.5", "2.39.5"),
        ("tar (GNU tar) 1.34\nCopyright", "1.34"),
        ("*** Zstandard CLI (64-bit) v1.5.4, by Yann Collet ***", "1.5.4"),
        ("xz (XZ Utils) 5.4.1\nliblzma 5.4.1", "5.4.1"),
        ("uv 0.13.8 (abc 2026-01-01)", "0.13.8"),
        ("curl 7.88.1 (x86_64-pc-linux-gnu) libcurl/7.88.1", "7.88.1"),
        ("1.13.2.git.kitware.jobserver-pipe-1", "1.13.2.git.kitware.jobserver-pipe-1"),
        ("BusyBox multi-call binary", None),
        ("", None),
    ],
)
def test_tool_version(text: str, version: str | None) -> None:
    assert programs.parse_tool(text) == version


def test_mounts_and_the_one_that_a_path_is_on() -> None:
    mounts = disks.parse_mountinfo(read("mountinfo.txt"))
    assert len(mounts) == 5

    def on(path: str) -> str:
        return (disks.mount_of(path, mounts) or {})["filesystem"]

    assert on("/") == "ext4"
    assert on("/homework/x") == "ext4"
    assert on("/home/alice/envbuild") == "nfs4"
    assert on("/mnt/two words/x") == "tmpfs"
    assert "noexec" in (disks.mount_of("/mnt/two words", mounts) or {})["options"]


def test_later_mount_hides_the_earlier_one() -> None:
    text = "1 0 0:1 / /a rw - ext4 x rw\n2 0 0:2 / /a ro - nfs y rw\n"
    assert (disks.mount_of("/a/b", disks.parse_mountinfo(text)) or {})["filesystem"] == "nfs"


def test_quota_counts_what_is_left_and_knows_no_limit() -> None:
    found = disks.parse_quota(read("quota.txt"))
    assert found["server:/export/home"] == {
        "bytes": 52428800 * 1024,
        "bytes_left": (52428800 - 41943040) * 1024,
        "inodes": 1100000,
        "inodes_left": 200000,
    }
    assert found["/dev/sdb1"]["bytes"] is None


def test_cgroup_cpu_limit() -> None:
    assert system.parse_cpu_max("400000 100000\n") == 4.0
    assert system.parse_cpu_max("max 100000\n") is None
    assert system.parse_cpu_max("-1 100000") is None
    assert system.parse_cpu_max("1 0") is None
