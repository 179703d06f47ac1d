"""`envbuild report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuild.cli import names
from envbuild.cli.output import Ui, common_options
from envbuild.errors import EnvbuildError, ExitCode

if TYPE_CHECKING:
    from envbuild.model.evidence import Evidence


@click.group("report")
def report() -> None:
    """Reports of runs."""


@report.command("show")
@click.argument("run", default="last", shell_complete=names.runs)
@click.option(
    "--format", "form", type=click.Choice(["summary", "md", "html", "junit", "cyclonedx"]), default="summary",
    show_default=True, help="junit: JUnit XML; cyclonedx: a bill of materials (1.6, JSON).",
)  # fmt: skip
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write all forms, and what belongs to them, into a folder.",
)
@click.option("--publish/--full", help="Only the fields that the schema marks as public; nodes are numbered.")
@common_options
def show(ui: Ui, run: str, form: str, output: Path | None, publish: bool) -> None:
    """Show the report of RUN (an id, its beginning, `last`, or its folder), rendered anew from its evidence."""
    from envbuild.report import render, terminal
    from envbuild.report.recheck.opened import open_report

    path = _place(run)
    opened = open_report(path)
    evidence, text, envelope = opened.evidence, opened.text, opened.envelope
    if publish:
        from envbuild.report.publish import published

        evidence = published(evidence).model_copy(update={"attachments": ()})
        text, envelope = render.render_json(evidence).encode(), None
    if output is not None:
        from envbuild.report.publish import copy_report

        written, left = copy_report(path, output, publish=publish)
        for each in written:
            ui.note(f"written: {each}")
        for said in left:
            ui.warn(said)
    if form == "summary":
        ui.lines(evidence.to_json_dict(), lambda width: terminal.summary_lines(evidence, width=width))
    else:
        pages = {
            "html": lambda: render.render_html(evidence, text, envelope),
            "md": lambda: render.render_markdown(evidence),
        }
        ui.result(
            evidence.to_json_dict(), pages.get(form) or (lambda: _other(form, evidence)), verbatim=form not in pages
        )


def _other(form: str, evidence: Evidence) -> str:
    from envbuild.report.formats.every import FORMATS

    return FORMATS[form][1](evidence)


@report.command("verify")
@click.argument("path", metavar="REPORT|KIT", default="last", shell_complete=names.runs)
@click.option("--run", metavar="RUN", help="The run that the report has to be of.")
@click.option(
    "--signers", type=click.Path(path_type=Path, dir_okay=False),
    help="The keys that you trust, as ssh-keygen's allowed_signers has them: demands a signature of one of them.",
)  # fmt: skip
@common_options
def verify(ui: Ui, path: str, run: str | None, signers: Path | None) -> int:
    """Check REPORT again without trusting it: a run (as `report show` takes it), its evidence.json or its report.html.

    A KIT of `report kit` (its folder, or a tar file) is checked with all that lies in it. Asks no network and no node.
    Exit 5 where something does not hold; what could not be checked is listed.
    """
    from envbuild.kit.read import is_kit
    from envbuild.report.recheck.told import as_dict, lines

    if is_kit(Path(path)):
        from envbuild.kit.verify import verify_kit

        opened, findings = verify_kit(Path(path), run=run, signers=signers)
    else:
        from envbuild.report.recheck.verify import verify_report

        opened, findings = verify_report(_place(path), run=run, signers=signers)
    ui.lines(as_dict(opened, findings), lambda width: lines(opened, findings, width=width))
    return ExitCode.INTEGRITY if any(finding.kind == "problem" for finding in findings) else ExitCode.OK


@report.command("diff")
@click.argument("before", shell_complete=names.runs)
@click.argument("after", default="last", shell_complete=names.runs)
@click.option(
    "--format", "form", type=click.Choice(["summary", "html"]), default="summary", show_default=True,
    help="For this terminal, or as a page.",
)  # fmt: skip
@common_options
def diff(ui: Ui, before: str, after: str, form: str) -> int:
    """What is other in the run AFTER than in BEFORE: two runs, sites, or before and after an update.

    Exit 1 where something fails or drifted that did not, 6 where a figure is worse than the worst of BEFORE, else 0.
    """
    from envbuild.report.diff import told
    from envbuild.report.diff.compare import compare, exit_code
    from envbuild.report.recheck.opened import open_report

    one, other = (open_report(_place(each)).evidence for each in (before, after))
    changes = compare(one, other)
    data = {"before": one.run, "after": other.run, "changes": [change.as_dict() for change in changes]}
    if form == "html":
        ui.result(data, lambda: told.page(one, other))
    else:
        ui.lines(data, lambda width: told.lines(one, other, changes, width))
    return exit_code(changes)


@report.command("sign")
@click.argument("run", default="last", shell_complete=names.runs)
@click.option(
    "--key", type=click.Path(path_type=Path, dir_okay=False), required=True,
    help="A private SSH key, or the public one of a key that the agent has.",
)  # fmt: skip
@common_options
def sign(ui: Ui, run: str, key: Path) -> None:
    """Sign the report of RUN (an id, `last`, or its folder) with an SSH key, after checking that it holds."""
    from envbuild.report.sign import sign_report

    path = _place(run)
    written = sign_report(path if path.is_dir() else path.parent, key)
    ui.result({"signature": str(written)}, lambda: f"written: {written}")


@report.command("kit")
@click.argument("run", default="last", shell_complete=names.runs)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder or FILE.tar to write (default: kit-STACK-RUN here)."
)
@click.option("--tar", is_flag=True, help="One tar file; the same report gives the same bytes.")
@click.option("--publish/--full", default=True, help="The public fields of the report (default), or all of it.")
@click.option(
    "--key", type=click.Path(path_type=Path, dir_okay=False), help="Sign the report in the kit with this key."
)
@click.option("-s", "--stack", metavar="FILE", help="The stack's file, where it is one of your own.")
@common_options
def kit(
    ui: Ui, run: str, out: Path | None, tar: bool, publish: bool, key: Path | None, stack: str | None
) -> None:  # fmt: skip
    """Make the reviewer's kit of RUN: its report and lock, how to repeat it, what to expect, everything by sha256."""
    from envbuild.kit.make import default_name, make_kit

    path = _place(run)
    output = out or Path(default_name(path))
    if tar and output.suffix != ".tar":
        output = output.with_name(f"{output.name}.tar")
    files, left = make_kit(path, output, publish=publish, stack=stack, key=key)
    if publish and key is not None:
        ui.warn("the public key goes with the signature, and may tell whose kit it is")
    for text in left:
        ui.warn(text)
    size = sum(map(len, files.values()))
    told = {"kit": str(output), "files": len(files), "bytes": size, "left": left}
    ui.result(told, lambda: f"written: {output} ({len(files)} files, {size / 1e6:.2f} MB)")


def _place(run: str) -> Path:
    """The folder or file that RUN means: a path, or an id as `run show` takes it."""
    for path in (Path(run), Path(run) / "report"):  # the second: of a kit
        if run.endswith((".json", ".html")) or (path / "evidence.json").is_file():
            return path
    from envbuild.config import load_config
    from envbuild.provision.run.run_dir import open_run

    if run and Path(run).is_dir():
        raise EnvbuildError(
            "run-unknown",
            f"{run} holds no report",
            why="it has neither evidence.json nor report/evidence.json",
            hint="give a run directory, a kit, or the id of a run: `envbuild run list` shows them",
        )
    return open_run(load_config().runs_root, run).path
