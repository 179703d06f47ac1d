"""Look at nodes that are reached through jobs: what earlier jobs found and the login host sees, or one short job.

The prefix is shared, so the login host sees the environments of all nodes; what a node itself is (driver, GPUs,
interpreters) is known only from a job on it, and kept for a week.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Mapping
from typing import Any

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.facts import NodeFacts
from envbuild.provision.bundle import node_pyz
from envbuild.provision.contact import ContactResult, build_script, contact, node_request, parse_output
from envbuild.provision.job_facts import MAX_AGE, facts_file, read_facts, write_facts
from envbuild.provision.job_site import PROBE_LIMIT, JobSite, collect, place
from envbuild.provision.job_wait import finish, run_to_end
from envbuild.provision.keep import can_keep, kept
from envbuild.provision.survey import Survey, decide, probe_args
from envbuild.provision.work import Work
from envbuild.schedule.job import JobStep, job_error

# What the shared prefix says is the same on every node, and newer on the login host than in the facts of an old job.
_SHARED = ("environments", "toolchain", "prefix", "busy")


def survey_jobs(work: Work, site: JobSite) -> Survey:
    """Facts and resolutions of the nodes of a cluster; nodes on which nothing has to be done need no job.

    Raises EnvbuildError `nodes-unknown` (exit 7) where a script is wanted and no earlier job has asked the nodes.
    """
    prepared, survey = work.prepared, Survey()
    shared = look_at_login(work, site)
    scripted = work.settings.script
    known = {} if work.settings.repair and not scripted else read_facts(facts_file(prepared.target, site.login))
    if scripted and not known:
        raise _unknown(site)
    if known:
        survey.facts = {node: facts.model_copy(update=shared) for node, facts in known.items()}
    else:
        _probe(work, site, posixpath.join(shared["prefix"].path, "jobs", work.run.id), survey)
    if can_keep(prepared.choice, prepared.target.base) and not work.settings.repair:
        plans = {node: kept(facts, prepared) for node, facts in survey.facts.items()}
        survey.kept = {node: plan for node, plan in plans.items() if plan is not None}
    rest = [node for node in survey.facts if node not in survey.kept and node not in survey.errors]
    if rest:
        decide(prepared, survey, rest)
    return survey


def _unknown(site: JobSite) -> EnvbuildError:
    return EnvbuildError(
        "nodes-unknown",
        f"nothing is known of the nodes of {site.pool.told}, and printing a script submits no job",
        why=f"no job of envbuild from {site.login} has asked them for {MAX_AGE / 86400:.0f} days",
        hint="`envbuild provision --dry-run` with the same target asks them through one short job",
        exit_code=ExitCode.REFUSED,
    )


def look_at_login(work: Work, site: JobSite) -> dict[str, Any]:
    """What the login host sees of the shared prefix, as fields of `NodeFacts`.

    Raises EnvbuildError as `contact` does: without a login host nothing can be submitted.
    """
    prepared = work.prepared
    args = {"node": site.login, "stack": prepared.stack.name, "verify": True, "brief": True}
    request = node_request("probe", prepared.target.prefix, args, work.run.id)
    answer = contact([site.login], lambda _: request, site.connection)[site.login]
    if isinstance(answer, EnvbuildError):
        raise answer
    facts = NodeFacts.from_plain(answer.result())
    return {name: getattr(facts, name) for name in _SHARED}


def _probe(work: Work, site: JobSite, folder: str, survey: Survey) -> None:
    """One short job that asks all its nodes everything, through first contact, so that they need no Python."""
    prepared = work.prepared
    request = node_request("probe", prepared.target.prefix, probe_args(prepared, everything=True), work.run.id)
    nonce = secrets.token_hex(16)
    script = build_script(request, node_pyz(), nonce)
    place(site.runner, folder, {"probe.sh": script.encode()})
    # The answer appears under its name when it is whole.
    code = (
        'n=$(uname -n); d=$1/probed/${SLURMD_NODENAME:-${n%%.*}}; mkdir -p -- "$d" && '
        '/bin/sh "$1/probe.sh" > "$d/new" 2> "$d/stderr.log" </dev/null; mv -f -- "$d/new" "$d/contact.out"'
    )
    step = JobStep(argv=("/bin/sh", "-c", code, "probe", folder))
    job = site.job("envbuild-probe", [step], folder, PROBE_LIMIT)
    number, state = run_to_end(work, site, job)
    answers = collect(site.runner, posixpath.join(folder, "probed"), ".out")
    for node in sorted({*answers, *state.nodes}):
        _take(node, answers.get(node, {}).get("contact"), nonce, survey)
    if not answers:
        if state.good:
            raise not_shared(folder, number)
        raise job_error(number, state, site.scheduler.logs(job, number, 4096))
    if survey.facts and not survey.errors:
        write_facts(facts_file(prepared.target, site.login), survey.facts)
    finish(work, site, job, number, state, good=not survey.errors)


def _take(node: str, data: bytes | None, nonce: str, survey: Survey) -> None:
    """One node's answer into the survey."""
    if data is None:
        survey.errors[node] = EnvbuildError(
            "node-silent", f"{node} was in the job and said nothing", hint="the log of the job has more",
            exit_code=ExitCode.UNREACHABLE, details={"node": node},
        )  # fmt: skip
        return
    try:
        answer: ContactResult = parse_output(data, nonce, node)
        facts = NodeFacts.from_plain(answer.result())
    except EnvbuildError as error:
        survey.errors[node] = error
        return
    survey.contacts[node] = answer
    # The scheduler's name for a node is the one that people know; hostnames may be equal or long.
    survey.facts[node] = facts.model_copy(update={"node": node})


def not_shared(folder: str, number: str) -> EnvbuildError:
    """A job that ended well and left nothing: it wrote into another folder of the same name."""
    return EnvbuildError(
        "prefix-not-shared",
        f"job {number} ended well, and nothing of it is in {folder}",
        why="its nodes and the host that submits jobs do not see the same folder there",
        hint="choose a `prefix` on a file system that all of them mount",
        exit_code=ExitCode.REFUSED,
    )


def facts_of(answers: Mapping[str, Any], node: str) -> NodeFacts | None:
    """Facts in the answer of a node program's probe; None when it has none."""
    if not answers.get("ok"):
        return None
    return NodeFacts.from_plain(answers["result"]).model_copy(update={"node": node})
