"""`envbuild report`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from envbuild.cli import names
from envbuild.cli.choose import FILE, output_option, own_file
from envbuild.cli.output import Ui, common_options
from envbuild.cli.verbs import Group
from envbuild.config import load_config
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.provision.run.run_dir import list_runs, open_run

F = TypeVar("F", bound=Callable[..., Any])


def _publish(default: bool) -> Callable[[F], F]:
    return click.option(
        "--publish/--no-publish", default=default, show_default=True,
        help="Keep only fields that the schema marks as public; number the nodes.",
    )  # fmt: skip


def _key(*, required: bool = False) -> Callable[[F], F]:
    return click.option(
        "--key", type=FILE, required=required,
        help="Sign with this private SSH key, or the public key of one in the agent.",
    )  # fmt: skip


@click.group("report", cls=Group)
def report() -> None:
    """Reports of runs."""


@report.command("show")
@click.argument("run", default="last", shell_complete=names.runs)
@click.option(
    "--format", "form", type=click.Choice(["summary", "md", "html", "junit", "cyclonedx"]), default="summary",
    show_default=True, help="junit: JUnit XML; cyclonedx: a bill of materials (1.6, JSON).",
)  # fmt: skip
@output_option("Write all formats and their attachments into a folder.", folder=True)
@_publish(False)
@common_options
def show(ui: Ui, run: str, form: str, output: Path | None, publish: bool) -> None:
    """Show the report of RUN, rendered anew from its evidence.

    RUN is an id, its beginning, `last` (the default), or the folder of a run.
    """
    from envbuild.report import render, terminal
    from envbuild.report.recheck.opened import open_report

    path = _place(ui, run)
    opened = open_report(path)
    evidence, text, signature = opened.evidence, opened.text, opened.signature
    if publish:
        from envbuild.report.publish import published

        evidence = published(evidence).model_copy(update={"attachments": ()})
        text, signature = render.render_json(evidence).encode(), None
    if output is not None:
        from envbuild.report.publish import copy_report

        written, left = copy_report(path, output, publish=publish)
        for file in written:
            ui.note(f"written: {file}")
        _tell_left(ui, left)
    pages: dict[str, Callable[[], str | list[tuple[str, str]]]] = {
        "summary": lambda: terminal.summary_lines(evidence, verbose=ui.verbose),
        "html": lambda: render.render_html(evidence, text, signature),
        "md": lambda: render.render_markdown(evidence),
    }

    def other() -> str:
        from envbuild.report.formats import FORMATS

        return FORMATS[form][1](evidence)

    ui.result(evidence.to_json_dict, pages.get(form, other), verbatim=form not in pages)


@report.command("verify")
@click.argument("path", metavar="REPORT|KIT", default="last", shell_complete=names.runs)
@click.option("--run-id", "run", metavar="RUN", help="Demand a report of this run.")
@click.option(
    "--signers", type=FILE,
    help="File of trusted keys (allowed_signers of ssh-keygen); demands a signature by one of them.",
)  # fmt: skip
@common_options
def verify(ui: Ui, path: str, run: str | None, signers: Path | None) -> int:
    """Check REPORT again without trusting it, or a KIT.

    REPORT is a run (as `report show` takes it), its evidence.json or its report.html. A KIT of `report kit` (its
    folder, or a tar file) is checked with all its files. Uses no network and no node. Exit 5 if something does
    not hold. Lists what could not be checked.
    """
    from envbuild.kit.manifest import is_kit
    from envbuild.report.recheck.opened import as_dict, lines

    if is_kit(Path(path)):
        from envbuild.kit.make import verify_kit

        opened, findings = verify_kit(Path(path), run=run, signers=signers)
    else:
        from envbuild.report.recheck.verify import verify_report

        opened, findings = verify_report(_place(ui, path), run=run, signers=signers)
    ui.result(as_dict(opened, findings), lambda: lines(opened, findings))
    return ExitCode.INTEGRITY if any(finding.kind == "problem" for finding in findings) else ExitCode.OK


@report.command("diff")
@click.argument("before", shell_complete=names.runs)
@click.argument("after", default="last", shell_complete=names.runs)
@common_options
def diff(ui: Ui, before: str, after: str) -> int:
    """Show what changed from the run BEFORE to the run AFTER.

    Compares two runs, two sites, or before and after an update. `last` (the default) is the newest run with a report,
    also a `verify` or one that failed; `envbuild run list` has the ids of others. Exit 1 if something newly fails or
    drifted, 6 if a figure is worse than the worst of BEFORE, else 0.
    """
    from envbuild.report.diff import compare, exit_code, is_idle, lines
    from envbuild.report.recheck.opened import open_report

    one, other = (open_report(_place(ui, place)).evidence for place in (before, after))
    if after == "last" and is_idle(other):
        ui.warn("the newest run changed nothing and measured nothing; `envbuild run list` has the others")
    changes = compare(one, other)
    data = {"before": one.run, "after": other.run, "changes": [asdict(change) for change in changes]}
    ui.result(data, lambda: lines(one, other, changes))
    return exit_code(changes)


@report.command("sign")
@click.argument("run", default="last", shell_complete=names.runs)
@_key(required=True)
@common_options
def sign(ui: Ui, run: str, key: Path) -> None:
    """Sign the report of RUN with an SSH key, after checking it.

    RUN is an id, `last` (the default), or the folder of a run.
    """
    from envbuild.report.publish import sign_report

    path = _place(ui, run)
    written = sign_report(path if path.is_dir() else path.parent, key)
    ui.result({"signature": str(written)}, lambda: f"written: {written}")


@report.command("kit")
@click.argument("run", default="last", shell_complete=names.runs)
@click.option(
    "-o", "--output", metavar="DIR|FILE.tar", type=click.Path(path_type=Path),
    help="File or folder to write (default: kit-STACK-RUN here). A tar file has the same bytes for the same report.",
)  # fmt: skip
@_publish(True)
@_key()
@click.option("-s", "--stack", metavar="STACK", help="Last run of this stack; its file (default: the run's copy).")
@common_options
def kit(ui: Ui, run: str, output: Path | None, publish: bool, key: Path | None, stack: str | None) -> None:
    """Make the reviewer's kit of RUN.

    RUN is as `report show` takes it (default: the last run that ran a test or a benchmark; with --stack, of that
    stack). If RUN took the contents of the environment from its stamp, as `bench` does, the kit also has the report of
    the last run that measured them.

    It holds the report, the lock, how to repeat the run and what to expect, all with sha256. By default it has only the
    public fields of the report. Its README names the https address from which this envbuild was installed. Without
    such an address the kit has the wheel of envbuild.
    """
    from envbuild.catalog.loader import load_stack
    from envbuild.kit.make import computed_run, default_name, make_kit, measured_run, passed_run, run_of
    from envbuild.report.recheck.opened import open_report

    runs = [run_dir.path for run_dir in list_runs(load_config().runs_root)]
    named = None if stack is None else load_stack(own_file(stack))
    newest = path = run_of(runs, named.stack) if named is not None and run == "last" else _place(ui, run)
    if run == "last":
        earlier = runs[runs.index(newest) :] if newest in runs else [newest]
        path = computed_run(earlier)
        missed = " failed and" if open_report(newest).evidence.exit else ""
        newer = (
            "" if path == newest else f" that ran a test or a benchmark; the newer run {newest.name}{missed} ran none"
        )
        good = passed_run(earlier) if open_report(path).evidence.exit else None
        failed = f", which failed; the last that passed: `envbuild report kit {good.name}`" if good else ""
        of = "" if named is None else f" of {named.stack.name}"
        ui.note(f"kit of {path.name}, the last run{of}{newer}{failed}")
    if measured := measured_run(runs, path):
        ui.note(
            f"{path.name} has the contents from the stamp; the report of {measured.name}, which measured them, is added"
        )
    output = output or Path(default_name(path))
    files, left = make_kit(path, output, publish=publish, stack=stack and own_file(stack), key=key, measured=measured)
    if publish and key is not None:
        ui.warn("the public key goes with the signature, and may tell whose kit it is")
    _tell_left(ui, left)
    size = sum(map(len, files.values()))
    data = {"kit": str(output), "files": len(files), "bytes": size, "left": left}
    ui.result(data, lambda: f"written: {output} ({len(files)} files, {size / 1e6:.2f} MB)")


def _tell_left(ui: Ui, left: Iterable[str]) -> None:
    """What a copy of a report lacks: a warning, unless it was to be left out."""
    from envbuild.report.publish import NOT_PUBLIC

    for text in left:
        (ui.note if text.endswith(NOT_PUBLIC) else ui.warn)(text)


def _place(ui: Ui, run: str) -> Path:
    """The folder or file that RUN means: a path, or an id as `run show` takes it; `last` is the last with evidence."""
    for path in (Path(run), Path(run) / "report"):  # the second: of a kit
        if run.endswith((".json", ".html")) or (path / "evidence.json").is_file():
            return path

    if run and Path(run).is_dir():
        raise EnvbuildError(
            "run-unknown",
            f"{run} has no report",
            why="it has neither evidence.json nor report/evidence.json",
            hint="give a run directory, a kit, or the id of a run: `envbuild run list` shows them",
        )
    runs = load_config().runs_root
    wanted = open_run(runs, run)
    if (wanted.path / "evidence.json").exists():
        return wanted.path
    last = next((run_dir for run_dir in list_runs(runs) if (run_dir.path / "evidence.json").exists()), None)
    if run == "last" and last:
        ui.note(f"the last run with a report is {last.id}; {wanted.id} ({wanted.outcome}) has none")
        return last.path
    raise EnvbuildError(
        "evidence-missing",
        f"the run {wanted.id} ({wanted.outcome}) has no report",
        why="a run that is refused or ends early writes none",
        hint=f"the last run with a report is {last.id}"
        if last
        else "no run has one yet: `envbuild provision` makes one",
    )
