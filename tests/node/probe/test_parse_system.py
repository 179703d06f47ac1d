"""Parsers of system files and tools on texts in their own forms (see data/README.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.node.probe import disks, programs, system

DATA = Path(__file__).parents[1] / "data"


def read(name: str) -> str:
    return (DATA / name).read_text()


@pytest.mark.parametrize(
    ("name", "identity", "version"),
    [
        ("ubuntu-18.04", "ubuntu", "18.04"),
        ("sles-15.4", "sles", "15.4"),
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


@pytest.mark.parametrize(
    ("name", "kind", "version"),
    [("glibc-debian", "glibc", "2.36"), ("glibc-rhel", "glibc", "2.28"), ("musl", "musl", "1.2.4")],
)
def test_libc_from_ldd(name: str, kind: str, version: str) -> None:
    assert system.parse_ldd(read(f"ldd/{name}.txt")) == {"kind": kind, "version": version}


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("debian", "12.2.0"),
        ("ubuntu", "9.4.0"),
        ("versioned", "11.4.0"),
        ("rhel", "8.5.0"),
        ("suse", "7.5.0"),
        ("centos7", "4.8.5"),
        ("conda", "12.3.0"),
        ("crosstool", "9.3.0"),
        ("spack", "11.2.0"),
        ("cray", "12.3.0"),
    ],
)
def test_compiler_version_is_not_the_vendors(name: str, version: str) -> None:
    assert programs.parse_compiler(read(f"gcc/{name}.txt")) == version


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


def test_scheduler_version_only_from_the_scheduler_itself() -> None:
    assert system.parse_scheduler_version("slurm", "slurm-wlm 22.05.8\n") == "22.05.8"
    assert system.parse_scheduler_version("slurm", "slurm 23.11.10") == "23.11.10"
    assert system.parse_scheduler_version("pbs", "pbs_version = 2022.1.1.20220926110806\n") == "2022.1.1.20220926110806"
    assert system.parse_scheduler_version("pbs", "SGE 8.1.9\nusage: qstat [options]") is None
    with pytest.raises(KeyError):
        system.parse_scheduler_version("lsf", "pbs_version = 2022.1.1")


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


def test_infiniband_rate() -> None:
    assert system.parse_infiniband_rate("200 Gb/sec (4X HDR)") == 200.0
    assert system.parse_infiniband_rate("2.5 Gb/sec (1X SDR)") == 2.5


@given(st.text(max_size=300))
def test_no_text_crashes_a_parser(text: str) -> None:
    for function in (system.parse_os_release, system.parse_ldd, programs.parse_compiler, programs.parse_tool):
        function(text)
    for function in (system.parse_meminfo, disks.parse_mountinfo, disks.parse_quota, system.parse_infiniband_rate):
        function(text)
    for function in (system.parse_cgroup_paths, system.parse_cpu_max):
        function(text)
    system.parse_scheduler_version("slurm", text)


@given(st.lists(st.sampled_from(["a", "-", "1 2 3:4 / /x rw - e s o", "[global]", "find-links", "=", ":", "\\040"])))
def test_no_mixture_of_pieces_crashes_a_parser(pieces: list[str]) -> None:
    text = "\n".join(pieces)
    assert isinstance(disks.parse_mountinfo(text), list)
