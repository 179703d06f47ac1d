"""`envbuild status` and `envbuild env`: the environments under a prefix; a command, a shell, a kernel in one."""

from __future__ import annotations

import difflib
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import uuid4

import click

from envbuild.cli import choose, names
from envbuild.cli.output import Ui, columns, common_options, failures
from envbuild.cli.verbs import Group
from envbuild.errors import EnvbuildError, ExitCode, as_dicts, gravest, sort_out
from envbuild.node import paths
from envbuild.text import few, size

if TYPE_CHECKING:
    from envbuild.model.target import Target

# Which environments are meant, and how the answer is given.
_nodes = choose.options(choose.installer_option, choose.nodes_of_target, common_options)
_in_use = choose.options(choose.stack_argument(complete=names.used), _nodes)


@click.command("status")
@click.option("-a", "--all", "every", is_flag=True, help="Also list environments that are not in use.")
@_in_use
def status(ui: Ui, /, stack: str | None, every: bool, **flags: Any) -> int:
    """List the environment in use on every node of a target, from its stamp; with STACK, only its own.

    Shows size, dates and the number of processes that run from it. envbuild sees only your processes, unless it runs
    there as root. Without --all, exit 1 if a node has no environment in use.
    """
    from envbuild.hostlist import fold_hosts

    name = _stack_name(stack) if stack else None
    good, errors = sort_out(_environments(choose.prefix_target(ui, flags), flags["engine"], detailed=True))
    shown = {
        node: [item for item in items if (every or item.get("current")) and name in (None, item["stack"])]
        for node, items in good.items()
    }
    rows = [(node, item) for node, items in shown.items() for item in items]
    lacking = [node for node, items in shown.items() if not items]
    whose = f" of {name}" if name else ""
    where = "" if lacking in ([], list(good)) else f" on {fold_hosts(lacking)}"
    none = f"no environments{whose}" if every else f"no environment{whose} is in use{where}"
    if good and not rows:
        ui.note("hint: `envbuild provision STACK` builds one; --target and --prefix say where to look")

    def human() -> str:
        table = [_table(rows, many=len(good) + len(errors) > 1)] if rows else []
        notes = [none] if lacking and not (every and rows) else []
        return "\n".join([*table, *notes, *_tested(rows), *_outputs(rows), *failures(errors)])

    ui.result({"environments": [{"node": node, **item} for node, item in rows], "errors": as_dicts(errors)}, human)
    return gravest([ui.exit_of(errors), ExitCode.CHECK_FAILED if lacking and not every else ExitCode.OK])


@click.group("env", cls=Group)
def env() -> None:
    """Environments: use them in a shell, switch, remove."""


def _tested(rows: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """What the last smoke test of each stack missed, which code was changed after it, and what failed."""
    texts = dict[str, None]()
    for _, item in rows:
        tested, stack = item.get("tested") or {}, item["stack"]
        if names := sorted(tested.get("open") or {}):
            texts[f"! {stack}: its code imports {few(names)}, and no package provides that"] = None
        for name, files in (tested.get("changed") or {}).items():
            texts[f"! {stack}: {few(files)} of the source {name} changed after the smoke test of {tested['good']}"] = (
                None
            )
        for name, (at, says) in sorted((tested.get("failed") or {}).items()):
            texts[f"! {stack}: {name} failed in the smoke test of {at}: {says}"] = None
    return list(texts)


def _outputs(rows: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Where the folders lie that runs write outside of their environments; no verb deletes them."""
    texts = {
        f"outputs of {item['stack']}: {Path(item['path']).parent.parent / 'outputs' / item['stack'] / source['name']}"
        for _, item in rows
        for source in (item.get("stamp") or {}).get("sources", ())
        if source.get("outputs")
    }
    return sorted(texts)


def _table(rows: list[tuple[str, dict[str, Any]]], *, many: bool) -> str:
    """One line an environment; with the node where there are several."""
    from envbuild.provision.survey.ask import made_by

    lines = [("NODE", "STACK", "STATE", "USED BY", "ENGINE", "ROOT", "SIZE", "STAMPED", "VERIFIED", "PATH")]
    for node, item in rows:
        stamp = item.get("stamp") or {}
        state = "half built" if not stamp else "in use" if item.get("current") else "finished"
        taken = size(stamp["bytes"]) if "bytes" in stamp else ""
        count = len(item.get("processes") or ())
        used = f"{count} process{'es' * (count != 1)}" if count else ""
        days = [str(when or "")[:10] for when in (stamp.get("stamped_at"), item.get("read"))]
        days[1] = f"{item['differed']} differed" if item.get("differed") else days[1]
        engine, root = made_by(item) if stamp else "", (item.get("root") or "")[:12]
        lines.append((node, item.get("stack") or "", state, used, engine, root, taken, *days, item["path"]))
    return columns(lines if many else [line[1:] for line in lines])


@env.command("activate")
@_in_use
def activate(ui: Ui, /, **flags: Any) -> None:
    """Print shell code that activates the environment of STACK.

    To use it in sh, bash and zsh: eval "$(envbuild env activate STACK)". In fish and csh, `envbuild env run STACK`
    opens your shell in the environment. Activates the environment in use; with --engine, the one that this engine
    made, in use or not.
    """
    item = _current(ui, flags)
    code = f". {shlex.quote(paths.meta(item['path'], 'activate.sh'))}\n"
    ui.result({"path": item["path"], "shell": code}, lambda: code, verbatim=True)


@env.command("run", context_settings={"allow_interspersed_args": False})
@click.argument("stack", metavar="STACK", shell_complete=names.used)
@click.argument("command", nargs=-1, metavar="[COMMAND]...", type=click.UNPROCESSED)
@click.option("--failed", is_flag=True, help="Use the newest environment whose build or test failed, as it was left.")
@_nodes
def run(ui: Ui, /, command: tuple[str, ...], *, failed: bool, **flags: Any) -> None:
    """Run COMMAND in the environment of STACK, or a shell.

    For example: envbuild env run STACK -- python train.py. Exits with the exit code of COMMAND. Without COMMAND, a
    shell is opened, until `exit`. Options of envbuild stand before STACK.
    """
    words = command[command[:1] == ("--",) :]
    if failed:
        place = _failed(ui, flags)
        ui.note(f"{place} is half built: its programs come first on PATH, and variables of the stack are not set")
        os.environ.update(VIRTUAL_ENV=place, PYTHONNOUSERSITE="1", PATH=paths.search_path(place, os.environ["PATH"]))
        _replace(list(words) or [os.environ.get("SHELL") or "/bin/sh"])
    item = _current(ui, flags)
    if words:
        become(item["path"], words)
    ui.note(f"{item['stack']} is loaded in this shell; `exit` leaves it")
    open_shell(item["path"])


@env.command("kernel")
@_in_use
def kernel(ui: Ui, /, **flags: Any) -> None:
    """Register the environment of STACK with your Jupyter.

    The environment's own ipykernel registers it. The kernel always uses the environment in use, also after a switch.
    """
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
    target = choose.prefix_target(ui, flags)
    item = _named(target, flags["engine"], environment)
    result = _changed(target, "use", flags, {"environment": item["path"], "stack": item["stack"]})
    ui.result(result, lambda: f"{result['current']} -> {item['path']}")


@env.command("remove")
@click.argument("environment", shell_complete=names.environments)
@click.option("--force", is_flag=True, help="Remove it even if it is in use.")
@click.option("--yes", is_flag=True, help="Remove it; without --yes nothing changes.")
@_nodes
def remove(ui: Ui, /, environment: str, *, force: bool, yes: bool, **flags: Any) -> None:
    """Remove ENVIRONMENT; only with --yes.

    It is a path, the name of a folder, or its beginning. Files in it that envbuild did not make are moved to
    PREFIX/kept. An environment that a process runs from stays. envbuild sees only your processes, unless it runs
    there as root.
    """
    target = choose.prefix_target(ui, flags)
    item = _named(target, flags["engine"], environment)
    if not yes:
        data = {"environment": item["path"], "removed": None, "notes": []}
        used = item.get("current") and not force
        how = "it is in use, so `--force --yes` does it" if used else "`--yes` does it"
        return ui.result(data, lambda: f"would remove {item['path']}; {how}")
    result = _changed(target, "remove", flags, {"environment": item["path"], "force": force})
    ui.result(result, lambda: "\n".join([f"removed {result['removed']}", *result["notes"]]))


def _environments(
    target: Target, engine: str | None, *, detailed: bool = False
) -> dict[str, list[dict[str, Any]] | EnvbuildError]:
    """What each node has; with an engine only what that one made."""
    from envbuild.provision.environments import environments
    from envbuild.provision.survey.ask import made_by

    answers = environments(target, detailed=detailed)
    if engine is None:
        return answers
    return {
        node: items
        if isinstance(items, EnvbuildError)
        else [item for item in items if item.get("stamp") and made_by(item) == engine]
        for node, items in answers.items()
    }


def _one_node(target: Target, engine: str | None) -> list[dict[str, Any]]:
    """The environments of a target with one node; paths of several would not be one answer."""
    answers = _environments(target, engine)
    if len(answers) != 1:
        raise EnvbuildError(
            "several-nodes", f"the target has {len(answers)} nodes", hint="name one of them with `--limit NODE`"
        )
    (answer,) = answers.values()
    if isinstance(answer, EnvbuildError):
        raise answer
    return answer


def _current(ui: Ui, flags: dict[str, Any]) -> dict[str, Any]:
    """The environment in use of STACK, else of the target's stack; of an engine the last that it finished."""
    from envbuild.catalog.loader import is_path, list_stacks
    from envbuild.provision.survey.ask import of_stack

    target, engine = choose.prefix_target(ui, flags), flags["engine"]
    stack = flags["stack"] or choose.usual_stack(flags["target"], choose.configured(flags))
    name = _stack_name(stack) if stack else None
    items = _one_node(target, engine)
    item = of_stack(items, name, engine)
    if item is not None:
        return item
    reference = choose.own_file(stack or "")
    if stack and reference == stack and not is_path(stack) and stack not in list_stacks():
        reference = "FILE"  # whose name need not be that of its stack
    given = [f"--{option} {flags[option]}" for option in ("target", "engine") if flags[option]]
    used = sorted({str(item["stack"]) for item in items if item.get("current")})
    raise EnvbuildError(
        "environment-unknown",
        f"no environment of {name} is {f'of the engine {engine}' if engine else 'in use'}",
        why=f"in use: {', '.join(used)}" if used else "",
        hint=" ".join(filter(None, ("build it: envbuild provision", reference, *given)))
        + "; `envbuild status --all` lists all environments",
        exit_code=ExitCode.CHECK_FAILED,
    )


def _failed(ui: Ui, flags: dict[str, Any]) -> str:
    """The newest half-built environment of STACK on this machine."""
    target, name = choose.prefix_target(ui, flags), _stack_name(flags["stack"])
    half = [Path(item["path"]) for item in _one_node(target, None) if not item.get("stamp")]
    failed = [path for path in half if path.name.startswith(f"{name}-") and (path / "bin").is_dir()]
    if not failed:
        raise EnvbuildError(
            "environment-unknown",
            f"no failed build of {name} is left here",
            hint="`envbuild status --all` lists all environments",
            exit_code=ExitCode.CHECK_FAILED,
        )
    return str(max(failed, key=lambda path: path.stat().st_mtime))


def _stack_name(reference: str) -> str:
    """The name behind STACK: itself, or the one in the file."""
    from envbuild.catalog.loader import is_path, load_stack

    return load_stack(reference).stack.name if is_path(reference) else reference


def _named(target: Target, engine: str | None, name: str) -> dict[str, Any]:
    items = _one_node(target, engine)
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
        hint=f"did you mean {near[0]}?" if near else "`envbuild status --all` lists all environments",
    )


def _changed(target: Target, verb: str, flags: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    """Ask the only node to change something."""
    from envbuild.hostlist import expand_hosts

    return change(target, verb, args, expand_hosts(target.hosts)[0], wait=choose.configured(flags).wait)


def change(target: Target, verb: str, args: dict[str, Any], node: str, *, wait: float) -> dict[str, Any]:
    """Ask a node to change something; `wait` so many seconds for another envbuild there. Raises EnvbuildError."""
    from envbuild.provision.contact.first_contact import node_request, run_node

    # A run gets its own lease again, so each command is a run.
    sent = node_request(verb, target.prefix, {**args, "wait": wait}, f"env-{verb}-{uuid4().hex[:12]}")
    return run_node(node, sent, target.connection, 3600.0).result()


def become(environment: str, command: Sequence[str]) -> NoReturn:
    """Run `command` in the environment in place of this process: signals and the exit code are its own.

    Raises EnvbuildError `environment-unknown` (exit 1) where the environment is not on this machine.
    """
    code = f'. {shlex.quote(_file(environment, "activate.sh"))} && exec "$@"'
    _replace(["bash" if Path("/bin/bash").exists() else "sh", "-c", code, "envbuild", *command])


def open_shell(environment: str) -> NoReturn:
    """Become the user's shell with the environment loaded after its own start-up files. Raises as `become`.

    A shell other than bash starts with the variables, and its start-up files may change them.
    """
    shell = os.environ.get("SHELL") or "/bin/sh"
    if Path(shell).name != "bash":
        become(environment, [shell])
    start = f"[ ! -r ~/.bashrc ] || . ~/.bashrc\n. {shlex.quote(_file(environment, 'activate.sh'))}\n"
    # A file without a name, which ends with the shell that reads it.
    held = os.memfd_create("envbuild", 0)
    os.write(held, start.encode())
    _replace([shell, "--rcfile", f"/proc/self/fd/{held}", "-i"])


def add_kernel(python: str, environment: str, stack: str) -> Path:
    """Register the environment with Jupyter by its own ipykernel; the folder of the kernel, which is this user's.

    `python` is the interpreter as the kernel shall call it. Raises EnvbuildError `kernel-missing` (exit 1) without
    ipykernel, `kernel-not-written` (exit 7), and as `become`.
    """
    file = _file(environment, "variables.json")
    variables = paths.read_json(file)
    if variables is None:
        raise EnvbuildError(
            "variables-unreadable",
            f"{file} cannot be read",
            hint=f"`envbuild env use {Path(environment).resolve().name}` writes it again",
            exit_code=ExitCode.CHECK_FAILED,
        )
    environ = {
        "VIRTUAL_ENV": environment,
        "ENVBUILD_ENV": environment,
        "ENVBUILD_STACK": stack,
        "PYTHONNOUSERSITE": "1",
    }
    for name, value in variables.items():
        path = value["path"] if isinstance(value, dict) else None
        if path is None or os.path.exists(path):  # noqa: PTH110 - a path of the stack's, as the shells ask for it
            environ[name] = path or value
    # Jupyter fills in ${PATH} when it starts the kernel.
    environ["PATH"] = paths.search_path(environment, "${PATH}")
    words = [part for item in environ.items() for part in ("--env", *item)]
    title = f"{stack} (envbuild)"
    argv = [python, "-m", "ipykernel", "install", "--user", "--name", f"envbuild-{stack}", "--display-name", title]
    env = {**os.environ, "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*argv, *words], env=env, capture_output=True, text=True, check=False)
    if "No module named ipykernel" in done.stderr:
        raise EnvbuildError(
            "kernel-missing",
            f"the environment of {stack} has no ipykernel",
            hint="list `ipykernel` under `packages` of the stack, then `envbuild lock create` and `envbuild provision`",
        )
    folder = done.stdout.strip().rpartition(" in ")[2]
    if done.returncode or not folder:
        why = done.stderr.strip()[-500:]
        raise EnvbuildError("kernel-not-written", "ipykernel did not register the environment", why=why)
    return Path(folder)


def _file(environment: str, name: str) -> str:
    """A file that `activate` or `use` has written. Raises EnvbuildError `environment-unknown` (exit 1)."""
    path = Path(environment) / ".envbuild" / name
    if path.is_file():
        return str(path)
    raise EnvbuildError(
        "environment-unknown",
        f"there is no {path} on this machine",
        hint=f"`envbuild env use {Path(environment).name}` writes its script; an environment of another machine "
        "is used there",
        exit_code=ExitCode.CHECK_FAILED,
    )


def _replace(argv: Sequence[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(argv[0], [*argv])  # noqa: S606 - no shell but the one that is meant
