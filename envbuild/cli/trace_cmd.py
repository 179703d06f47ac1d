"""`envbuild trace`: MegatronAPP's text traces as a Chrome trace and a sheet."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from envbuild.cli.choose import FILE_THERE, Count
from envbuild.cli.output import Ui, common_options
from envbuild.errors import EnvbuildError, writing
from envbuild.node.paths import write_whole
from envbuild.trace.pipeline import Iteration, Pipeline, bubble, chrome, iterations, pipeline_of, sheet, shown
from envbuild.trace.records import Trace, read

_ENDINGS = {"chrome": ".json", "xlsx": ".xlsx"}


@click.command("trace")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=FILE_THERE)
@click.option("--pipeline", "stages", type=Count(min=1), help="Pipeline stages (default: from the file name).")
@click.option("--chunks", type=Count(min=1), help="Model chunks per stage (default: from the file name).")
@click.option("--iteration", type=Count(min=0), help="Iteration to draw (default: the last complete one).")
@click.option(
    "--format", "formats", multiple=True, type=click.Choice(sorted(_ENDINGS)),
    help="Write only this format; repeatable.",
)  # fmt: skip
@click.option("-o", "--output", metavar="DIR", default=".", help="Where to write (default: here).")
@common_options
def trace(ui: Ui, /, **flags: Any) -> int:
    """Show traces of MegatronAPP, one FILE for each node of a run.

    Writes a Chrome trace (all iterations) and the document's xlsx (one iteration), named after the first FILE.
    Measures the share of the pipeline bubble. Counts and names broken lines, and shows the rest.
    """
    paths: tuple[Path, ...] = flags["files"]
    spans = read(paths)
    pipeline = pipeline_of(spans, paths[0].name, flags["stages"], flags["chunks"])
    every = iterations(spans)
    with writing(Path(flags["output"])):
        written = _write(ui, spans, pipeline, every, flags)
    broken = dict(sorted(spans.broken.items()))
    data = {
        "ranks": len(set(spans.ranks)), "stages": pipeline.stages, "chunks": pipeline.chunks, "passes": len(spans),
        "iterations": [
            {"number": iteration.number, "seconds": round(iteration.seconds, 6), "bubble": round(iteration.bubble, 4)}
            for iteration in every
        ],
        "bubble": round(bubble(every), 4), "broken": broken, "broken_lines": spans.lines, "other_lines": spans.others,
        "files": written,
    }  # fmt: skip
    for text in spans.lines:
        ui.warn(text)
    hidden = sum(broken.values()) - len(spans.lines)
    if hidden:
        ui.warn(f"and {hidden} more broken lines")

    def human() -> str:
        shape = f"{data['ranks']} ranks, {pipeline.stages} stages, {pipeline.chunks} chunks, {len(every)} iterations"
        share = f"bubble {bubble(every):.1%} of the time between an iteration's first pass and its last (median)"
        return "\n".join([f"{shape}; {share}", *written])

    ui.result(data, human)
    return 0


def _write(ui: Ui, trace_data: Trace, pipeline: Pipeline, every: list[Iteration], flags: dict[str, Any]) -> list[str]:
    """The files that were asked for, none ever half written. A sheet that nobody asked for may fail."""
    _, spans = shown(trace_data, every, flags["iteration"])
    folder, first = Path(flags["output"]), flags["files"][0]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for form in flags["formats"] or sorted(_ENDINGS):
        path = folder / (first.stem + _ENDINGS[form])
        if path.resolve() in {file.resolve() for file in flags["files"]}:
            raise click.UsageError(f"{path} is a trace itself: choose another --output")
        try:
            if form == "xlsx":
                parts: Iterable[bytes] = [sheet(spans, pipeline)]
            else:
                parts = (text.encode() for text in chrome(trace_data, pipeline))
            write_whole(str(path), parts)
            written.append(str(path))
        except EnvbuildError as error:
            if flags["formats"]:
                raise
            ui.warn(f"{error.what}: {error.why}")
    return written
