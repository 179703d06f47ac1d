"""`envbuild probe`, `envbuild smoke` and `envbuild verify`: ask nodes, change nothing."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import names
from envbuild.cli.choose import Amount, configured, engine_option, place_options, prepared_of, settings_of, target_of
from envbuild.cli.output import Ui, common_options, print_error
from envbuild.errors import EnvbuildError, as_dicts, exit_of, gravest

if TYPE_CHECKING:
    from envbuild.model.evidence import Evidence
    from envbuild.model.facts import NodeFacts
    from envbuild.model.target import Target
    from envbuild.provision.run.context import Settings
    from envbuild.provision.run.findings import Prepared
    from envbuild.provision.run.run_dir import RunDir

_NEXT = ("envbuild.cli.nodes_table", "envbuild.resolve.node_classes")
DEADLINE_OPTION = click.option(
    "--deadline",
    type=Amount(min=0.1),
    metavar="SECONDS",
    help="A node that has not answered then is silent; the others do not wait for it.",
)


@click.command("probe")
@place_options
@DEADLINE_OPTION
@common_options
def probe(ui: Ui, /, deadline: float | None, **flags: Any) -> int:
    """Read the facts of every node of a target."""
    from envbuild.provision.contact.first_contact import DEADLINE
    from envbuild.provision.survey.ask import probe_nodes

    target = target_of(ui, flags, jobs=True)
    if target.connection.kind == "job":
        if deadline is not None:
            raise click.UsageError(
                f"--deadline is for nodes that are asked one by one; {target.name} is asked by a job"
            )
        facts, errors = _probe_in_job(ui, target, flags)
    else:
        facts, errors = probe_nodes(target, deadline or DEADLINE, _NEXT)
    show_probed(ui, target, facts, errors)
    return ui.exit_of(errors)


def _probe_in_job(
    ui: Ui, target: Target, flags: dict[str, Any]
) -> tuple[dict[str, NodeFacts], dict[str, EnvbuildError]]:
    """One short job that asks its nodes; an interrupt leaves it alone."""
    from envbuild.cli.progress import RunProgress
    from envbuild.provision.jobs.smoke import probe_in_job
    from envbuild.provision.run.life import one_run

    settings = settings_of(configured(flags))
    with RunProgress(ui) as progress, one_run("probe", settings, progress, target=target.name) as run:
        facts, errors = probe_in_job(run, target)
        run.exit = exit_of(errors)
    return facts, errors


def show_probed(ui: Ui, target: Target, facts: dict[str, NodeFacts], errors: dict[str, EnvbuildError]) -> None:
    """The facts of nodes: by class for people, whole under `--json`."""
    from envbuild.cli.nodes_table import probe_lines
    from envbuild.resolve.node_classes import group

    exclusive = target.scheduler.exclusive
    plain = {node: item.to_json_dict() for node, item in facts.items()}
    data = {
        "facts": plain,
        "errors": as_dicts(errors),
        "classes": [each._asdict() for each in group(facts, exclusive=exclusive)],
    }

    def human(width: int) -> list[tuple[str, str]]:
        lines = probe_lines(facts, errors, exclusive=exclusive, width=width if sys.stdout.isatty() else 0)
        if len(plain) == 1:
            lines += [(line, "") for line in _facts_lines(next(iter(plain.values())))]
        return lines

    ui.lines(data, human)


def _facts_lines(facts: dict[str, Any]) -> list[str]:
    """The facts of one node that people look for first."""
    from envbuild.text import visible

    prefix = facts["prefix"]
    rows = {
        "system": f"{facts['os']['id']} {facts['os']['version']}, {facts['libc']['kind']} {facts['libc']['version']}",
        "cpus": f"{facts.get('cpus')}, {(facts.get('memory_bytes') or 0) / 1e9:.0f} GB memory",
        "pythons": ", ".join(f"{item['version']} ({item['path']})" for item in facts["pythons"]) or "none",
        "compilers": ", ".join(f"{item['version']} ({item['path']})" for item in facts["compilers"]) or "none",
        "nvcc": ", ".join(f"{item['version']} ({item['path']})" for item in facts["nvcc"]) or "none",
        "driver": facts["driver"].get("version") or facts["driver"].get("problem") or "none",
        "gpus": ", ".join(item["name"] for item in facts["gpus"]) or "none",
        "scheduler": facts["scheduler"]["kind"],
        "prefix": f"{prefix['path']}, {(prefix.get('free_bytes') or 0) / 1e9:.1f} GB free"
        + ("" if prefix["writable"] else f", not writable: {prefix.get('reason') or ''}"),
        "environments": ", ".join(item["path"].rsplit("/", 1)[-1] for item in facts["environments"]) or "none",
    }
    return [f"  {name:<13} {visible(value)}" for name, value in rows.items()]


@click.command("verify")
@place_options
@engine_option
@click.option("--quick", is_flag=True, help="Read no contents: stamp, names and versions of packages, link.")
@click.option("--deep", is_flag=True, hidden=True, help="What is done without --quick anyway.")
@click.option(
    "--since",
    metavar="RUN",
    shell_complete=names.runs,
    help="Say what is other than in that run, and nothing else: for cron.",
)
@DEADLINE_OPTION
@common_options
def verify(ui: Ui, /, quick: bool, deep: bool, since: str | None, deadline: float | None, **flags: Any) -> int:
    """Compare every file of the environment in use with its stamp, and the stamp with the lock; exit 1 on drift."""
    from envbuild.cli.progress import RunProgress
    from envbuild.container.run_options import runs_in_jobs_alone
    from envbuild.provision import provision
    from envbuild.schedule.runner import as_login

    if quick and deep:
        raise click.UsageError("--deep reads every file and --quick none: give one of them")
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
    from envbuild.report.diff import told
    from envbuild.report.diff.compare import compare, exit_code

    # Another envbuild that looks is nothing that happened to the nodes.
    changes = [change for change in compare(earlier, evidence) if (change.topic, change.what) != ("run", "envbuild")]
    if changes or evidence.exit or ui.json:
        data = {"since": earlier.run, "run": evidence.run, "changes": [change.as_dict() for change in changes]}
        ui.lines(data, lambda width: told.lines(earlier, evidence, changes, width))
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
    """Run the smoke benchmarks in the environment in use; exit 1 when one fails, 6 below a floor.

    What --only leaves out is named as not checked.
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
    ui.lines(evidence.to_json_dict(), lambda width: summary_lines(evidence, page, width=width))
    told = View(evidence).nodes_by_need[:1] if sys.stdout.isatty() and sys.stderr.isatty() else ()
    for node in evidence.nodes:
        if node.error and not ui.json and node not in told:
            print_error(EnvbuildError.from_dict(node.error))
    return evidence.exit
