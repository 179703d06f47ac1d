"""`envbuild env`: the environments under a prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from envbuild.cli.choose import choice_of, configured, place_options
from envbuild.cli.output import Ui, common_options
from envbuild.errors import EnvbuildError, ExitCode

if TYPE_CHECKING:
    from envbuild.model.target import Target


@click.group("env")
def env() -> None:
    """Environments: list them, find one, switch, remove, activate."""


@env.command("list")
@place_options
@common_options
def list_(ui: Ui, /, **flags: Any) -> int:
    """List the environments on every node of a target."""
    from envbuild.errors import gravest

    found = _environments(flags)
    rows = [(node, item) for node, items in found.items() if not isinstance(items, EnvbuildError) for item in items]
    errors = {node: item for node, item in found.items() if isinstance(item, EnvbuildError)}

    def human() -> str:
        lines = [_line(node, item, many=len(found) > 1) for node, item in rows] or ["no environments"]
        return "\n".join(lines + [f"{node}: {error}" for node, error in errors.items()])

    ui.result(
        {
            "environments": [{"node": node, **item} for node, item in rows],
            "errors": {node: error.as_dict() for node, error in errors.items()},
        },
        human,
    )
    return gravest(int(error.exit_code) for error in errors.values())


def _line(node: str, item: dict[str, Any], *, many: bool) -> str:
    state = "half built" if not item.get("stamp") else "in use" if item.get("current") else "finished"
    root = (item.get("root") or "")[:12]
    return f"{node + '  ' if many else ''}{state:<11} {root:<13} {item['path']}"


@env.command("path")
@click.argument("name", required=False, metavar="[STACK]")
@place_options
@common_options
def path(ui: Ui, /, **flags: Any) -> int:
    """Print the folder of the environment in use for STACK on this machine."""
    item = _current(flags)
    ui.result({"path": item["path"], "environment": item}, lambda: str(item["path"]))
    return ExitCode.OK


@env.command("activate")
@click.argument("name", required=False, metavar="[STACK]")
@place_options
@common_options
def activate(ui: Ui, /, **flags: Any) -> int:
    """Print shell code that activates STACK in one shell: eval "$(envbuild env activate STACK)"."""
    import shlex

    item = _current(flags)
    code = f". {shlex.quote(item['path'] + '/.envbuild/activate.sh')}\n"
    ui.result({"path": item["path"], "shell": code}, lambda: code)
    return ExitCode.OK


@env.command("use")
@click.argument("environment")
@place_options
@common_options
def use(ui: Ui, /, environment: str, **flags: Any) -> int:
    """Make ENVIRONMENT (a path, a folder name or its beginning) the one in use."""
    item = _named(flags, environment)
    result = _change("use", flags, {"environment": item["path"], "stack": item["stack"]})
    ui.result(result, lambda: f"{result['current']} -> {item['path']}")
    return ExitCode.OK


@env.command("remove")
@click.argument("environment")
@click.option("--force", is_flag=True, help="Remove it although it is in use.")
@place_options
@common_options
def remove(ui: Ui, /, environment: str, force: bool, **flags: Any) -> int:
    """Remove ENVIRONMENT (a path, a folder name or its beginning) from this machine."""
    item = _named(flags, environment)
    result = _change("remove", flags, {"environment": item["path"], "force": force})
    ui.result(result, lambda: f"removed {result['removed']}")
    return ExitCode.OK


def _target(flags: dict[str, Any]) -> Target:
    from envbuild.catalog.loader import load_target, refuse_template
    from envbuild.provision.supported import refuse_unsupported
    from envbuild.schedule.run import as_login

    choice = choice_of(flags, configured(flags))
    overrides: dict[str, Any] = {"prefix": choice.prefix} if choice.prefix else {}
    if choice.hosts:
        overrides["hosts"] = list(choice.hosts)
    loaded = load_target(choice.target, overrides, template=True)
    refuse_unsupported(loaded.target, only_ask=True, jobs=loaded.target.placement == "shared")
    refuse_template(loaded)
    # What lies under a shared prefix can be seen without a job.
    return as_login(loaded.target)


def _environments(flags: dict[str, Any]) -> dict[str, list[dict[str, Any]] | EnvbuildError]:
    from envbuild.provision.inspect import environments

    return environments(_target(flags))


def _one_node(flags: dict[str, Any]) -> list[dict[str, Any]]:
    """The environments of a target with one node; paths of several would not be one answer."""
    found = _environments(flags)
    if len(found) != 1:
        raise EnvbuildError(
            "several-nodes", f"the target has {len(found)} nodes", hint="name one of them with `--host NODE`"
        )
    items = next(iter(found.values()))
    if isinstance(items, EnvbuildError):
        raise items
    return items


def _current(flags: dict[str, Any]) -> dict[str, Any]:
    stack = flags.get("name") or flags.get("stack") or _target(flags).stack
    name = _stack_name(stack) if stack else None
    for item in _one_node(flags):
        if item.get("current") and item.get("stack") == name:
            return item
    raise EnvbuildError(
        "environment-unknown",
        f"no environment of {name} is in use",
        hint=f"build it: envbuild provision --stack {stack}; `envbuild env list` shows those that are there",
        exit_code=ExitCode.CHECK_FAILED,
    )


def _stack_name(reference: str) -> str:
    """The name behind `--stack`: itself, or the one in the file."""
    from envbuild.catalog.loader import is_path, load_stack

    return load_stack(reference).stack.name if is_path(reference) else reference


def _named(flags: dict[str, Any], name: str) -> dict[str, Any]:
    import difflib
    from pathlib import PurePosixPath

    items = _one_node(flags)
    folder = PurePosixPath(name).name if "/" in name else name
    exact = [item for item in items if name == item["path"]]
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


def _change(verb: str, flags: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    from envbuild.provision.contact import node_request, run_node
    from envbuild.provision.inventory import expand_hosts

    target = _target(flags)
    node = expand_hosts(target.hosts)[0]
    wait = configured(flags).wait
    sent = node_request(verb, target.prefix, {**args, "wait": wait}, f"env-{verb}")
    return run_node(node, sent, target.connection, 3600.0).result()
