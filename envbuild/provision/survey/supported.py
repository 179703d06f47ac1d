"""What a target can ask for and `provision` cannot do yet: refused once, before anything is asked or changed."""

from __future__ import annotations

from envbuild.errors import EnvbuildError
from envbuild.model.target import HostSource, Target

CODE = "not-yet-supported"
# `hosts: {pbs: nodefile}`: the nodes that the job gets.
NODE_FILE = "nodefile"


def unsupported(target: Target, *, only_ask: bool = False, jobs: bool = True, script: bool = False) -> dict[str, str]:
    """What of a target envbuild can plan for but not carry out, each with the setting that it can.

    `only_ask`: nodes are asked and not changed, so only how they are reached matters. `jobs`: the verb can work through
    jobs. `script`: what would be done is only printed.
    """
    missing = {}
    if target.connection.kind == "job":
        if jobs:
            missing.update(_jobs(target))
        else:
            missing[f"connection: job (a job of {target.scheduler.kind})"] = "connection: {kind: ssh}"
    # The node file of PBS is there inside a job; a partition of Slurm is no list of nodes that take SSH.
    if isinstance(target.hosts, HostSource) and target.hosts.slurm and not (target.connection.kind == "job" and jobs):
        named = ", ".join(f"{key}: {value}" for key, value in target.hosts.given.items())
        missing[f"hosts named by {named}"] = "hosts: [...]"
    if only_ask:
        return missing
    if target.engine == "container":
        missing.update(_images(target, script=script))
    return missing


def _images(target: Target, *, script: bool) -> dict[str, str]:
    """What images cannot do yet."""
    missing = {}
    runtime = target.container.runtime if target.container is not None else "auto"
    if runtime == "pyxis" and not (target.connection.kind == "job" and target.scheduler.kind == "slurm"):
        missing["container: {runtime: pyxis} without jobs of Slurm"] = "container: {runtime: enroot}"
    if target.container is not None and target.container.build == "job" and target.container.image is None:
        if target.connection.kind != "job":
            missing["container: {build: job} where nodes are not reached through jobs"] = "container: {build: here}"
        elif runtime not in ("auto", "apptainer"):
            missing[f"container: {{build: job}} with runtime: {runtime}"] = "container: {runtime: apptainer}"
        elif target.container.registry is not None and not script:
            missing["container: {build: job} with a registry to push to"] = "container: {build: here}"
    return missing


def _jobs(target: Target) -> dict[str, str]:
    """What jobs cannot do yet."""
    missing = {}
    hosts = target.hosts.given if isinstance(target.hosts, HostSource) else {}
    if target.scheduler.kind == "slurm" and "slurm" not in hosts:
        missing["connection: job with hosts that are not a partition"] = "hosts: {slurm: PARTITION}"
    if target.scheduler.kind == "pbs" and hosts.get("pbs") != NODE_FILE:
        missing["connection: job with hosts that are not those of the job"] = "hosts: {pbs: nodefile}"
    if target.base == "image":
        missing["connection: job with base: image"] = "base: none"
    return missing


def refuse_unsupported(target: Target, *, only_ask: bool = False, jobs: bool = False, script: bool = False) -> None:
    """Raises EnvbuildError `not-yet-supported` (exit 7) for a target that `unsupported` says something of."""
    missing = unsupported(target, only_ask=only_ask, jobs=jobs, script=script)
    if missing:
        raise EnvbuildError(
            CODE,
            f"the target {target.name} asks for what envbuild cannot do yet",
            why="; ".join(missing),
            hint=f"`envbuild plan --target {target.name} --facts FILE` says from recorded facts what would be built; "
            f"what works today, in a file that extends it: {', '.join(f'`{setting}`' for setting in missing.values())}",
            details={"missing": list(missing)},
        )
