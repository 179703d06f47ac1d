"""`envbuild` alone: three next steps that fit this machine. Looks at folders only."""

from __future__ import annotations

import os
import shutil

from envbuild import __version__
from envbuild.cli import names

Step = tuple[str, str]
_GPUS = "/proc/driver/nvidia/gpus"
# What submits jobs, what it is told the cluster by (a variable or a file), and where a build of its own has that file.
_SUBMIT = {
    "sbatch": ("Slurm", ("SLURM_CONF",), ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"), "etc/slurm.conf"),
    "qsub": (
        "PBS", ("PBS_CONF_FILE", "PBS_DEFAULT"), ("/etc/pbs.conf", "/var/spool/torque/server_name"), "etc/pbs.conf"
    ),
}  # fmt: skip


def text() -> str:
    """What is printed, no line longer than 60 characters but for long names of stacks."""
    used, gpus, scheduler = names.in_use(), _gpus(), scheduler_here()
    seen = [
        f"{gpus} GPU{'s' * (gpus != 1)}" if gpus else "",
        f"{scheduler} is configured" if scheduler else "",
        f"{used[0]} in use" if used else "",
    ]
    here = ", ".join(filter(None, seen)) or "no environment yet"
    lines = [f"envbuild {__version__}: GPU training environments,", "built from locks, tested and verified.", ""]
    lines.append(f"Next on this machine ({here}):")
    for command, says in _steps(used, scheduler):
        lines += [f"  {command}", f"      {says}"]
    lines += ["", *names.off_path(), "`envbuild --help` lists all commands,"]
    return "\n".join([*lines, "`envbuild help COMMAND` explains one.", ""])


def _steps(used: list[str], scheduler: str) -> list[Step]:
    """The three commands, the most useful first."""
    here = ("envbuild provision --target local", "build torch-smoke here, test and verify it")
    own = ("envbuild up FOLDER", "draft, build and test what your code asks for")
    cluster = [
        ("envbuild init cluster.yaml", f"describe the cluster that {scheduler} gives you"),
        ("envbuild doctor --target cluster.yaml", "check the cluster; changes nothing"),
        ("envbuild provision --target cluster.yaml", "build and test there, through one job"),
    ]
    if used:
        name = used[0]
        shipped = name in names.shipped("stacks")
        verify = f"envbuild verify {name}" if shipped else "envbuild status"
        return [
            (f'eval "$(envbuild env activate {name})"', "use it in this shell, until `deactivate`"),
            (verify, "read every file again" if shipped else "list the environments"),
            cluster[0] if scheduler else own,
        ]
    if scheduler:
        return cluster
    return [here, own, ("envbuild init lab.yaml", "describe a Slurm or PBS cluster, or SSH hosts")]


def _gpus() -> int:
    """GPUs that NVIDIA's driver shows here."""
    try:
        return len(os.listdir(_GPUS))
    except OSError:
        return 0


def scheduler_here() -> str:
    """`Slurm` or `PBS`, whose program is on PATH and knows of a cluster; empty for none. Its daemons are not asked."""
    for program, (name, variables, files, own) in _SUBMIT.items():
        if path := shutil.which(program):
            beside = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(path))), own)
            if any(map(os.environ.get, variables)) or any(map(os.path.exists, (*files, beside))):
                return name
    return ""
