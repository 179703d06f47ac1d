"""Disk, system and interface facts, on real folders and on made /proc and /sys trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild.node.probe import disks, system
from tests.support.files import write_files


def mounts(point: str, options: str = "rw", source: str = "srv:/x") -> str:
    return f"1 0 0:1 / / rw - ext4 /dev/root rw\n2 1 0:2 / {point} {options} - nfs4 {source} rw\n"


def test_prefix_that_is_not_there_yet_is_judged_by_its_parent_and_what_is_in_its_way_is_named(tmp_path: Path) -> None:
    facts = disks.disk_facts(str(tmp_path / "a/b/c"), {})
    assert facts["writable"]
    assert facts["reason"] is None
    assert facts["path"].endswith("a/b/c")
    assert 0 < facts["free_bytes"] <= facts["total_bytes"]
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    assert "is not a folder" in disks.disk_facts(str(tmp_path / "file/x"), {})["reason"]
    assert "leads nowhere" in disks.disk_facts(str(tmp_path / "link/x"), {})["reason"]
    assert not disks.disk_facts(str(tmp_path / "link"), {})["writable"]


def test_quota_that_is_less_than_the_free_space_counts(tmp_path: Path) -> None:
    quota: disks.Quotas = {"srv:/x": {"bytes": 9000, "bytes_left": 500, "inodes": 70, "inodes_left": 7}}
    facts = disks.disk_facts(str(tmp_path), quota, mounts(str(tmp_path)))
    assert (facts["free_bytes"], facts["quota_bytes"], facts["quota_inodes"]) == (500, 9000, 70)
    assert facts.get("free_inodes", 7) == 7
    assert facts["filesystem"] == "nfs4"


@pytest.mark.parametrize(
    ("options", "writable", "noexec"), [("ro", False, False), ("rw,noexec", True, True), ("rw", True, False)]
)
def test_mount_flags(tmp_path: Path, options: str, writable: bool, noexec: bool) -> None:
    facts = disks.disk_facts(str(tmp_path), {}, mounts(str(tmp_path), options))
    assert (facts["writable"], facts["noexec"]) == (writable, noexec)


@pytest.mark.parametrize(("mode", "good"), [(0o777, False), (0o1777, True), (0o2775, True), (0o755, True)])
@pytest.mark.parametrize("name", ["", "tools", "envs"])
def test_a_prefix_that_everybody_can_change_is_not_used(tmp_path: Path, name: str, mode: int, good: bool) -> None:
    folder = tmp_path / "prefix" / name
    folder.mkdir(parents=True)
    folder.chmod(mode)
    facts = disks.disk_facts(str(tmp_path / "prefix"), {})
    assert facts["writable"] is good
    assert good or f"everybody can change what is in {folder}" in facts["reason"].replace("/ ", " ")


def test_d24_a_folder_above_that_belongs_to_somebody_else_is_named(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "prefix").mkdir(parents=True)
    assert disks.foreign_owner(str(theirs / "prefix")) is None
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(theirs, 12345, -1)
    link = tmp_path / "link"
    link.symlink_to(theirs / "prefix")
    said = disks.foreign_owner(str(link / "below"))
    assert said is not None
    assert said.startswith(f"{theirs} belongs to user id 12345")


@pytest.mark.parametrize(
    ("files", "memory"),
    [
        (
            {
                "proc/self/cgroup": "0::/job/step\n",
                "proc/meminfo": "MemTotal:       1000000 kB\n",
                "sys/fs/cgroup/job/cpu.max": "100000 100000\n",
                "sys/fs/cgroup/job/memory.max": "1048576\n",
                "sys/fs/cgroup/job/step/memory.max": "max\n",
            },
            1048576,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/j\n5:memory:/j\n",
                "proc/meminfo": "MemTotal: 1000 kB\n",
                "sys/fs/cgroup/cpu/j/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/j/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/j/memory.limit_in_bytes": "9223372036854771712\n",
            },
            1000 * 1024,
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_limits_of_a_job_s_cgroup(tmp_path: Path, files: dict[str, str], memory: int) -> None:
    root = str(write_files(tmp_path, files))
    assert (system.cpu_count(root), system.memory_bytes(root)) == (1, memory)


def test_interfaces_and_infiniband_ports(tmp_path: Path) -> None:
    files = {
        "sys/class/net/eno1/speed": "25000\n",
        "sys/class/net/eno1/operstate": "up\n",
        "sys/class/net/eno1/type": "1\n",
        "sys/class/net/ib0/type": "32\n",
        "sys/class/net/ib0/speed": "-1\n",
        "sys/class/net/lo/type": "772\n",
        "sys/class/net/veth12/type": "1\n",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
        "sys/class/infiniband/mlx5_1/ports/1/link_layer": "Ethernet\n",
        "proc/net/if_inet6": "20010db8000000000000000000000001 02 40 00 80     eno1\n",
    }
    found = {each["name"]: each for each in system.nic_facts(str(write_files(tmp_path, files)))}
    assert set(found) == {"eno1", "ib0", "mlx5_0", "mlx5_1"}
    assert found["eno1"]["rate_gbps"] == 25.0
    assert found["eno1"]["addresses"] == ["2001:db8::1"]
    assert found["ib0"]["kind"] == "infiniband"
    assert "rate_gbps" not in found["ib0"]
    assert (found["mlx5_0"]["rate_gbps"], found["mlx5_0"]["state"]) == (200.0, "active")
    assert found["mlx5_1"]["kind"] == "ethernet"
