"""`envbuild report`."""

from __future__ import annotations

from pathlib import Path

import click

from envbuild.cli.output import Ui, common_options


@click.group("report")
def report() -> None:
    """Reports of runs."""


@report.command("show")
@click.argument("run", default="last")
@click.option("--format", "form", type=click.Choice(["summary", "md", "html"]), default="summary", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Write all forms into a folder.")
@common_options
def show(ui: Ui, run: str, form: str, output: Path | None) -> int:
    """Show the report of RUN (an id, its beginning, `last`, or its folder), rendered anew from its evidence."""
    from envbuild.config import load_config
    from envbuild.provision.run.run_dir import open_run
    from envbuild.report import render, terminal

    root = load_config().runs_root
    if run.endswith(".json"):
        path = Path(run)
    else:
        folder = Path(run) if (Path(run) / "evidence.json").is_file() else open_run(root, run).path
        path = folder / "evidence.json"
    evidence = render.load_evidence(path)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        for written in render.write_report(evidence, output).values():
            ui.note(f"written: {written}")
    if form == "summary":
        ui.lines(evidence.to_json_dict(), lambda width: terminal.summary_lines(evidence, width=width))
    else:
        rendered = render.render_html if form == "html" else render.render_markdown
        ui.result(evidence.to_json_dict(), lambda: rendered(evidence))
    return 0
