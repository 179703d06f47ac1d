"""Jobs that several tests use."""

from __future__ import annotations

from typing import Any

from envbuild.schedule.job import Gres, Job, JobStep


def job(**more: Any) -> Job:
    """One program on every node of two."""
    given: dict[str, Any] = {
        "name": "envbuild-probe", "nodes": 2, "steps": (JobStep(argv=("/opt/python3", "probe.pyz")),),
        "output": "/shared/envbuild/jobs",
    }  # fmt: skip
    return Job(**{**given, **more})


def training(**more: Any) -> Job:
    """A job that uses everything: GPUs, limits, variables and a program on the first node only."""
    given: dict[str, Any] = {
        "name": "smoke", "nodes": 4, "gpus_per_node": 8, "gpus_on_node": 8, "gres": Gres(type="a100"),
        "time_limit": 90000, "queue": "hpc", "account": "proj-1", "exclusive": True, "constraints": "ib&a100",
        "variables": {"NCCL_DEBUG": "warn", "GREETING": "it's $(id) `id` \"x\" \\"},
        "steps": (
            JobStep(argv=("torchrun", "--nnodes", "4", "--rdzv-endpoint={MASTER_ADDR}:{MASTER_PORT}",
                          "--rdzv-id={RUN_ID}", "train it.py", "$HOME;$(id)")),
            JobStep(argv=("/usr/bin/env", "echo", "done"), each="once"),
        ),
        "output": "/shared/my jobs/100%",
    }  # fmt: skip
    return job(**{**given, **more})
