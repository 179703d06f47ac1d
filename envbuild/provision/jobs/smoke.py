"""`smoke` on demand where several nodes are concerned: the joint test over SSH, and everything through one job."""

from __future__ import annotations

import posixpath
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.model.facts import NodeFacts
from envbuild.model.target import Target
from envbuild.provision.contact.first_contact import node_request
from envbuild.provision.fleet import multi_node_smoke
from envbuild.provision.fleet.multi_node_smoke import (
    VERB,
    gpus_of_stamp,
    smoke_args,
    wants_to_meet,
)
from envbuild.provision.jobs.answers import Asked, ask_in_job
from envbuild.provision.jobs.node_local import ensure_step
from envbuild.provision.jobs.site import PROBE_LIMIT, JobSite
from envbuild.provision.jobs.survey import ask_login, login_facts
from envbuild.provision.run.context import Run, Work
from envbuild.provision.run.outcome import Outcome
from envbuild.provision.survey.ask import told_facts
from envbuild.provision.survey.in_use import Current, current_of
from envbuild.provision.survey.prepare import as_asked

JOB_LIMIT = 3600


def smoke_in_job(work: Work) -> tuple[dict[str, Current], Outcome]:
    """One job that tests the environment in use on every node of it, and then several together.

    Raises EnvbuildError of asking the login host and of the job; what single nodes did is in the outcome.
    """
    prepared = work.prepared
    site = JobSite.of(prepared.target)
    with work.phase("probe", f"asking {site.login} which environments are there"):
        facts = ask_login(prepared, site.login, site.connection, work.run)
        plain = [item.to_json_dict() for item in facts.environments]
        found = current_of(prepared, site.login, plain)
    if isinstance(found, EnvbuildError):
        raise found
    requests = _requests(work, site, found)
    folder = posixpath.join(facts.prefix.path, "jobs", work.run.id)
    with work.phase("smoke", "testing through a job"):
        first = ensure_step(prepared.target, facts.prefix.path, prepared.stack.name)
        asked = Asked("envbuild-smoke", folder, requests, before=first)
        answers = ask_in_job(work, site, asked, site.limit(JOB_LIMIT))
    outcome = Outcome()
    for node, verbs in answers.items():
        outcome.responses[node] = {}
        for verb, answer in verbs.items():
            outcome.take(node, verb, answer)
    multi_node_smoke.note_floors(work, outcome)
    return dict.fromkeys(answers, found), outcome


def _requests(work: Work, site: JobSite, found: Current) -> dict[str, dict[str, Any]]:
    environment, variant, stamp = found
    prepared, target = work.prepared, work.prepared.target
    asked = as_asked(prepared, work.settings, smoke_args(variant, stamp, target))
    args = {"stack": prepared.stack.name, "environment": environment, **asked}
    requests = {"smoke": node_request("smoke", target.prefix, args, work.run.id)}
    if site.nodes > 1 and wants_to_meet(variant, target):
        joint = multi_node_smoke.meet_args(variant, target, environment, gpus_of_stamp(variant, stamp))
        requests[VERB] = node_request(VERB, target.prefix, {**joint, "most": target.smoke_nodes}, work.run.id)
    return requests


def probe_in_job(work: Run, target: Target) -> tuple[dict[str, NodeFacts], dict[str, EnvbuildError]]:
    """Facts of the nodes that one short job got, and the errors of those that gave none.

    Raises EnvbuildError of asking the login host and of the job.
    """
    site = JobSite.of(target)
    facts = login_facts(target, None, site.login, site.connection, work.run)
    folder = posixpath.join(facts.prefix.path, "jobs", work.run.id)
    request = node_request("probe", target.prefix, {}, work.run.id)
    answers = ask_in_job(work, site, Asked("envbuild-probe", folder, {"probe": request}), PROBE_LIMIT)
    return told_facts({node: verbs["probe"] for node, verbs in answers.items()})
