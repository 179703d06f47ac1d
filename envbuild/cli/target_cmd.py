"""`envbuild target`."""

from __future__ import annotations

from typing import Any

import click

from envbuild.cli.output import Ui, common_options, named, validate_each


@click.group("target")
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


@target.command("validate")
@click.argument("targets", nargs=-1, required=True)
@common_options
def validate(ui: Ui, targets: tuple[str, ...]) -> int:
    """Check each of TARGETS (names or paths); the exit code is that of the first that is refused.

    A stack that the target names is looked up too; no host is asked. A template is good as far as it goes.
    """
    from envbuild.catalog.loader import load_stack, load_target, pick_profile, stack_of

    def name_of(reference: str) -> str:
        found = load_target(reference, template=True)
        stack = stack_of(found)
        if stack is not None:
            pick_profile(load_stack(stack), found.target.profile)
        return found.target.name

    return validate_each(ui, "target", targets, name_of)


@target.command("show")
@click.argument("target", required=False)
@common_options
def show(ui: Ui, target: str | None) -> None:
    """Show TARGET after its `extends:`: a shipped name or the path of a file (default: the configured one)."""
    from envbuild.catalog.loader import is_template, load_target
    from envbuild.config import load_config

    loaded = load_target(target or load_config().target, template=True)
    data = loaded.target.to_json_dict()
    template = is_template(loaded.target)
    files = [str(path) for path in loaded.files]
    if template:
        ui.note("this is a template: extend it and say what stands in <angle brackets>")
    result = {"path": str(loaded.path), "files": files, "shipped": loaded.shipped, "template": template, "target": data}
    ui.result(result, lambda: "".join([*(f"# from {path}\n" for path in files), _text(data)]))


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
