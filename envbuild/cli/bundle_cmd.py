"""`envbuild bundle`: create, verify."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from envbuild.cli.choose import build_options, configured, facts_option, prepared_of, settings_of
from envbuild.cli.output import Ui, columns, common_options
from envbuild.cli.progress import RunProgress
from envbuild.cli.verbs import Group
from envbuild.text import grouped, plural, size


@click.group("bundle", cls=Group)
def bundle() -> None:
    """Bundles: all that an installation needs, as one file for machines without a network."""


@bundle.command("create")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE",
    help="The bundle: a tar file where the name ends in .tar, else a folder.",
)  # fmt: skip
@click.option(
    "--base-is-there", is_flag=True, help="Leave out packages that the base (system, module, image) provides."
)
@click.option("--interpreter", "python", is_flag=True, help="Also include a standalone Python.")
@build_options
@facts_option
@common_options
def create(ui: Ui, /, output: Path, base_is_there: bool, python: bool, facts: str | None, **flags: Any) -> int:
    """Fetch what STACK needs on a target, and write it as a bundle.

    Equal locks give equal bytes.
    """
    from envbuild.provision.deliver import Asked, create_bundle
    from envbuild.provision.provision import dry_run

    config = configured(flags)
    prepared = prepared_of(ui, flags, config, jobs=True, recorded=facts is not None)
    with RunProgress(ui) as progress:
        if facts is None:
            # Also of nodes on which nothing has to be done it is asked which variant they get.
            _, survey = dry_run(prepared, replace(settings_of(config), repair=True), progress)
        else:
            from envbuild.catalog.node_facts import load_facts
            from envbuild.provision.survey.plan_run import plan_recorded

            _, survey = plan_recorded(prepared, load_facts(facts), toolchain_file=config.toolchain)
        asked = Asked(output, base_is_there, python, config.toolchain, facts is not None)
        index, notes = create_bundle(prepared, survey, asked, progress.stage)
    for note in notes:
        ui.note(f"note: {note}")
    ui.result({"bundle": str(output), **index}, lambda: _summary(output, index))
    return 0


@bundle.command("verify")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--quick", is_flag=True, help="Read no contents; print what the index lists.")
@common_options
def verify(ui: Ui, /, bundle: Path, quick: bool) -> int:
    """Read every byte of BUNDLE and compare it with its index.

    Executes and unpacks nothing.
    """
    from envbuild.bundle import collect

    index = (collect.read_index if quick else collect.verify)(bundle)

    def text() -> str:
        if not quick:
            return f"{_summary(bundle, index)}\nevery file has its sha256"
        rows = [(row["what"], size(row["bytes"]), row["sha256"][:12], row["path"]) for row in index["files"]]
        return f"{_summary(bundle, index)}\n{columns([('what', 'size', 'sha256', 'path'), *rows])}"

    ui.result({"bundle": str(bundle), **index}, text)
    return 0


def _summary(path: Path, index: dict[str, Any]) -> str:
    kinds = grouped(index["files"], lambda row: row["what"])
    counts = ", ".join(plural(len(rows), what) for what, rows in kinds.items()) or "nothing"
    whom = f"{index['stack']} ({index['profile']}): {', '.join(index['variants'])}; {', '.join(index['machines'])}"
    return (
        f"{path}: {whom}\n{counts}, {size(sum(row['bytes'] for row in index['files']))}; digest {index['digest'][:12]}"
    )
