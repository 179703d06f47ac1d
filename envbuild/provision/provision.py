"""The main job: look, plan, carry out, verify, report. One direction, no way back."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from envbuild.lock.variants import hash_unrecorded
from envbuild.model.evidence import Evidence
from envbuild.model.lock import Variant
from envbuild.model.plan import Plan
from envbuild.model.target import Target
from envbuild.provision.contact.first_contact import DEADLINE
from envbuild.provision.run import progress
from envbuild.provision.run.conclude import write_evidence
from envbuild.provision.run.context import Prepared, Question, Route, Settings, Survey, Work, one_work
from envbuild.provision.run.journal import EventKind, Watch, read_journal
from envbuild.provision.run.run_dir import RunDir
from envbuild.provision.survey.prepare import as_asked, chosen
from envbuild.resolve.variant_checks import record_command, unrecorded_files

# (what is built, connection) -> the class; imported when it is needed, for each brings programs of its own along.
_ROUTES = {
    ("environment", "local"): ("environments", "Environments"),
    ("environment", "ssh"): ("fleet.rollout", "OverSsh"),
    ("environment", "job"): ("jobs.provision", "InJobs"),
    ("image", "local"): ("images.provision", "InImages"),
    ("image", "ssh"): ("images.provision", "InImages"),
    ("image", "job"): ("images.jobs", "InJobs"),
}


def route_of(target: Target) -> Route:
    """The route of a target; what has none was refused before (`survey/hosts.py`)."""
    what = "image" if target.engine == "container" else "environment"
    module, name = _ROUTES[what, target.connection.kind]
    route: Route = getattr(import_module(f"envbuild.provision.{module}"), name)()
    return route


def provision(
    prepared: Prepared, settings: Settings, watch: Watch, *, show_plan: Callable[[Plan, Survey], None]
) -> tuple[Evidence, RunDir]:
    """Build the environment of a stack on every node of a target; `show_plan` sees the plan before the work.

    Node failures are in the evidence; raised are errors of the run itself. Either way the journal says how it ended.
    """
    with one_work("provision", prepared, settings, watch) as work:
        _take_bundle(work)
        route = route_of(work.prepared.target)
        plan = route.look_and_plan(work, bring_python=True)
        show_plan(plan, work.survey)
        refuse_unrecorded(work.prepared, plan, work.survey)
        plan, nodes = route.carry_out(work, plan)
        for node in nodes:
            end = {"status": node.status, "exit": node.exit, "error": node.error}
            work.journal.append(EventKind.NODE_FINISHED, node=node.node, **end)
        warnings = (*plan.warnings, *work.notes)
        evidence = write_evidence(work, "provision", nodes, warnings=warnings, pages=not plan.nothing_to_do)
        events = read_journal(work.run.journal_path).events
        progress.learn(progress.folder(), plan, work.survey.facts, events)
    return evidence, work.run


def _take_bundle(work: Work) -> None:
    """The bundle of a run that has one. Raises EnvbuildError as `take_bundle` does."""
    if work.settings.bundle is not None:
        from envbuild.provision.deliver import take_bundle  # few runs bring one

        work.prepared, work.bundle = take_bundle(work.settings.bundle, work.prepared)


def dry_run(prepared: Prepared, settings: Settings, watch: Watch) -> tuple[Plan, Survey]:
    """Look and plan in a run directory that is thrown away; nothing on a node changes."""
    run = RunDir.create(settings.runs_root)
    try:
        with run.open_journal(watch) as journal:
            work = Work(settings, run, journal, prepared=prepared)
            _take_bundle(work)
            plan = route_of(work.prepared.target).look_and_plan(work, bring_python=False)
    finally:
        shutil.rmtree(run.path, ignore_errors=True)
    return plan, work.survey


def refuse_unrecorded(prepared: Prepared, plan: Plan, survey: Survey) -> None:
    """Raise EnvbuildError `hash-unrecorded` (exit 5) where a node would install a file whose hash the lock lacks.

    Nothing is done on any node then: the hash decides what an environment is called.
    """
    for node in plan.nodes:
        if not node.nothing_to_do:
            for file in unrecorded_files(survey.variants[node.node], survey.facts[node.node]):
                raise hash_unrecorded(file, record_command(prepared.reference, plan.profile))


SMOKE_DEADLINE = 2 * 3600.0


def verify(
    prepared: Prepared, settings: Settings, watch: Watch, *, deep: bool, deadline: float | None = None
) -> tuple[Evidence, RunDir]:
    """Compare the environment in use on every node with its lock and its stamp; exit 1 on drift."""
    return _inspect(prepared, settings, watch, _comparison(deep=deep, deadline=deadline))


def _comparison(*, deep: bool, deadline: float | None = None, tested: bool = False) -> Question:
    """`tested`: after a smoke test, so that no note of an earlier one counts."""

    def args(variant: Variant, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"variant": variant.to_json_dict(), "deep": deep, "tested": tested}

    return Question("verify", args, deadline or (3600.0 if deep else DEADLINE))


def smoke(prepared: Prepared, settings: Settings, watch: Watch) -> tuple[Evidence, RunDir]:
    """Run the smoke benchmarks in the environment in use on every node; exit 1 or 6 when they do not hold.

    Where the code is a folder, which changes without a build, the test is followed by what `verify` does (a whole one
    by all of it): one report says which code was tested in which files.
    Raises EnvbuildError `smoke-unknown` (exit 2) for a name that `only` gives and the stack does not have.
    """
    from envbuild.provision.fleet.multi_node_smoke import smoke_args

    def args(variant: Variant, stamp: Mapping[str, Any]) -> dict[str, Any]:
        return as_asked(prepared, settings, smoke_args(variant, stamp, prepared.target))

    prepared = chosen(prepared, settings)
    trees = any(variant.trees for variant in prepared.lock.variants)
    then = _comparison(deep=not settings.only, tested=True) if trees else None
    return _inspect(prepared, settings, watch, Question("smoke", args, SMOKE_DEADLINE, then))


def _inspect(prepared: Prepared, settings: Settings, watch: Watch, question: Question) -> tuple[Evidence, RunDir]:
    with one_work(question.verb, prepared, settings, watch) as work:
        nodes = route_of(prepared.target).ask(work, question)
        limits = prepared.limits if question.verb == "smoke" else ()
        evidence = write_evidence(work, question.verb, nodes, warnings=(*limits, *work.notes))
    return evidence, work.run
