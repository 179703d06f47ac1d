"""What a target can ask for and `provision` cannot do yet: refused once, before anything is asked or changed."""

from __future__ import annotations

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.target import HostSource, Target

CODE = "not-yet-supported"


def unsupported(target: Target, *, only_ask: bool = False) -> dict[str, str]:
    """What of a target envbuild can plan for but not carry out, each with the setting that it can.

    `only_ask`: nodes are asked and not changed, so only how they are reached matters.
    """
    missing = {}
    if target.connection.kind == "job":
        missing[f"connection: job (a job of {target.scheduler.kind})"] = "connection: {kind: ssh}"
    if isinstance(target.hosts, HostSource):
        named = ", ".join(f"{key}: {value}" for key, value in target.hosts.given.items())
        missing[f"hosts named by {named}"] = "hosts: [...]"
    if only_ask:
        return missing
    if target.engine != "venv":
        missing[f"engine: {target.engine}"] = "engine: venv"
    if target.placement == "image":
        missing["placement: image"] = "placement: node-local"
    return missing


def refuse_unsupported(target: Target, *, only_ask: bool = False) -> None:
    """Raises EnvbuildError `not-yet-supported` (exit 7) for a target that `unsupported` says something of."""
    missing = unsupported(target, only_ask=only_ask)
    if missing:
        raise EnvbuildError(
            CODE,
            f"the target {target.name} asks for what envbuild cannot do yet",
            why="; ".join(missing),
            hint=f"`envbuild plan --target {target.name} --facts FILE` says from recorded facts what would be built; "
            f"what works today, in a file that extends it: {', '.join(f'`{setting}`' for setting in missing.values())}",
            exit_code=ExitCode.REFUSED,
            details={"missing": list(missing)},
        )
