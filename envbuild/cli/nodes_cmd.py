"""`envbuild verify` and `envbuild smoke`: ask nodes about an environment, change nothing."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import names
from envbuild.cli.choose import configured, deadline_option, engine_option, place_options, prepared_of, settings_of
from envbuild.cli.output import Ui, common_options, print_error
from envbuild.errors import EnvbuildError, gravest

if TYPE_CHECKING:
    from envbuild.model.evidence import Evidence
    from envbuild.provision.run.context import Settings
    from envbuild.provision.run.findings import Prepared
    from envbuild.provision.run.run_dir import RunDir


@click.command("verify")
@place_options
@engine_option
@click.option("--quick", is_flag=True, help="Read no contents: stamp, names and versions of packages, link.")
@click.option(
    "--since",
    metavar="RUN",
    shell_complete=names.runs,
    help="Say what is other than in that run, and nothing else: for cron.",
)
@deadline_option
@common_options
def verify(ui: Ui, /, quick: bool, since: str | None, deadline: float | None, **flags: Any) -> int:
    """Compare every file of an environment with its lock and stamp.

    Exit 1 on drift. With --quick no file is read.
    """
    from envbuild.cli.progress import RunProgress
    from envbuild.container.run_options import runs_in_jobs_alone
    from envbuild.provision import provision
    from envbuild.schedule.runner import as_login

    prepared, settings = _prepared(ui, flags, ahead=deadline is None)
    # The files of a shared prefix can be read on the login host, without a job; pyxis starts images in jobs alone.
    if not (prepared.target.engine == "container" and runs_in_jobs_alone(prepared.target.container)):
        prepared = prepared._replace(target=as_login(prepared.target))
    earlier = _earlier(since, prepared) if since else None
    with RunProgress(ui) as progress:
        evidence, run = provision.verify(prepared, settings, progress, deep=not quick, deadline=deadline)
        return _show_since(ui, earlier, evidence) if earlier else show_evidence(ui, evidence, run)


def _earlier(run: str, prepared: Prepared) -> Evidence:
    """What a run of this stack saw. Raises EnvbuildError `since-of-another` (exit 2), and as `open_run` does."""
    from envbuild.config import load_config
    from envbuild.provision.run.run_dir import open_run
    from envbuild.report.recheck.opened import open_report

    found = open_report(open_run(load_config().runs_root, run).path).evidence
    asked = (prepared.stack.name, prepared.profile)
    if (found.stack, found.profile) != asked:
        raise EnvbuildError(
            "since-of-another",
            f"the run {found.run} is of {found.stack} ({found.profile}), not of {asked[0]} ({asked[1]})",
            why="what is there cannot be compared with another stack",
            hint="`envbuild run list` names the runs with their stacks",
        )
    return found


def _show_since(ui: Ui, earlier: Evidence, evidence: Evidence) -> int:
    """What is other than in an earlier run; silence where nothing is and all is good, as cron mails what is printed."""
    from envbuild.report import diff
    from envbuild.report.diff import compare, exit_code

    # Another envbuild that looks is nothing that happened to the nodes.
    changes = [change for change in compare(earlier, evidence) if (change.topic, change.what) != ("run", "envbuild")]
    if changes or evidence.exit or ui.json:
        data = {"since": earlier.run, "run": evidence.run, "changes": [change.as_dict() for change in changes]}
        ui.lines(data, lambda: diff.lines(earlier, evidence, changes))
    return gravest([evidence.exit, exit_code(changes)])


@click.command("smoke")
@place_options
@engine_option
@click.option(
    "--only", multiple=True, metavar="ITEM[/CHECK]", help="Run this part alone, e.g. machine/gemm; repeatable."
)
@click.option("--full", is_flag=True, help="Also torch.compile and a GPT of 125 M parameters, on a GPU.")
@common_options
def smoke(ui: Ui, /, *, only: tuple[str, ...], full: bool, **flags: Any) -> int:
    """Run the smoke tests in the environment in use.

    Exit 1 when one fails, 6 below a floor. What --only leaves out is named as not checked.
    """
    from envbuild.cli.progress import RunProgress
    from envbuild.provision import provision

    prepared, settings = _prepared(ui, flags, ahead=True)
    settings = replace(settings, only=only, full=full)
    with RunProgress(ui) as progress:
        return show_evidence(ui, *provision.smoke(prepared, settings, progress))


def _prepared(ui: Ui, flags: dict[str, Any], *, ahead: bool) -> tuple[Prepared, Settings]:
    """What is asked about, as `prepare` has it, and how; nodes that were left out are told."""
    config = configured(flags)
    prepared = prepared_of(ui, flags, config, locked=False, jobs=True, ahead=ahead)
    if prepared.selection is not None:
        ui.note(str(prepared.selection))
    return prepared, settings_of(config)


def show_evidence(ui: Ui, evidence: Evidence, run: RunDir) -> int:
    """The summary of a run that changed nothing, and the errors of its nodes; its exit code.

    On a terminal, where both are read together, without the error that stands in the summary.
    """
    from envbuild.report.terminal import summary_lines
    from envbuild.report.view import View

    page = str(run.path / "report.html")
    ui.lines(evidence.to_json_dict(), lambda: summary_lines(evidence, page, verbose=ui.verbose))
    told = View(evidence).nodes_by_need[:1] if sys.stdout.isatty() and sys.stderr.isatty() else ()
    for node in evidence.nodes:
        if node.error and not ui.json and node not in told:
            print_error(EnvbuildError.from_dict(node.error))
    return evidence.exit
