"""The ways to the nodes of a target: what they get, and how they are reached. Nothing else asks which engine it is."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from envbuild.model.evidence import NodeEvidence
from envbuild.model.plan import Plan
from envbuild.model.target import Target
from envbuild.provision.run.context import Question, Work


class Route(Protocol):
    """What a run does with one kind of target. Errors of single nodes are in the evidence, others are raised."""

    def look_and_plan(self, work: Work, *, bring_python: bool) -> Plan:
        """Ask the nodes, decide for each, and plan; `bring_python`: also put a Python where there is none."""

    def carry_out(self, work: Work, plan: Plan) -> tuple[Plan, list[NodeEvidence]]:
        """Do what the plan says and verify it; the plan as it was carried out, and the evidence."""

    def ask(self, work: Work, question: Question) -> list[NodeEvidence]:
        """`verify` or `smoke` of what is in use."""


# (engine, connection) -> the class; imported when it is needed, for each brings programs of its own along.
_ROUTES = {
    ("venv", "local"): ("environments", "Environments"),
    ("venv", "ssh"): ("environments", "OverSsh"),
    ("venv", "job"): ("jobs.route", "InJobs"),
    ("conda", "local"): ("environments", "Environments"),
    ("conda", "ssh"): ("environments", "OverSsh"),
    ("conda", "job"): ("jobs.route", "InJobs"),
    ("container", "local"): ("images.provision", "InImages"),
    ("container", "ssh"): ("images.provision", "OverSsh"),
    ("container", "job"): ("images.jobs", "InJobs"),
}


def route_of(target: Target) -> Route:
    """The route of a target; what has none was refused before (`survey/supported.py`)."""
    module, name = _ROUTES[target.engine, target.connection.kind]
    route: Route = getattr(import_module(f"envbuild.provision.{module}"), name)()
    return route
