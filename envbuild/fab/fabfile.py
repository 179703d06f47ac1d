"""Tasks for hand use: `fab -r "$(envbuild config show fabfile)" -H gpu01 facts`; all at once `facts -t ./lab.yaml`.

`-H` names hosts as everywhere in Fabric: each task runs for one after the other. With a target it chooses among its
hosts, without one they are reached over SSH as `ssh HOST` reaches them. Nodes are reached as envbuild does it, through
its own connections, so that host keys are always verified; fab's own connections and `-i` are not used.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabric.connection import Connection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from envbuild.text import plural

if TYPE_CHECKING:
    from envbuild.errors import EnvbuildError
    from envbuild.model.target import Target

_ENVIRONMENT = re.compile(r"/.*/envs/[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.DOTALL)
_HELP = {
    "target": "a shipped target or a file; ENVBUILD_TARGET without it",
    "limit": "only these hosts: gpu[01-04]",
    "exclude": "without these hosts",
}


@task(help={**_HELP, "to": "file for them (./facts.json)"})
def facts(context: Context, target: str = "", limit: str = "", exclude: str = "", to: str = "facts.json") -> None:
    """Read the facts of every node into a file: `envbuild doctor --facts-out`."""
    _verb(context, "doctor", target, limit, exclude, "", "--facts-out", to)


@task(help={**_HELP, "stack": "a shipped stack or a file; the target's without it", "dry-run": "print the plan alone"})
def provision(
    context: Context, target: str = "", limit: str = "", exclude: str = "", stack: str = "", dry_run: bool = False
) -> None:
    """Build, test and verify the environment of a stack: `envbuild provision`."""
    _verb(context, "provision", target, limit, exclude, stack, *(["--dry-run"] if dry_run else []))


@task(help={**_HELP, "stack": "a shipped stack or a file; the target's without it"})
def smoke(context: Context, target: str = "", limit: str = "", exclude: str = "", stack: str = "") -> None:
    """Run the smoke test in the environment in use: `envbuild smoke`."""
    _verb(context, "smoke", target, limit, exclude, stack)


@task(help={**_HELP, "run": "of this run; the newest without it", "lines": "how many lines of each node"})
def logs(
    context: Context, target: str = "", limit: str = "", exclude: str = "", run: str = "", lines: int = 40
) -> None:
    """Print the end of the log that a run left on every node."""
    args = {"lines": lines, **({"log_of": run} if run else {})}

    def show(node: str, result: dict[str, Any]) -> None:
        _say(f"== {node}: {result['file']}")
        for line in result["lines"]:
            _say(line)

    with _chosen(context, target, limit) as (target, limit):
        _end(_ask_all(_target(target, limit, exclude), "log", args, show))


@task(help={**_HELP, "keep": "what is younger, or was used since: 30d, 12h", "yes": "remove it; else only say what"})
def clean(
    context: Context, target: str = "", limit: str = "", exclude: str = "", keep: str = "30d", yes: bool = False
) -> None:
    """Remove what is old on every node: `envbuild store clean`."""
    _verb(context, "store clean", target, limit, exclude, "", "--keep", keep, *(["--yes"] if yes else []))


@task(name="pull-evidence", help={**_HELP, "to": "folder for it (./evidence)"})
def pull_evidence(context: Context, target: str = "", limit: str = "", exclude: str = "", to: str = "evidence") -> None:
    """Bring the stamp of every environment in use, and the hashes of its files, from every node."""
    with _chosen(context, target, limit) as (target, limit):
        place = _target(target, limit, exclude)
    wanted: dict[str, list[str]] = {}

    def keep(node: str, result: dict[str, Any]) -> None:
        for environment in result["environments"]:
            path = str(environment.get("path"))
            # The name becomes one of a file here, and a node may say anything.
            if environment.get("current") and environment.get("stamp") and _ENVIRONMENT.fullmatch(path):
                _write(Path(to) / node / f"{path.rsplit('/', 1)[-1]}.stamp.json", environment["stamp"])
                wanted.setdefault(path, []).append(node)

    codes = _ask_all(place, "verify", {"tell": "environments"}, keep)
    for path, nodes in wanted.items():
        name = path.rsplit("/", 1)[-1]

        def put(node: str, result: dict[str, Any], name: str = name) -> None:
            _write(Path(to) / node / f"{name}.files.json", result)

        prefix = path.rsplit("/", 2)[0]
        some = place.model_copy(update={"hosts": tuple(nodes), "prefix": prefix})
        codes += _ask_all(some, "verify", {"tell": "files", "environment": path}, put)
    count = sum(len(nodes) for nodes in wanted.values())
    _say(f"{plural(count, 'environment')} in use; their stamps are in {to}")
    _end(codes)


def _verb(context: Context, verb: str, target: str, limit: str, exclude: str, stack: str = "", *more: str) -> None:
    """One verb of envbuild; its exit code is fab's."""
    from envbuild.cli.entry import main

    with _chosen(context, target, limit) as (target, limit):
        options = {"--target": target, "--limit": limit, "--exclude": exclude}
        place = (word for name, value in options.items() if value for word in (name, value))
        code = main([*verb.split(), *filter(None, [stack]), *place, *more])
    if code:
        raise Exit(code=code)


@contextmanager
def _chosen(context: Context, target: str, limit: str) -> Iterator[tuple[str, str]]:
    """Target and limit of a task; the host of `-H` is one of the target's, or its own target where none is named.

    Exits with `fab-hosts-and-limit` (exit 2) where both choose.
    """
    from envbuild.config import load_config
    from envbuild.errors import EnvbuildError

    if not isinstance(context, Connection):
        yield target, limit
    elif limit:
        raise _ended(EnvbuildError(
            "fab-hosts-and-limit", f"-H {context.original_host} and --limit {limit} both choose hosts",
            hint="leave one of them out",
        ))  # fmt: skip
    elif target or load_config().settings["target"].origin != "default":
        yield target, context.original_host
    else:
        login = {"user": context.user, "port": context.port}  # of `-H`, else as ssh's configuration has it
        manifest = {"name": "fab", "extends": "ssh", "hosts": [context.original_host], "connection": login}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "fab.yaml"
            path.write_text(json.dumps(manifest), encoding="utf-8")
            yield str(path), ""


def _target(name: str, limit: str, exclude: str) -> Target:
    """The target with its hosts listed; where it is reached through jobs, the login host, which sees the prefix."""
    from envbuild.cli.choose import target_of
    from envbuild.cli.output import Ui
    from envbuild.errors import EnvbuildError
    from envbuild.model.target import as_login

    narrowed = {"limit": [limit] if limit else [], "exclude": [exclude] if exclude else []}
    try:
        return as_login(target_of(Ui(), {"target": name or None, **narrowed}, jobs=True))
    except EnvbuildError as error:
        raise _ended(error) from None


def _ask_all(target: Target, verb: str, args: dict[str, Any], use: Callable[[str, dict[str, Any]], None]) -> list[int]:
    """Ask all nodes at once, and use what they say in their order; the exit codes of what went wrong."""
    from envbuild.errors import EnvbuildError
    from envbuild.provision.contact.first_contact import DEADLINE, ask_each

    codes = []
    for node, answer in ask_each(verb, target, args, DEADLINE).items():
        if isinstance(answer, EnvbuildError):
            codes.append(int(answer.exit_code))
            _say(f"== {node}: {answer}" + (f"\n   why: {answer.why}" if answer.why else ""))
        else:
            use(node, answer)
    return codes


def _end(codes: list[int]) -> None:
    """End with the gravest code, where something went wrong."""
    from envbuild.errors import gravest

    if codes:
        raise Exit(code=int(gravest(codes)))


def _ended(error: EnvbuildError) -> Exit:
    lines = [str(error), *(f"{label}: {text}" for label, text in (("why", error.why), ("hint", error.hint)) if text)]
    return Exit("\n".join(lines), code=int(error.exit_code))


def _say(text: str) -> None:
    """One or several lines, redacted and harmless for a terminal."""
    from envbuild.node.redact import redact_text
    from envbuild.text import visible

    sys.stdout.write(visible(redact_text(text), keep_newlines=True) + "\n")


def _write(path: Path, data: Any) -> None:
    from envbuild.node import paths

    path.parent.mkdir(parents=True, exist_ok=True)
    paths.write_atomic(str(path), (json.dumps(data, indent=2) + "\n").encode())
