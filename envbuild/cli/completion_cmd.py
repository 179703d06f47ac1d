"""`envbuild completion`: the completion script of a shell, to be sourced from its start-up file by the user."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from envbuild.cli.output import Ui, common_options


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
def completion(ui: Ui, shell: str) -> None:
    """Print the completion script for SHELL; `eval "$(envbuild completion bash)"` tries it."""
    from envbuild.cli.verbs import cli

    script_class = get_completion_class(shell)
    if script_class is None:
        raise click.UsageError(f"no completion for {shell}")
    script = script_class(cli, {}, "envbuild", "_ENVBUILD_COMPLETE").source()
    ui.result({"shell": shell, "script": script}, lambda: script, verbatim=True)
