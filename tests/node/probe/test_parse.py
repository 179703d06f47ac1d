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


def test_lost_gpu_does_not_hide_the_others() -> None:
    text = read("lost/query.txt")
    assert [gpu["index"] for gpu in gpus.parse_query(text)] == [1]
    assert "Unable to determine the device handle" in (gpus.parse_problem(text) or "")


def distribution(text: str) -> tuple[str, str | None]:
    found = system.parse_os_release(text)
    return found["ID"], found.get("VERSION_ID")


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
    (
        distribution,
        {"os-release/rhel-8.8": ("rhel", "8.8"), "os-release/alpine-3.19": ("alpine", "3.19.1"),
         "os-release/debian-12": ("debian", "12"), "os-release/arch": ("arch", None)},
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


def test_os_release_quoting() -> None:
    assert system.parse_os_release('# x=1\nA=\'b c\'\nB="d \\"e\\""\nC="\n') == {"A": "b c", "B": 'd "e"', "C": '"'}


GCC = "gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0\nCopyright (C) 2021\n"
LINES: list[tuple[Callable[[str], object], dict[str, object]]] = [
    (
        programs.parse_compiler,  # D56: a warning before the line of a compiler is not its answer
        {
            f"ccache: warning: version 4.8 is old\n{GCC}": "11.4.0",
            f"perl: warning: Setting locale failed.\n{GCC}": "11.4.0",
            "x86_64-linux-gnu-gcc-12 (Debian) 12.2.0": "12.2.0",
        },
    ),
    (
        programs.parse_tool,
        {
            "git version 2.39.5": "2.39.5",
            "tar (GNU tar) 1.34\nCopyright": "1.34",
            "*** Zstandard CLI (64-bit) v1.5.4, by Yann Collet ***": "1.5.4",
            "curl 7.88.1 (x86_64-pc-linux-gnu) libcurl/7.88.1": "7.88.1",
            "1.13.2.git.kitware.jobserver-pipe-1": "1.13.2.git.kitware.jobserver-pipe-1",
            "BusyBox multi-call binary": None,
            "": None,
        },
    ),
    (system.parse_cpu_max, {"400000 100000\n": 4.0, "max 100000\n": None, "-1 100000": None, "1 0": None}),
]


@pytest.mark.parametrize(("parse", "text", "value"), [(parse, *row) for parse, rows in LINES for row in rows.items()])
def test_a_line_of_a_tool_a_compiler_or_a_cgroup_is_read(
    parse: Callable[[str], object], text: str, value: object
) -> None:
    assert parse(text) == value


def test_mounts_and_the_one_that_a_path_is_on() -> None:
    mounts = disks.parse_mountinfo(read("mountinfo.txt"))
    assert len(mounts) == 5
    of_paths = {"/": "ext4", "/homework/x": "ext4", "/home/alice/envbuild": "nfs4", "/mnt/two words/x": "tmpfs"}
    assert {path: (disks.mount_of(path, mounts) or {})["filesystem"] for path in of_paths} == of_paths
    assert "noexec" in (disks.mount_of("/mnt/two words", mounts) or {})["options"]
    later = disks.parse_mountinfo("1 0 0:1 / /a rw - ext4 x rw\n2 0 0:2 / /a ro - nfs y rw\n")
    assert (disks.mount_of("/a/b", later) or {})["filesystem"] == "nfs", "a later mount hides the earlier one"


def test_quota_counts_what_is_left_and_knows_no_limit() -> None:
    found = disks.parse_quota(read("quota.txt"))
    assert found["server:/export/home"] == {
        "bytes": 52428800 * 1024,
        "bytes_left": (52428800 - 41943040) * 1024,
        "inodes": 1100000,
        "inodes_left": 200000,
    }
    assert found["/dev/sdb1"]["bytes"] is None
