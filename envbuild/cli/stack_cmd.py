"""`envbuild stack`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import names
from envbuild.cli.choose import stack_argument
from envbuild.cli.output import Ui, common_options, each_checked, named
from envbuild.cli.verbs import Group

if TYPE_CHECKING:
    from envbuild.catalog.loader import LoadedStack
    from envbuild.model.conda import CondaSpec
    from envbuild.model.stack import Profile


@click.group("stack", cls=Group)
def stack() -> None:
    """Stacks: the systems that can be reproduced."""


@stack.command("list")
@common_options
def list_command(ui: Ui) -> None:
    """List the shipped stacks."""
    from envbuild.catalog.loader import list_stacks, load_stack

    rows = []
    for name in list_stacks():
        loaded = load_stack(name)
        rows.append({"name": name, "summary": loaded.stack.summary, "profiles": list(loaded.stack.profiles)})
    told = [(str(row["name"]), [str(row["summary"]), f"profiles: {', '.join(row['profiles'])}"]) for row in rows]
    ui.result({"stacks": rows}, lambda: named(told))


@stack.command("show")
@stack_argument()
@common_options
def show(ui: Ui, stack: str | None) -> None:
    """Show STACK: a shipped name or a file; else the configured one."""
    from envbuild.catalog.loader import load_stack

    loaded = load_stack(stack or _configured())
    data = {"path": str(loaded.path), "shipped": loaded.shipped, "locks": _locks(loaded)}
    ui.result({**data, "stack": loaded.stack.to_json_dict()}, lambda: _described(loaded))


@stack.command("check")
@click.argument("stacks", nargs=-1, required=True, shell_complete=names.stacks)
@common_options
def check(ui: Ui, stacks: tuple[str, ...]) -> int:
    """Check each of STACKS: names or files.

    The exit code is that of the first that is refused.
    """
    from envbuild.catalog.loader import load_stack
    from envbuild.resolve.compat_read import load_compat
    from envbuild.resolve.profile import refuse

    compat = load_compat()

    def name_of(reference: str) -> str:
        found = load_stack(reference).stack
        for profile in found.profiles.values():
            refuse(profile, compat)
        return found.name

    return each_checked(ui, "stack", stacks, name_of)


def _configured() -> str:
    """The stack of the configuration, else that of its target."""
    from envbuild.config import load_config

    config = load_config()
    if config.stack:
        return config.stack
    from envbuild.catalog.loader import load_target

    return load_target(config.target).target.stack or "torch-smoke"


def _locks(loaded: LoadedStack) -> dict[str, dict[str, Any]]:
    from envbuild.catalog.loader import lock_path

    paths = {profile: lock_path(loaded, profile) for profile in loaded.stack.profiles}
    return {profile: {"path": str(path), "exists": path.is_file()} for profile, path in paths.items()}


def _described(loaded: LoadedStack) -> str:
    stack = loaded.stack
    lines = [f"{stack.name}: {stack.summary}", f"file      {loaded.path}"]
    if stack.document:
        lines.append(f"document  {stack.document.title} <{stack.document.url}>")
    locks = _locks(loaded)
    for name, profile in stack.profiles.items():
        lines += ["", f"profile {name}" + (" (default)" if name == stack.default_profile else "")]
        lines += [f"  {label:12}{text}" for label, text in _profile_lines(profile) if text]
        lines.append(f"  {'lock':12}{locks[name]['path']}" + ("" if locks[name]["exists"] else " (not there yet)"))
    for finding in stack.findings:
        lines += ["", f"finding {finding.id} ({finding.severity})", f"  says   {finding.says}"]
        lines += [f"  truth  {finding.truth}", f"  does   {finding.does}"]
    return "\n".join(lines)


def _conda_line(conda: CondaSpec) -> str:
    """What conda installs and from where, and what of pip's it stands in for."""
    instead = f"; instead of wheels: {', '.join(conda.provides)}" if conda.provides else ""
    channels = ", ".join(each.name for each in conda.channels)
    return f"{', '.join(conda.packages) or 'Python'} from {channels}{instead}"


def _profile_lines(profile: Profile) -> list[tuple[str, str]]:
    torch = f"{profile.torch.version} ({', '.join(profile.torch.flavours)})" if profile.torch else ""
    sources = [f"{s.name} {s.commit[:12]} ({s.install})" for s in profile.pinned_sources]
    sources += [f"{tree.name} {tree.path} ({tree.install})" for tree in profile.working_trees]
    return [
        ("python", f"{', '.join(profile.python)} ({', '.join(profile.interpreters)})"),
        ("torch", torch),
        ("conda", _conda_line(profile.conda) if profile.conda else ""),
        ("bases", ", ".join(base.kind for base in profile.bases)),
        ("packages", ", ".join(profile.packages)),
        ("sources", ", ".join(sources)),
        ("variables", ", ".join(profile.environment)),
        ("smoke", ", ".join(item.name for item in profile.smoke_items)),
        ("runs", profile.runs),
    ]
