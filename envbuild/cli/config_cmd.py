"""`envbuild config`."""

from __future__ import annotations

import click

from envbuild.cli.output import Ui, common_options


@click.group("config")
def config() -> None:
    """Configuration."""


@config.command("show")
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@common_options
def show(ui: Ui, origin: bool) -> None:
    """Show every setting with its value."""
    from envbuild.config import load_config

    loaded = load_config()
    for name in loaded.unknown_variables:
        ui.note(f"the variable {name} is no setting")
    settings = {key: {"value": s.value, "origin": s.origin} for key, s in loaded.settings.items()}
    data = {"settings": settings, "files": [str(path) for path in loaded.files]}
    width = max(len(key) for key in settings)

    def line(key: str, value: object, said_by: str) -> str:
        shown = "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        return f"{key:{width}}  {shown}" + (f"  ({said_by})" if origin else "")

    ui.result(data, lambda: "\n".join(line(key, s.value, s.origin) for key, s in loaded.settings.items()))


@config.command("fabfile")
@common_options
def fabfile(ui: Ui) -> None:
    """Print the folder of the tasks for fab: fab -r "$(envbuild config fabfile)" --list."""
    from envbuild.resources import fabfile_folder

    folder = str(fabfile_folder())
    ui.result({"folder": folder}, lambda: folder)


@config.command("playbooks")
@common_options
def playbooks(ui: Ui) -> None:
    """Print the folder of the playbooks and roles: ansible-playbook -i INVENTORY FOLDER/environment.yml."""
    from envbuild.resources import playbooks as shipped

    folder = str(shipped())
    ui.result({"folder": folder}, lambda: folder)
