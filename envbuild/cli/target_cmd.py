"""`envbuild target` and `envbuild init`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import begin, names
from envbuild.cli.choose import facts_option
from envbuild.cli.output import Ui, common_options, each_checked, named
from envbuild.cli.verbs import Group
from envbuild.errors import EnvbuildError

if TYPE_CHECKING:
    from envbuild.catalog.target_file import Answers
    from envbuild.model.target import Target

_HOSTS = {"ssh": "Its hosts, as gpu[01-04]", "slurm": "Its partition", "pbs": "Its queue"}


@click.group("target", cls=Group)
def target() -> None:
    """Targets: where environments are built."""


@target.command("list")
@common_options
def list_command(ui: Ui) -> None:
    """List the shipped targets."""
    from envbuild.catalog.loader import is_template, list_targets, load_target

    rows = []
    for name in list_targets():
        shipped = load_target(name, template=True).target
        rows.append({"name": name, "summary": shipped.summary, "template": is_template(shipped)})
    ui.result({"targets": rows}, lambda: named([(str(row["name"]), [str(row["summary"])]) for row in rows]))


@target.command("check")
@click.argument("targets", nargs=-1, required=True, shell_complete=names.targets)
@common_options
def check(ui: Ui, targets: tuple[str, ...]) -> int:
    """Check each of TARGETS: names or files.

    The exit code is that of the first that is refused. A stack that the target names is looked up too; no host is
    asked. A template is good as far as it goes.
    """
    return each_checked(ui, "target", targets, lambda reference: _valid(reference).name)


def _valid(reference: str) -> Target:
    """A target or template whose stack and profile are there."""
    from envbuild.catalog.loader import load_stack, load_target, pick_profile, stack_of

    found = load_target(reference, template=True)
    stack = stack_of(found)
    if stack is not None:
        pick_profile(load_stack(stack), found.target.profile)
    return found.target


@target.command("show")
@click.argument("target", required=False, shell_complete=names.targets)
@common_options
def show(ui: Ui, target: str | None) -> None:
    """Show TARGET, a name or a file, after its `extends:`.

    Without TARGET, the configured one.
    """
    from envbuild.catalog.loader import is_template, load_target
    from envbuild.config import load_config
    from envbuild.redact import redact_data

    loaded = load_target(target or load_config().target, template=True)
    data = loaded.target.to_json_dict()
    template = is_template(loaded.target)
    files = [str(path) for path in loaded.files]
    if template:
        ui.note("this is a template: extend it and say what stands in <angle brackets>")
    result = {"path": str(loaded.path), "files": files, "shipped": loaded.shipped, "template": template, "target": data}
    ui.result(result, lambda: "".join([*(f"# from {path}\n" for path in files), _text(redact_data(data))]))


@click.command("init")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@facts_option
@common_options
def init(ui: Ui, file: Path, facts: str | None) -> None:
    """Write a first target file FILE, with comments.

    From eight answers at most, or from recorded facts of its nodes. A file that is there is never replaced.
    """
    from envbuild.catalog import target_file
    from envbuild.catalog.loader import is_template
    from envbuild.catalog.node_facts import load_facts

    if file.suffix not in (".yaml", ".yml"):
        raise click.UsageError(f"a target file ends in .yaml: {file}.yaml")
    if file.exists():
        raise _unwritable(file, "a file of that name is there", "name another file, or remove this one first")
    answers = target_file.of_facts(load_facts(facts)) if facts else _asked()
    text = target_file.text(re.sub(r"[^a-z0-9._-]+", "-", file.stem.lower()).strip("-.") or "mine", answers)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise _unwritable(file, error.strerror or str(error), "name a file in a folder that you can write") from None
    try:
        made = _valid(str(file))
    except EnvbuildError:
        file.unlink()
        raise
    if is_template(made):
        ui.note(f"still a template: add to it what `envbuild target show {file}` has in <angle brackets>")
    said = f"wrote {file}\nnext: envbuild doctor --target {file}"
    ui.result({"path": str(file), "target": made.to_json_dict()}, lambda: said)


def _unwritable(file: Path, why: str, hint: str) -> EnvbuildError:
    return EnvbuildError("output-unwritable", f"{file} was not written", why=why, hint=hint)


def _asked() -> Answers:
    """Answers at the terminal, or one a line on standard input; an empty line takes what stands in brackets."""
    from envbuild.catalog.target_file import KINDS, Answers

    def ask(text: str, default: Any = "", kind: Any = str) -> Any:
        return click.prompt(text, default=default, type=kind, err=True, show_default=default != "")

    try:
        kind = ask("How are its nodes reached", begin.scheduler_here().lower() or "ssh", click.Choice(KINDS))
        stack = ask("Which stack is built there", "torch-smoke")
        hosts = ask(_HOSTS[kind]) if kind != "local" else ""
        job = kind not in ("local", "ssh")
        login = ask("Host to submit jobs from (empty: this machine)") if job else ""
        user = ask("Login name there (empty: as ssh says)") if kind == "ssh" or login else ""
        account = ask("Account that jobs are charged to (empty: none)") if job else ""
        prefix = ask("Folder for environments", "{home}/envbuild" if job else "{data}/envbuild")
        gpu = ask("GPU model, as nvidia-smi has it (empty: any)")
        count = ask("GPUs of a node", 1, click.IntRange(0, 64)) if gpu else 0
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("the answers on standard input ended; `--facts` asks nothing") from None
    return Answers(kind, stack, hosts, user, login, account, prefix, gpu.removeprefix("NVIDIA "), count)


def _text(data: dict[str, Any]) -> str:
    """As a target file says it that extends no other."""
    import yaml

    said = _said({key: value for key, value in data.items() if key != "extends"})
    return str(yaml.safe_dump(said, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100))


def _said(value: Any) -> Any:
    """A value without what nobody has said in it."""
    if not isinstance(value, dict):
        return [_said(item) for item in value] if isinstance(value, list) else value
    said = {key: _said(item) for key, item in value.items()}
    return {key: item for key, item in said.items() if item not in (None, {}, [], "")}
