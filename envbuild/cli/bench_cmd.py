"""`envbuild bench`: the document's own run, measured and compared with what the document claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from envbuild.cli import names
from envbuild.cli.choose import choice_of, configured, place_options, settings_of
from envbuild.cli.launch_cmd import launch_settings, place_here
from envbuild.cli.nodes_cmd import show_evidence
from envbuild.cli.output import Ui, common_options
from envbuild.errors import EnvbuildError, ExitCode


@click.command("bench")
@click.argument("stack_name", metavar="STACK", shell_complete=names.stacks)
@place_options
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A parameter of the stack, repeatable.")
@click.option("--gpus-per-node", type=click.IntRange(min=1), help="GPUs to use (default: the target's).")
@click.option("--trials", type=click.IntRange(min=1, max=100), default=1, help="How often (default: once).")
@click.option(
    "--deadline", type=click.FloatRange(min=1), default=3600.0, metavar="SECONDS", help="A run is ended then: 1 hour."
)
@click.option("--output", metavar="DIR", default="bench", help="Where the runs write (default: ./bench).")
@click.option(
    "--log", "logs", multiple=True, metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help="Read the log of a run that was made elsewhere, a job's say; nothing is run. Repeatable.",
)  # fmt: skip
@common_options
def bench(ui: Ui, /, stack_name: str, trials: int, deadline: float, logs: tuple[str, ...], **flags: Any) -> int:
    """Run STACK's own command on this machine and compare its figure with the document's.

    Exit 1 when a run fails or tells no figure, 6 when it is below the claim on the GPUs that the claim is about.
    """
    from envbuild.cli.progress import RunProgress
    from envbuild.launch.recipes import launch
    from envbuild.provision.bench import Asked, bench
    from envbuild.provision.survey.prepare import prepare

    flags["stack"] = flags.get("stack") or stack_name
    config = configured(flags)
    prepared = prepare(choice_of(flags, config), locked=False, jobs=True, ahead=False)
    connection = prepared.target.connection.kind
    if connection != "local" and not logs:
        raise EnvbuildError(
            "bench-not-here",
            f"bench runs on this machine, and {prepared.target.name} is reached through {connection}",
            hint=f"`envbuild launch {stack_name} --target {flags.get('target') or prepared.target.name} --submit` runs "
            "it there; then `envbuild bench ... --log FILE` reads what it printed",
            exit_code=ExitCode.REFUSED,
        )
    place = place_here(prepared.stack.name, flags)
    made = launch(prepared.stack, prepared.profile, launch_settings(flags["settings"]), place)
    asked = Asked(
        launch=made,
        activate=f"{place.environment}/.envbuild/activate.sh",
        output=place.output,
        trials=trials,
        deadline=deadline,
        logs=tuple(map(Path, logs)),
    )
    with RunProgress(ui) as progress:
        return show_evidence(ui, *bench(prepared, settings_of(config), progress, asked))
