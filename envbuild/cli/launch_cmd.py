"""`envbuild launch`: the commands of a stack, printed, run here, or submitted as a job."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli.choose import (
    Time,
    configured,
    options,
    prefix_option,
    profile_option,
    stack_argument,
    target_option,
)
from envbuild.cli.output import Ui, comments_fitted, common_options
from envbuild.errors import EnvbuildError

if TYPE_CHECKING:
    from envbuild.launch.command import Place
    from envbuild.model.launch import Launch


_LONGEST = 999_999.0 * 3600
environment_option = click.option(
    "--environment", metavar="DIR", help="The built environment (default: the one in use under the prefix)."
)
# What is run, and on how much: of `launch` and `bench`.
run_options = options(
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A parameter of the stack, repeatable."),
    click.option("--nodes", type=click.IntRange(min=1), help="Number of nodes (default: 1; of a job, the target's)."),
    click.option("--gpus-per-node", type=click.IntRange(min=1), help="GPUs of a node (default: the target's)."),
    click.option("--master", metavar="ADDR", help="Address of the first node (`bench` over SSH: as it is reached)."),
    click.option("--port", type=click.IntRange(1024, 65535), help="Port of the first node (default: the document's)."),
)


@click.command("launch")
@stack_argument(required=True)
@profile_option
@target_option
@prefix_option
@run_options
@click.option("--job", metavar="ID", help="Job id of the scheduler.")
@click.option("--node", "rank", type=click.IntRange(min=0), help="Only what the node of this rank runs.")
@click.option("--hostfile", metavar="FILE", help="Node file of the MPI launcher.")
@click.option("--image", metavar="IMAGE", help="Container image to start in: a registry's, or a .sqsh file.")
@environment_option
@click.option("-o", "--output", metavar="DIR", help="Where the run writes (default: here).")
@click.option("--run", "run_here", is_flag=True, help="Run this node's command here; its exit code is the answer.")
@click.option("--submit", is_flag=True, help="Run it as a job of the target's scheduler, wait, and end as it ended.")
@click.option("--print-script", is_flag=True, help="With --submit: print the job's file, and submit nothing.")
@click.option("--no-wait", is_flag=True, help="With --submit: print the number of the job, and do not wait.")
@click.option("--cancel-job", is_flag=True, help="With --submit: an interrupt also ends the job.")
@click.option(
    "--time-limit", type=Time(1, _LONGEST), metavar="TIME", help="How long the job may run (default: the target's)."
)
@click.option("--parameters", is_flag=True, help="List what --set takes, and print no command.")
@common_options
def launch(ui: Ui, /, stack: str, **flags: Any) -> int:
    """Print the commands that start STACK; --run and --submit start it."""
    from envbuild.catalog.loader import load_stack
    from envbuild.launch.recipes import launch as make
    from envbuild.launch.shell import render

    loaded = load_stack(stack)
    if flags["parameters"]:
        return _parameters(ui, loaded.stack)
    _refuse_together(flags)
    profile = profile_to_run({**flags, "stack": stack}, "launch")
    if flags["submit"]:
        from envbuild.cli.launch_run import submit

        return submit(ui, loaded.stack, profile, launch_settings(flags["settings"]), flags)
    place = launch_place(loaded.stack.name, flags)
    made = make(loaded.stack, profile, launch_settings(flags["settings"]), place)
    made = _of_rank(made, flags["rank"])
    activate = None if place.image else f"{place.environment}/.envbuild/activate.sh"
    if flags["run_here"]:
        from envbuild.cli.launch_run import run_here

        return run_here(ui, made, place, activate)
    data = {"launch": made.to_json_dict(), **({} if activate is None else {"activate": activate})}
    ui.result(data, lambda: comments_fitted(render(made, activate), sys.stdout), verbatim=True)
    return 0


def _refuse_together(flags: dict[str, Any]) -> None:
    """Options that belong to another way of starting."""
    if flags["submit"] and flags["run_here"]:
        raise click.UsageError("--run starts it here and --submit as a job: choose one")
    given = [name for name in ("master", "job", "hostfile", "rank") if flags["submit"] and flags[name] is not None]
    if given:
        option = {"rank": "node"}.get(given[0], given[0])
        raise click.UsageError(f"--{option} cannot be used with --submit: the job says it")
    for name in ("print_script", "no_wait", "cancel_job", "time_limit"):
        if flags[name] and not flags["submit"]:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --submit")


def launch_settings(texts: tuple[str, ...]) -> dict[str, str]:
    """What `--set KEY=VALUE` gives. Raises click.UsageError."""
    out: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise click.UsageError(f"--set takes KEY=VALUE, not {text!r}")
        if key in out:
            raise click.UsageError(f"--set {key} is given twice")
        out[key] = value
    return out


def launch_place(stack: str, flags: dict[str, Any]) -> Place:
    """Nodes, GPUs and folders of a launch. Raises click.UsageError and EnvbuildError `launch-parameter` (exit 2)."""
    from pydantic import ValidationError

    from envbuild.catalog.loader import load_target
    from envbuild.launch.command import Place

    config = configured(flags)
    target = load_target(flags["target"] or config.target, template=True).target
    gpus = flags["gpus_per_node"] or target.expects.gpus_per_node
    if gpus is None:
        raise click.UsageError("--gpus-per-node is needed: the target does not say it")
    try:
        return Place(
            nodes=flags["nodes"] or 1,
            gpus_per_node=gpus,
            environment=environment_of(stack, flags),
            output=absolute(flags["output"] or "."),
            master=flags["master"],
            port=flags["port"],
            job=flags["job"],
            hostfile=absolute(flags["hostfile"]) if flags["hostfile"] else None,
            image=flags["image"],
            direct=not target.scheduler.starts_tasks,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise EnvbuildError(
            "launch-parameter", f"{first['loc'][0]} {first['input']!r} is not possible", why=str(first["msg"])
        ) from error


def environment_of(stack: str, flags: dict[str, Any]) -> str:
    """The environment of a launch: the one that is named, else where the one in use lies under the prefix."""
    from envbuild.catalog.loader import load_target

    config = configured(flags)
    prefix = config.prefix or load_target(flags["target"] or config.target, template=True).target.prefix
    return absolute(flags.get("environment") or f"{_prefix(prefix)}/current/{stack}")


def provision_place(stack: str, flags: dict[str, Any]) -> str:
    """Stack, target and prefix as options of `provision`."""
    words = [stack, "--target", flags["target"] or configured(flags).target]
    return shlex.join([*words, *(["--prefix", flags["prefix"]] if flags["prefix"] else [])])


def profile_to_run(flags: dict[str, Any], verb: str, *, read: bool = False) -> str:
    """The profile of a run: asked for, else of the environment in use where that lies here, else as `provision` has it.

    Raises EnvbuildError `profile-cannot-run` (exit 7), unless logs are only `read`.
    """
    from envbuild.catalog.loader import load_stack, load_target
    from envbuild.lock.agreement import choose_profile, profile_in_use, refuse_unable

    config, loaded = configured(flags), load_stack(flags["stack"])
    target = load_target(flags["target"] or config.target, template=True).target
    asked = flags["profile"] or config.profile
    if not (asked or flags.get("image") or target.connection.kind == "ssh"):
        asked = profile_in_use(loaded.stack, environment_of(loaded.stack.name, flags))
    profile = choose_profile(loaded, asked, target).name
    if not read:
        refuse_unable(loaded.stack, profile, verb, provision_place(flags["stack"], flags))
    return profile


def place_here(stack: str, flags: dict[str, Any]) -> Place:
    """The same for one machine, this one."""
    others = ("nodes", "environment", "master", "port", "job", "hostfile", "image")
    return launch_place(stack, {**dict.fromkeys(others), **flags})


def absolute(path: str) -> str:
    """A path of this machine as a run takes it. Links stay: the environment in use is one."""
    return os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - resolve() would follow them


def _prefix(template: str) -> str:
    """The prefix as it is for whoever asks here; on other machines the user and the home may have other names."""
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    filled = template.replace("{home}", str(Path.home())).replace("{data}", data)
    return filled.replace("{user}", getpass.getuser()) if "{user}" in filled else filled


def _of_rank(made: Launch, rank: int | None) -> Launch:
    """Only the commands of one node; a command without a node of its own belongs to the first."""
    if rank is None:
        return made
    commands = tuple(command for command in made.commands if (command.node or 0) == rank)
    if not commands:
        raise EnvbuildError(
            "launch-parameter",
            f"node {rank} runs no command of its own",
            hint="one command of node 0 starts all nodes" if rank < made.nodes else f"nodes are 0 to {made.nodes - 1}",
        )
    return made.model_copy(update={"commands": commands})


def _parameters(ui: Ui, stack: Any) -> int:
    from envbuild.launch.recipes import RECIPES, launch_data

    _, data = launch_data(stack)
    rows = [
        {"name": field.alias or name, "default": data.defaults.get(field.alias or name), "what": field.description}
        for name, field in RECIPES[data.recipe].parameters.model_fields.items()
    ]
    width = max(len(str(row["name"])) for row in rows)

    def human() -> str:
        return "\n".join(
            f"{row['name']:{width}}  {row['what']}" + (f" (default: {row['default']})" if row["default"] else "")
            for row in rows
        )

    ui.result({"parameters": rows}, human)
    return 0
