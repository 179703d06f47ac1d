"""`envbuild` alone: three next steps that fit this machine. Looks at folders only and imports no library."""

from __future__ import annotations

import os

from envbuild import __version__
from envbuild.cli import names

Step = tuple[str, str]
_GPUS = "/proc/driver/nvidia/gpus"
_SUBMIT = {"sbatch": "Slurm", "qsub": "PBS"}


def text() -> str:
    """What is printed, no line longer than 60 characters but for long names of stacks."""
    used, gpus, scheduler = names.in_use(), _gpus(), scheduler_here()
    seen = [f"{gpus} GPU{'s' * (gpus != 1)}" if gpus else "", scheduler, f"{used[0]} in use" if used else ""]
    here = ", ".join(filter(None, seen)) or "no environment yet"
    lines = [f"envbuild {__version__}: GPU training environments,", "built from locks, tested and verified.", ""]
    lines.append(f"Next on this machine ({here}):")
    for command, says in _steps(used, scheduler):
        lines += [f"  {command}", f"      {says}"]
    return "\n".join([*lines, "", "`envbuild --help` lists all verbs, `help VERB` tells of one.", ""])


def _steps(used: list[str], scheduler: str) -> list[Step]:
    """The three commands, the most useful first."""
    explain = ("envbuild explain opt-175b", "what a published document gets wrong")
    here = ("envbuild provision --target local", "build torch-smoke here, test and verify it")
    cluster = [
        ("envbuild target init cluster.yaml", f"describe the cluster that {scheduler} gives you"),
        ("envbuild doctor --target cluster.yaml", "what follows from it, before anything is changed"),
        ("envbuild provision --target cluster.yaml", "build and test there, through one job"),
    ]
    if used:
        name = used[0]
        shipped = name in names.shipped("stacks")
        verify = f"envbuild verify --stack {name}" if shipped else "envbuild env list"
        return [
            (f'eval "$(envbuild env activate {name})"', "use it in this shell, until `deactivate`"),
            (verify, "read every file again" if shipped else "what is there, and since when"),
            cluster[0] if scheduler else explain,
        ]
    if scheduler:
        return cluster
    return [here, explain, ("envbuild target init lab.yaml", "describe machines that are reached over SSH")]


def _gpus() -> int:
    """GPUs that NVIDIA's driver shows here."""
    try:
        return len(os.listdir(_GPUS))
    except OSError:
        return 0


def scheduler_here() -> str:
    """`Slurm` or `PBS`, whose program for jobs is on PATH; empty for none."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    there = (name for program, name in _SUBMIT.items()
             if any(os.access(os.path.join(each, program), os.X_OK) for each in folders if each))  # fmt: skip
    return next(there, "")
