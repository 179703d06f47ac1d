"""The main job: look, plan, carry out, verify, report. One direction, no way back."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from envbuild.errors import EnvbuildError
from envbuild.lock.unpinned import hash_unrecorded
from envbuild.model.evidence import Evidence
from envbuild.model.plan import Plan
from envbuild.provision.routes import route_of
from envbuild.provision.run import durations
from envbuild.provision.run.conclude import write_evidence
from envbuild.provision.run.context import Settings, Work
from envbuild.provision.run.findings import Prepared, Survey
from envbuild.provision.run.journal import EventKind, read_journal
from envbuild.provision.run.life import about, one_run
from envbuild.provision.run.outcome import Progress
from envbuild.provision.run.run_dir import RunDir
from envbuild.resolve.variant_checks import record_command, unrecorded_files


def provision(
    prepared: Prepared, settings: Settings, progress: Progress, *, show_plan: Callable[[Plan, Survey], None]
) -> tuple[Evidence, RunDir]:
    """Build the environment of a stack on every node of a target; `show_plan` sees the plan before the work.

    Node failures are in the evidence; raised are errors of the run itself. Either way the journal says how it ended.
    """
    with one_run("provision", settings, progress, **about(prepared)) as run:
        work, route = Work(prepared, settings, run.run, run.journal, run.progress), route_of(prepared.target)
        plan = route.look_and_plan(work, bring_python=True)
        show_plan(plan, work.survey)
        refuse_unrecorded(prepared, plan, work.survey)
        plan, nodes = route.carry_out(work, plan)
        for node in nodes:
            told = {"status": node.status, "exit": node.exit, "error": node.error}
            work.journal.append(EventKind.NODE_FINISHED, node=node.node, **told)
        warnings = (*plan.warnings, *work.notes)
        evidence = write_evidence(work, "provision", nodes, warnings=warnings, pages=not plan.nothing_to_do)
        run.exit = evidence.exit
        events = read_journal(run.run.journal_path).events
        durations.learn(durations.folder(), plan, work.survey.facts, work.rough, events)
    return evidence, run.run


def dry_run(prepared: Prepared, settings: Settings, progress: Progress) -> tuple[Plan, Survey]:
    """Look and plan in a run directory that is thrown away; nothing on a node changes."""
    run = RunDir.create(settings.runs_root)
    try:
        with run.open_journal() as journal:
            work = Work(prepared, settings, run, journal, progress)
            plan = route_of(prepared.target).look_and_plan(work, bring_python=False)
    finally:
        shutil.rmtree(run.path, ignore_errors=True)
    return plan, work.survey


def fetch_only(prepared: Prepared, settings: Settings, progress: Progress) -> tuple[Plan, Survey]:
    """Look, plan, and put what a job needs under the shared prefix from the login host; no job builds anything.

    Raises EnvbuildError `fetch-only-without-jobs` (exit 2) for a target whose nodes are reached otherwise.
    """
    if prepared.target.connection.kind != "job":
        raise EnvbuildError(
            "fetch-only-without-jobs",
            f"nothing can be staged for the target {prepared.target.name}",
            why=f"its connection is {prepared.target.connection.kind}: there is no login host that stages for others",
            hint="leave `--fetch-only` away",
        )
    from envbuild.provision.jobs.route import InJobs

    with one_run("fetch", settings, progress, **about(prepared)) as run:
        work = Work(prepared, settings, run.run, run.journal, run.progress)
        route = InJobs()
        plan = route.look_and_plan(work, bring_python=True)
        refuse_unrecorded(prepared, plan, work.survey)
        if not plan.nothing_to_do:
            plan = route.stage(work, plan)
    return plan, work.survey


def refuse_unrecorded(prepared: Prepared, plan: Plan, survey: Survey) -> None:
    """Raise EnvbuildError `hash-unrecorded` (exit 5) where a node would install a file whose hash the lock lacks.

    Nothing is done on any node then: the hash decides what an environment is called.
    """
    for node in plan.nodes:
        if not node.nothing_to_do:
            for file in unrecorded_files(survey.variants[node.node], survey.facts[node.node]):
                raise hash_unrecorded(file, record_command(prepared.reference, plan.profile))
