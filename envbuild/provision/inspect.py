"""Verbs that ask about built environments and change nothing: `verify`, `smoke`, `probe`, `env list`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envbuild.model.evidence import Evidence
from envbuild.model.lock import Variant
from envbuild.provision.contact.first_contact import DEADLINE
from envbuild.provision.routes import route_of
from envbuild.provision.run.conclude import write_evidence
from envbuild.provision.run.context import Question, Settings, Work
from envbuild.provision.run.findings import Prepared
from envbuild.provision.run.life import about, one_run
from envbuild.provision.run.outcome import Progress
from envbuild.provision.run.run_dir import RunDir
from envbuild.provision.survey.smoke_choice import as_asked, chosen

SMOKE_DEADLINE = 2 * 3600.0


def verify(
    prepared: Prepared, settings: Settings, progress: Progress, *, deep: bool, deadline: float | None = None
) -> tuple[Evidence, RunDir]:
    """Compare the environment in use on every node with its lock and its stamp; exit 1 on drift."""

    def args(variant: Variant, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"variant": variant.to_json_dict(), "deep": deep}

    return _inspect(prepared, settings, progress, Question("verify", args, deadline or (3600.0 if deep else DEADLINE)))


def smoke(prepared: Prepared, settings: Settings, progress: Progress) -> tuple[Evidence, RunDir]:
    """Run the smoke benchmarks in the environment in use on every node; exit 1 or 6 when they do not hold.

    Raises EnvbuildError `smoke-unknown` (exit 2) for a name that `only` gives and the stack does not have.
    """

    from envbuild.provision.fleet.multi_node_smoke import smoke_args

    def args(variant: Variant, stamp: Mapping[str, Any]) -> dict[str, Any]:
        return as_asked(prepared, settings, smoke_args(variant, stamp, prepared.target))

    prepared = chosen(prepared, settings)
    return _inspect(prepared, settings, progress, Question("smoke", args, SMOKE_DEADLINE))


def _inspect(prepared: Prepared, settings: Settings, progress: Progress, question: Question) -> tuple[Evidence, RunDir]:
    with one_run(question.verb, settings, progress, **about(prepared)) as run:
        work = Work(prepared, settings, run.run, run.journal, run.progress)
        nodes = route_of(prepared.target).ask(work, question)
        limits = prepared.limits if question.verb == "smoke" else ()
        evidence = write_evidence(work, question.verb, nodes, warnings=(*limits, *work.notes))
        run.exit = evidence.exit
    return evidence, run.run
