"""`envbuild bench`: the document's own run, measured and compared with what the document claims."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from envbuild.cli.choose import Time, configured, prepared_of, settings_of, stack_argument, where_options
from envbuild.cli.launch_cmd import absolute, launch_place, launch_settings, profile_to_run, run_options
from envbuild.cli.nodes_cmd import show_evidence
from envbuild.cli.output import Ui, common_options

_OTHERS = ("environment", "job", "hostfile", "image")


@click.command("bench")
@stack_argument(required=True)
@where_options
@run_options
@click.option("--trials", type=click.IntRange(min=1, max=100), default=1, help="How often (default: once).")
@click.option(
    "--deadline",
    type=Time(1, 864000),
    default="1h",
    show_default=True,
    metavar="TIME",
    help="A run is ended then.",
)
@click.option(
    "-o", "--output", metavar="DIR",
    help="Each trial has a new folder below (default: ./bench, elsewhere below the prefix).",
)  # fmt: skip
@click.option(
    "--log", "logs", multiple=True, metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help="Read the log of a run that was made elsewhere; nothing is run. Repeatable.",
)  # fmt: skip
@common_options
def bench(ui: Ui, /, trials: int, logs: tuple[str, ...], **flags: Any) -> int:
    """Run STACK's own command, and compare its figure with the document's.

    Here, over SSH, or each run as a job. Exit 1 when a run fails or tells no figure, 6 when it is below the claim on
    the GPUs that the claim is about. An interrupt ends the job too.
    """
    from envbuild.cli.launch_run import asked_of
    from envbuild.cli.progress import RunProgress
    from envbuild.provision.bench import Asked, bench

    config = configured(flags)
    profile = profile_to_run(flags, "bench", read=bool(logs))
    prepared = prepared_of(ui, {**flags, "profile": profile}, config, locked=False, jobs=True, ahead=False)
    kind = "local" if logs else prepared.target.connection.kind
    if kind == "local":
        flags["output"] = absolute(flags["output"] or "bench")
    asked = Asked(
        asked_of(launch_settings(flags["settings"]), flags),
        None if kind == "job" else launch_place(prepared.stack.name, {**dict.fromkeys(_OTHERS), **flags}),
        trials,
        tuple(map(Path, logs)),
    )
    with RunProgress(ui) as progress:
        # Nobody would read what an interrupted job goes on to print.
        settings = replace(settings_of(config), cancel_job=True)
        return show_evidence(ui, *bench(prepared, settings, progress, asked))
