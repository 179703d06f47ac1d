"""`envbuild env` and `envbuild status`: the environments under a prefix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import names
from envbuild.cli.choose import configured, installer_option, nodes_of_target, options, stack_argument, target_of
from envbuild.cli.output import Ui, columns, common_options, failures
from envbuild.cli.verbs import Group
from envbuild.errors import EnvbuildError, ExitCode, as_dicts, gravest, sort_out

if TYPE_CHECKING:
    from envbuild.model.target import Target


_TARGET = "envbuild.target"
# Which environments are meant, and how the answer is given.
_nodes = options(installer_option, nodes_of_target, common_options)
_in_use = options(stack_argument(complete=names.used), _nodes)


@click.command("status")
@_in_use
def status(ui: Ui, /, stack: str | None, **flags: Any) -> int:
    """List the environment in use on every node of a target, from its stamp; of STACK alone where it is named.

    Only processes of yours are seen, unless envbuild runs there as root. Exit 1 where a node has none in use.
    """
    from envbuild.hostlist import fold_hosts

    name = _stack_name(stack) if stack else None
    good, errors = sort_out(_environments(ui, flags, detailed=True))
    used = {
        node: [item for item in items if item.get("current") and name in (None, item["stack"])]
        for node, items in good.items()
    }
    lacking = [node for node, items in used.items() if not items]
    code = ExitCode.CHECK_FAILED if lacking else ExitCode.OK
    none = f"no environment{f' of {name}' if name else ''} is in use"
    _show(ui, used, errors, none if lacking == list(good) else f"{none} on {fold_hosts(lacking)}" if lacking else "")
    return gravest([ui.exit_of(errors), code])


@click.group("env", cls=Group)
def env() -> None:
    """Environments: use them in a shell, switch, remove."""


@env.command("list")
@_nodes
def list_(ui: Ui, /, **flags: Any) -> int:
    """List the environments on every node, in use or not.

    With size, dates, and how many processes run from each. Only processes of yours are seen, unless envbuild runs there
    as root.
    """
    good, errors = sort_out(_environments(ui, flags, detailed=True))
    _show(ui, good, errors, "" if any(good.values()) else "no environments")
    return ui.exit_of(errors)


def _show(ui: Ui, good: dict[str, list[dict[str, Any]]], errors: dict[str, EnvbuildError], lacking: str) -> None:
    """The table of environments; `lacking`: what is not there."""
    rows = [(node, item) for node, items in good.items() for item in items]
    if good and not rows:
        ui.note("hint: `envbuild provision STACK` builds one; --target and --prefix say where to look")

    def human() -> str:
        table = [_table(rows, many=len(good) + len(errors) > 1)] if rows else []
        return "\n".join([*table, *([lacking] if good and lacking else []), *_outputs(rows), *failures(errors)])

    ui.result({"environments": [{"node": node, **item} for node, item in rows], "errors": as_dicts(errors)}, human)


def _outputs(rows: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Where the folders lie that runs write outside of their environments; no verb deletes them."""
    found = {
        f"outputs of {item['stack']}: {Path(item['path']).parent.parent / 'outputs' / item['stack'] / source['name']}"
        for _, item in rows
        for source in (item.get("stamp") or {}).get("sources", ())
        if source.get("outputs")
    }
    return sorted(found)


def _table(rows: list[tuple[str, dict[str, Any]]], *, many: bool) -> str:
    """One line an environment; with the node where there are several."""
    from envbuild.provision.survey.in_use import made_by
    from envbuild.text import size

    lines = [("NODE", "STACK", "STATE", "USED BY", "ENGINE", "ROOT", "SIZE", "STAMPED", "VERIFIED", "PATH")]
    for node, item in rows:
        stamp = item.get("stamp") or {}
        state = "half built" if not stamp else "in use" if item.get("current") else "finished"
        taken = size(stamp["bytes"]) if "bytes" in stamp else ""
        count = len(item.get("processes") or ())
        used = f"{count} process{'es' * (count != 1)}" if count else ""
        days = [str(when or "")[:10] for when in (stamp.get("stamped_at"), item.get("read"))]
        days[1] = f"{item['differed']} differed" if item.get("differed") else days[1]
        engine = made_by(item) if stamp else ""
        lines.append(
            (
                node,
                item.get("stack") or "",
                state,
                used,
                engine,
                (item.get("root") or "")[:12],
                taken,
                *days,
                item["path"],
            )
        )
    return columns(lines if many else [line[1:] for line in lines])


@env.command("activate")
@click.option("--shell", type=click.Choice(["sh", "fish", "csh"]), help="For this shell; else for the one that calls.")
@_in_use
def activate(ui: Ui, /, shell: str | None, **flags: Any) -> None:
    """Print shell code that activates the environment of STACK.

    To use it: eval "$(envbuild env activate STACK)". In fish: envbuild env activate STACK | source. In csh:
    eval `envbuild env activate STACK`. It is the environment in use; with --engine the one that this engine made, in
    use or not.
    """
    from envbuild.cli.env_shell import calling_shell, code_for

    item = _current(ui, flags)
    code = code_for(item["path"], shell or calling_shell())
    ui.result({"path": item["path"], "shell": code}, lambda: code, verbatim=True)


@env.command("run", context_settings={"allow_interspersed_args": False})
@click.argument("stack", metavar="STACK", shell_complete=names.used)
@click.argument("command", nargs=-1, metavar="[COMMAND]...", type=click.UNPROCESSED)
@_nodes
def run(ui: Ui, /, command: tuple[str, ...], **flags: Any) -> None:
    """Run COMMAND in the environment of STACK, or a shell.

    For example: envbuild env run STACK -- python train.py. The exit code of COMMAND is the answer; without it a shell
    is opened, until `exit`. Options of envbuild stand before STACK.
    """
    from envbuild.cli.env_shell import become

    words = command[command[:1] == ("--",) :]
    if not words:
        return _shell(ui, flags)
    become(_current(ui, flags)["path"], words)


@env.command("shell", hidden=True)
@_in_use
def shell(ui: Ui, /, **flags: Any) -> None:
    """Open a shell in the environment of STACK, as `env run STACK` does."""
    _shell(ui, flags)


def _shell(ui: Ui, flags: dict[str, Any]) -> None:
    from envbuild.cli.env_shell import open_shell

    item = _current(ui, flags)
    ui.note(f"{item['stack']} is loaded in this shell; `exit` leaves it")
    open_shell(item["path"])


@env.command("kernel")
@_in_use
def kernel(ui: Ui, /, **flags: Any) -> None:
    """Register the environment of STACK with your Jupyter.

    Its own ipykernel does that. The kernel is that of the environment in use, also after another one has become that.
    """
    from envbuild.cli.env_shell import add_kernel

    item = _current(ui, flags)
    prefix = item["path"].rsplit("/", 2)[0]
    place = f"{prefix}/current/{item['stack']}" if item["current"] else item["path"]
    folder = add_kernel(f"{place}/bin/python", place, item["stack"])
    ui.result({"path": item["path"], "kernel": str(folder)}, lambda: f"kernel envbuild-{item['stack']} in {folder}")


@env.command("use")
@click.argument("environment", shell_complete=names.environments)
@_nodes
def use(ui: Ui, /, environment: str, **flags: Any) -> None:
    """Make ENVIRONMENT the one in use.

    It is a path, the name of a folder, or its beginning.
    """
    item = _named(ui, flags, environment)
    result = _changed(ui, "use", flags, {"environment": item["path"], "stack": item["stack"]})
    ui.result(result, lambda: f"{result['current']} -> {item['path']}")


@env.command("remove")
@click.argument("environment", shell_complete=names.environments)
@click.option("--force", is_flag=True, help="Remove it although it is in use.")
@_nodes
def remove(ui: Ui, /, environment: str, force: bool, **flags: Any) -> None:
    """Remove ENVIRONMENT.

    It is a path, the name of a folder, or its beginning. Files in it that envbuild did not make are moved to
    PREFIX/kept. An environment that a process runs from stays. Only processes of yours are seen, unless envbuild runs
    as root.
    """
    item = _named(ui, flags, environment)
    result = _changed(ui, "remove", flags, {"environment": item["path"], "force": force})
    ui.result(result, lambda: "\n".join([f"removed {result['removed']}", *result["notes"]]))


def _target(ui: Ui, flags: dict[str, Any]) -> Target:
    from envbuild.schedule.runner import as_login

    # Once a command: a program that lists hosts may list others the next time.
    kept = click.get_current_context().meta
    if _TARGET not in kept:
        target = target_of(ui, flags, jobs=lambda target: target.placement == "shared")
        # What lies under a shared prefix can be seen without a job.
        kept[_TARGET] = as_login(target)
    found: Target = kept[_TARGET]
    return found


def _environments(
    ui: Ui, flags: dict[str, Any], *, detailed: bool = False
) -> dict[str, list[dict[str, Any]] | EnvbuildError]:
    from envbuild.provision.environments import environments
    from envbuild.provision.survey.in_use import made_by

    found, engine = environments(_target(ui, flags), detailed=detailed), flags.get("engine")
    if engine is None:
        return found
    return {
        node: items
        if isinstance(items, EnvbuildError)
        else [item for item in items if item.get("stamp") and made_by(item) == engine]
        for node, items in found.items()
    }


def _one_node(ui: Ui, flags: dict[str, Any]) -> list[dict[str, Any]]:
    """The environments of a target with one node; paths of several would not be one answer."""
    good, errors = sort_out(_environments(ui, flags))
    count = len(good) + len(errors)
    if count != 1:
        raise EnvbuildError(
            "several-nodes", f"the target has {count} nodes", hint="name one of them with `--limit NODE`"
        )
    for error in errors.values():
        raise error
    return next(iter(good.values()))


def _current(ui: Ui, flags: dict[str, Any]) -> dict[str, Any]:
    from envbuild.provision.survey.in_use import of_stack

    stack, engine = flags.get("stack") or _target(ui, flags).stack, flags.get("engine")
    name = _stack_name(stack) if stack else None
    item = of_stack(_one_node(ui, flags), name, engine)
    if item is not None:
        return item
    raise EnvbuildError(
        "environment-unknown",
        f"no environment of {name} is {f'of the engine {engine}' if engine else 'in use'}",
        hint=f"build it: envbuild provision {_reference(str(stack))}{f' --engine {engine}' if engine else ''}; "
        "`envbuild env list` shows those that are there",
        exit_code=ExitCode.CHECK_FAILED,
    )


def _reference(stack: str) -> str:
    """What names this stack for a command: one that is not shipped has a file, most likely of its name."""
    from envbuild.catalog.loader import is_path, list_stacks

    return stack if is_path(stack) or stack in list_stacks() else f"./{stack}.yaml"


def _stack_name(reference: str) -> str:
    """The name behind STACK: itself, or the one in the file."""
    from envbuild.catalog.loader import is_path, load_stack

    return load_stack(reference).stack.name if is_path(reference) else reference


def _named(ui: Ui, flags: dict[str, Any], name: str) -> dict[str, Any]:
    import difflib
    from pathlib import PurePosixPath

    items = _one_node(ui, flags)
    folder = PurePosixPath(name).name if "/" in name else name
    # The name of a first generation is the beginning of those of the others.
    exact = [item for item in items if name == item["path"] or name == PurePosixPath(item["path"]).name]
    matches = exact or [item for item in items if PurePosixPath(item["path"]).name.startswith(folder)]
    if len(matches) == 1:
        return matches[0]
    names = [PurePosixPath(item["path"]).name for item in items]
    near = difflib.get_close_matches(folder, names, n=1, cutoff=0.4)
    raise EnvbuildError(
        "environment-ambiguous" if matches else "environment-unknown",
        f"{len(matches)} environments begin with {name!r}" if matches else f"there is no environment {name!r}",
        hint=f"did you mean {near[0]}?" if near else "`envbuild env list` shows those that are there",
    )


def _changed(ui: Ui, verb: str, flags: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    """Ask the only node to change something."""
    from envbuild.hostlist import expand_hosts

    target = _target(ui, flags)
    return change(target, verb, args, expand_hosts(target.hosts)[0], wait=configured(flags).wait)


def change(target: Target, verb: str, args: dict[str, Any], node: str, *, wait: float) -> dict[str, Any]:
    """Ask a node to change something; `wait` so many seconds for another envbuild there. Raises EnvbuildError."""
    from uuid import uuid4

    from envbuild.provision.contact.first_contact import node_request, run_node

    # A run gets its own lease again, so each command is a run.
    sent = node_request(verb, target.prefix, {**args, "wait": wait}, f"env-{verb}-{uuid4().hex[:12]}")
    return run_node(node, sent, target.connection, 3600.0).result()
