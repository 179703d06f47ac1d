"""What follows from what a host says: recorded answers of Slurm, of networks, folders and container programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuild.catalog.indexes import load_indexes
from envbuild.catalog.loader import load_stack
from envbuild.catalog.node_facts import load_facts
from envbuild.doctor import hosts
from envbuild.doctor.controller import Diagnosis, diagnose
from envbuild.doctor.hosts import trial
from envbuild.doctor.node import diagnose_node, diagnose_without_python, is_compute
from envbuild.model.facts import NodeFacts
from envbuild.model.target import Target

PARTITIONS = (
    "PartitionName=hpc AllowGroups=ALL Default=YES MaxTime=UNLIMITED State=UP TotalCPUs=384 TotalNodes=4\n"
    "PartitionName=cpu AllowGroups=ALL MaxTime=1-00:00:00 State=UP TotalCPUs=64 TotalNodes=2\n"
)
NODES = "hpc|3|idle~|gpu:a100:8(S:0-3)\nhpc|1|mixed|gpu:a100:8(S:0-3)\ncpu|2|idle|(null)\n"
CONFIG = "GresTypes               = gpu\nSLURM_VERSION           = 23.11.7\n"


def said(out: str = "", rc: int | None = 0, err: str = "") -> dict[str, Any]:
    return {"rc": rc, "out": out, "err": err}


def slurm(**more: Any) -> dict[str, Any]:
    programs = {
        "nodes": said(NODES), "names": said("hpc-1\nhpc-2\nhpc-[3-4]\n"), "partitions": said(PARTITIONS),
        "config": said(CONFIG), "try": said(err="sbatch: Job 7 to start at 2026-11-01T10:00:00 using 96 processors"),
    }  # fmt: skip
    return programs | more


def site(**more: Any) -> dict[str, Any]:
    folder = {"path": "/tmp", "writable": True, "noexec": False, "free_bytes": 50_000_000_000}
    plain = {
        "programs": {}, "user_namespaces": {"works": True, "why": ""}, "accounts": None, "groups": ["me"],
        "proxies": {}, "temporary": [folder], "docker_socket": False, "subordinate_ids": True,
    }  # fmt: skip
    return plain | more


def facts(**more: Any) -> NodeFacts:
    plain = {
        "protocol": 1, "node": "login1", "hostname": "login1.site", "user": "me", "probed_at": "2026-11-01T00:00:00Z",
        "os": {"id": "ubuntu", "version": "22.04"}, "libc": {"kind": "glibc", "version": "2.35"},
        "prefix": {"path": "/p", "filesystem": "nfs4", "free_bytes": 9e11, "free_inodes": 10**7, "writable": True},
        "reachable": {"pypi": True},
    }  # fmt: skip
    return NodeFacts.from_plain(plain | more)


def target(**more: Any) -> Target:
    return Target.from_plain({"name": "t", "prefix": "/shared/me"} | more)


JOBS = {
    "connection": {"kind": "job"}, "scheduler": {"kind": "slurm"}, "hosts": {"slurm": "hpc"}, "placement": "shared",
}  # fmt: skip
IN_SLURM = {"scheduler": {"kind": "slurm", "version": "slurm 23.11.7"}}


def lines(given: NodeFacts, told: dict[str, Any], of: Target) -> dict[str, Diagnosis]:
    found = diagnose_node(given, told, of)
    assert len({line.name for line in found}) == len(found)
    assert all(line.consequence for line in found), "a line without a consequence helps nobody"
    return {line.name: line for line in found}


def test_the_check_of_this_machine_leaves_nothing_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(diagnose()) == 5 and not list(tmp_path.iterdir())


def test_a_login_node_of_slurm_says_how_gpus_are_asked_for_and_that_a_job_would_be_accepted() -> None:
    found = lines(facts(**IN_SLURM), site(programs=slurm(), accounts=[{"account": "lab"}]), target(**JOBS))
    assert "a login node of slurm" in found["host"].found
    assert found["host"].consequence.startswith("connection: job, no GPU here")
    assert found["rights"].found == "a job on hpc would be accepted; accounts lab"
    gpus = found["gpus in jobs of hpc"]
    assert (gpus.level, gpus.found) == ("ok", "a100: 8 a node, 4 nodes")
    assert gpus.consequence == "asked for with --gres=gpu:a100:8"
    assert "only a job tells" in found["network"].consequence
    assert found["gpus"].consequence == "it runs no jobs; their nodes may have GPUs"
    assert lines(facts(), site(), target())["gpus"].consequence == "only CPU work runs on this host"


def test_another_scheduler_than_the_targets_and_a_prefix_whose_mount_is_missing_are_said() -> None:
    pbs = {**JOBS, "scheduler": {"kind": "pbs", "queue": "workq"}, "hosts": {"pbs": "nodefile"}}
    wrong = lines(facts(**IN_SLURM), site(programs=slurm()), target(**pbs))["scheduler"]
    assert (wrong.level, wrong.found) == ("missing", "slurm is here, and the target wants pbs")
    assert lines(facts(), site(), target(**pbs))["scheduler"].found == "no qstat"
    prefix = lines(facts(), site(prefix_in="/"), target())["prefix"]
    assert (prefix.level, "there is no /p" in prefix.found) == ("warning", True)
    assert prefix.hint == "if /p is a mount, mount it; else write another `prefix:` into the target"
    shared = facts(
        prefix={"path": "/mnt/lustre/me/envbuild", "free_bytes": 9e11, "free_inodes": 10**7, "writable": True}
    )
    assert "there is no /mnt/lustre" in lines(shared, site(prefix_in="/mnt"), target())["prefix"].found
    assert lines(shared, site(prefix_in="/mnt/lustre"), target())["prefix"].level == "ok"


def test_a_partition_without_gres_is_a_warning_that_whole_nodes_are_asked_for() -> None:
    bare = slurm(nodes=said("hpc|4|idle|(null)\n"), config=said("GresTypes = (null)\n"))
    gpus = lines(facts(**IN_SLURM), site(programs=bare), target(**JOBS))["gpus in jobs of hpc"]
    assert (gpus.level, "--exclusive" in gpus.consequence) == ("warning", True)
    assert "gpus_per_node" in gpus.hint


def test_without_a_partition_every_partition_is_told() -> None:
    found = lines(facts(**IN_SLURM), site(programs=slurm()), target())
    assert {"gpus in jobs of hpc", "gpus in jobs of cpu"} <= set(found)
    assert found["gpus in jobs of cpu"].level == "warning"
    assert found["host"].level == "warning"
    assert "extend `slurm`" in found["host"].hint


def test_a_refused_trial_says_why_without_terminal_escapes() -> None:
    refusal = said(rc=1, err="sbatch: warning: x\nallocation failure: Invalid account\x1b[31m or partition\n")
    rights = lines(facts(**IN_SLURM), site(programs=slurm(**{"try": refusal})), target(**JOBS))["rights"]
    assert (rights.level, rights.consequence) == ("missing", "provision cannot submit")
    assert "Invalid account" in rights.found
    assert rights.found.isprintable()


def test_slurm_that_does_not_answer_and_no_scheduler_at_all() -> None:
    silent = {"nodes": said(rc=None, err="no answer within 12 s")}
    found = lines(facts(**IN_SLURM), site(programs=silent), target(**JOBS))
    assert (found["scheduler"].level, "within 12 s" in found["scheduler"].found) == ("missing", True)
    assert found["host"].found.endswith(": slurm is installed here"), "as on a laptop"
    assert [name for name, line in found.items() if line.level == "missing"] == ["scheduler"], "one fault, said once"
    pbs = {**JOBS, "scheduler": {"kind": "pbs", "queue": "workq"}, "hosts": {"pbs": "nodefile"}}
    told = site(programs={"queues": said(rc=1, err="qstat: cannot connect to server")})
    broken = lines(facts(scheduler={"kind": "pbs"}), told, target(**pbs))["scheduler"]
    assert (broken.level, broken.found) == ("missing", "pbs does not answer: cannot connect to server")
    found = lines(facts(), site(), target(**JOBS))
    assert (found["scheduler"].level, "login" in found["scheduler"].hint) == ("missing", True)
    assert "scheduler" not in lines(facts(), site(), target())


def test_a_compute_node_is_known_by_its_name_or_by_its_job() -> None:
    told = site(programs=slurm())
    assert is_compute(facts(hostname="hpc-4.cluster", **IN_SLURM), told)
    assert not is_compute(facts(**IN_SLURM), told)
    inside = facts(scheduler={"kind": "slurm", "job": "77"})
    assert "inside job 77" in lines(inside, told, target())["host"].found


def test_pbs_names_its_queues() -> None:
    queues = "Queue     Max\n-------- ----\ndebug      0   1 yes\nprod       0   1 yes\n"
    given = facts(scheduler={"kind": "pbs", "version": "2022.1"})
    found = lines(given, site(programs={"queues": said(queues)}), target())
    assert found["scheduler"].found.endswith("queues debug, prod")
    assert found["scheduler"].consequence == "jobs can be submitted"


@pytest.mark.parametrize(
    ("programs", "more", "says"),
    [
        ([], {}, "engine container: no: no podman, docker, apptainer or enroot; connection: job"),
        (["podman"], {}, "engine container: yes, with podman"),
        (["podman"], {"subordinate_ids": False}, "the user has no line in /etc/subuid"),
        (["podman"], {"user_namespaces": {"works": False, "why": "denied"}}, "none that this user can run"),
        (["apptainer"], {"user_namespaces": {"works": False, "why": "denied"}}, "yes, with apptainer"),
        (["docker"], {}, "none that this user can run"),
        (["docker"], {"docker_socket": True}, "yes, with docker"),
    ],
)
def test_containers_run_where_the_program_and_its_rights_are(
    programs: list[str], more: dict[str, Any], says: str
) -> None:
    found = lines(facts(containers=programs, **IN_SLURM), site(programs=slurm(), **more), target(**JOBS))
    assert says in found["containers"].consequence


@pytest.mark.parametrize(
    ("prefix", "level", "says"),
    [
        ({}, "ok", "placement: node-local"),
        ({"quota_bytes": 50_000_000_000, "free_bytes": 2_000_000_000}, "warning", "too little of space"),
        ({"quota_inodes": 200_000, "free_inodes": 900}, "warning", "too little of inodes"),
        ({"noexec": True}, "missing", "no program"),
        ({"writable": False, "reason": "read-only"}, "missing", "nothing can be built"),
    ],
)
def test_the_prefix_needs_room_inodes_and_the_right_to_write_and_run(
    prefix: dict[str, Any], level: str, says: str
) -> None:
    disk = {"path": "/p", "filesystem": "xfs", "free_bytes": 9e11, "free_inodes": 10**7, "writable": True} | prefix
    line = lines(facts(prefix=disk), site(), target())["prefix"]
    assert (line.level, says in line.consequence) == (level, True)
    assert line.hint in ("", "write another `prefix:` into the target")
    assert ("quota" in line.found) == any(name.startswith("quota") for name in prefix)


def test_outside_a_job_it_is_not_checked_that_nodes_see_a_shared_prefix() -> None:
    for job, unchecked in ((None, True), ("7", False)):
        seen = facts(scheduler={"kind": "slurm", "version": None, "job": job})
        line = lines(seen, site(programs=slurm()), target(**JOBS))["prefix"]
        assert ("whether the nodes see this folder is not checked" in line.consequence) == unchecked


def test_modules_that_this_host_lacks_are_a_warning() -> None:
    line = lines(facts(modules="tcl"), site(modules_absent=["cuda/11.66"]), target(**JOBS))["modules"]
    assert (line.level, line.found, line.consequence) == ("warning", "tcl, without cuda/11.66", "nodes may have it")
    assert lines(facts(modules="tcl"), site(), target(**JOBS))["modules"].level == "ok"


def test_a_noexec_temporary_folder_names_another_one() -> None:
    folders = [{"path": "/tmp", "writable": True, "noexec": True}, {"path": "/var/tmp", "writable": True}]
    line = lines(facts(), site(temporary=folders), target())["temporary folders"]
    assert (line.level, line.consequence) == ("warning", "programs cannot run in /tmp: say tmp: /var/tmp")
    alone = lines(facts(), site(temporary=folders[:1]), target())["temporary folders"]
    assert "nothing can be compiled" in alone.consequence
    assert lines(facts(), site(temporary=folders), target(tmp="/scratch"))["temporary folders"].level == "ok"


@pytest.mark.parametrize(
    ("tmp", "inside", "says"),
    [
        ({"writable": True}, "/mnt/nvme", ""),
        ({"writable": True}, "/mnt", "this host has no /mnt/nvme; whether the nodes can use it is not checked here"),
        ({"writable": False, "reason": "read-only"}, "/mnt/nvme", "this host cannot use it: read-only; whether the"),
        ({"writable": True, "noexec": True}, "/mnt/nvme/me", "this host cannot use it: noexec; whether the nodes"),
    ],
)
def test_a_temporary_folder_of_the_target_that_this_host_lacks_is_not_ok(
    tmp: dict[str, Any], inside: str, says: str
) -> None:
    here = facts(tmp={"path": "/mnt/nvme/me", "filesystem": "xfs"} | tmp)
    line = lines(here, site(tmp_in=inside), target(tmp="/mnt/nvme/{user}", **JOBS))["temporary folders"]
    assert (line.level, says in line.consequence) == ("warning" if says else "ok", True)


def test_no_way_out_means_that_the_controller_fetches() -> None:
    line = lines(facts(reachable={"pypi": False}), site(proxies={"https": "proxy:3128"}), target(**JOBS))["network"]
    assert (line.level, line.consequence) == ("warning", "this machine fetches and sends, where it can")
    assert "proxy: https through proxy:3128" in line.found
    through = target(**JOBS, environment={"http_proxy": "http://me:pw@out:3128", "https_proxy": "http://out:3128"})
    found = lines(facts(), site(), through)["network"].found
    assert found.endswith("; no proxy set here; the target sets the proxy out:3128")
    assert lines(facts(reachable={"pypi": False}), site(), target(delivery="node"))["network"].level == "warning"


def test_gpus_that_are_not_all_visible_are_as_they_should_be_inside_a_job_alone() -> None:
    seen = {"gpus": [{"index": 0, "name": "A100"}], "gpus_physical": 8, "driver": {"version": "535.1"}}
    assert lines(facts(**seen), site(), target())["gpus"].level == "warning"
    inside = facts(scheduler={"kind": "slurm", "job": "1"}, **seen)
    assert lines(inside, site(programs=slurm()), target())["gpus"].found == "1 × A100 of 8 in it"
    assert lines(inside, site(programs=slurm()), target())["gpus"].level == "ok"


def test_a_host_without_python_has_the_lines_that_sh_can_tell() -> None:
    found = diagnose_without_python({"scheduler": "slurm", "prefix": "/p", "prefix_writable": "no"}, target())
    assert {line.name: line.level for line in found} == {"python": "warning", "scheduler": "ok", "prefix": "missing"}


def test_the_job_that_is_tried_is_the_targets_and_never_without_a_partition() -> None:
    asked = {"kind": "slurm", "nodes": 4, "account": "lab", "qos": "high", "constraints": "a100&ib"}
    assert trial(target(**{**JOBS, "scheduler": asked})) == [
        "--nodes=4", "--time=1", "--partition=hpc", "--account=lab", "--qos=high", "--constraint=a100&ib",
    ]  # fmt: skip
    assert trial(target()) is None


def test_d35_hosts_are_counted_and_the_index_that_will_be_used_is_named() -> None:
    pytorch = dict.fromkeys(("pytorch-cpu", "pytorch-cu118", "pytorch-cu121"), False)
    line = lines(facts(reachable={"pypi": True, **pytorch}), site(), target())["network"]
    host = load_indexes()["pytorch-cpu"].url.split("/")[2]
    assert line.found == f"reached: the default index; not reached: {host}; no proxy set here"
    assert (
        line.level,
        line.consequence.startswith(f"this host can fetch for itself, but not what is on {host}"),
    ) == (
        "warning",
        True,
    )
    line = lines(facts(reachable=pytorch), site(), target())["network"]
    assert f"not reached: {host}; not asked: the default index, which the configuration here turns off" in line.found
    assert (line.level, line.consequence[:24]) == ("warning", "only caches, mirrors and")
    line = lines(facts(reachable={"https://github.com/a/b": False}), site(), target(**JOBS))["network"]
    assert line.found.startswith("not reached: github.com; ")
    assert line.consequence == "this machine fetches and sends, where it can"
    assert "`envbuild bundle create STACK -o FILE`" in line.hint
    assert lines(facts(), site(), target())["network"].level == "ok"


def test_a_conda_that_is_there_is_told_with_its_owner_and_a_missing_one_only_where_it_is_asked_for() -> None:
    there = [
        {"program": "conda", "path": "/opt/miniconda3/bin/conda", "owner": "root"},
        {"program": "micromamba", "path": "/home/me/bin/micromamba", "owner": "me"},
    ]
    line = lines(facts(), site(conda=there), target())["conda"]
    assert line.found == "/opt/miniconda3/bin/conda (the site's), /home/me/bin/micromamba (yours)"
    assert "licence" in line.consequence
    assert "conda" not in lines(facts(), site(), target())
    assert lines(facts(), site(), target(engine="conda"))["conda"].found == "none"


def needs(given: NodeFacts, of: Target, profile: str = "exact") -> Diagnosis:
    return hosts._needs(hosts.Wanted(load_stack("opt-175b"), profile, "./mine.yaml"), given, of)


def test_a_stack_is_held_against_the_host_or_against_the_gpus_that_jobs_get() -> None:
    (h200,) = load_facts("h200").values()
    line = needs(h200, target())
    assert (line.level, line.hint) == ("missing", "`--profile ported-cu130` fits")
    assert "no code for compute capability 9.0" in line.consequence and "nvcc 13.0 cannot compile" in line.consequence
    assert needs(h200, target(), "ported-cu130").level == "ok"
    login = facts(**IN_SLURM)
    line = needs(login, target(**JOBS, expects={"gpu": "A100"}))
    assert (line.level, line.consequence) == (
        "ok",
        "it fits the nodes' GPUs, A100; nothing else of them is known yet",
    )
    assert "`envbuild plan opt-175b --target ./mine.yaml` asks the nodes for driver, nvcc and Python" in line.hint
    assert needs(login, target(**JOBS, expects={"gpu": "H100"})).hint == "`--profile ported-cu130` fits"
    assert needs(login, target(**JOBS)).consequence == "the target does not say which GPUs nodes have"
    alcf = hosts.Wanted(load_stack("megatron-deepspeed-alcf"), "exact", "./mine.yaml")
    line = hosts._needs(alcf, login, target(**JOBS))
    assert (line.level, line.hint) == ("missing", "`--profile ported` fits")
    assert "load no module (base-module)" in line.consequence
