"""`envbuild config` and `envbuild completion`: the settings, and the script of a shell for the tab key."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from envbuild import resources
from envbuild.cli.output import Ui, common_options
from envbuild.cli.verbs import Group, cli
from envbuild.config import load_config
from envbuild.errors import EnvbuildError
from envbuild.text import did_you_mean


@click.group("config", cls=Group)
def config() -> None:
    """Configuration."""


@config.command("show")
@click.argument("name", required=False)
@click.option("--origin", is_flag=True, help="Show where each value comes from.")
@common_options
def show(ui: Ui, name: str | None, origin: bool) -> None:
    """Show every setting, and the folders of playbooks and fabfile.

    With NAME, prints only this value: ansible-playbook "$(envbuild config show playbooks)/environment.yml".
    """
    loaded = load_config()
    for variable in loaded.unknown_variables:
        ui.note(f"the variable {variable} is no setting")
    rows = {key: (setting.value, setting.origin) for key, setting in loaded.settings.items()}
    rows |= {
        "playbooks": (str(resources.playbooks()), "shipped"),
        "fabfile": (str(resources.fabfile_folder()), "shipped"),
    }
    if name is not None and name not in rows:
        raise EnvbuildError("config-invalid", f"there is no setting {name!r}", hint=did_you_mean(name, rows))
    if name is not None:
        rows = {name: rows[name]}
    data = {
        "settings": {key: {"value": value, "origin": said_by} for key, (value, said_by) in rows.items()},
        "files": [str(path) for path in loaded.files],
    }

    def line(key: str) -> str:
        value, said_by = rows[key]
        shown = "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        label = "" if name is not None else f"{key:{max(map(len, rows))}}  "
        return f"{label}{shown}" + (f"  ({said_by})" if origin else "")

    ui.result(data, lambda: "\n".join(map(line, rows)))


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
def completion(ui: Ui, shell: str) -> None:
    """Print the completion script for SHELL; `eval "$(envbuild completion bash)"` tries it."""
    script_class = get_completion_class(shell)
    if script_class is None:
        raise click.UsageError(f"no completion for {shell}")
    script = script_class(cli, {}, "envbuild", "_ENVBUILD_COMPLETE").source()
    ui.result({"shell": shell, "script": script}, lambda: script, verbatim=True)
