"""Look at nodes that are reached through jobs: what earlier jobs found and the login host sees, or one short job.

The prefix is shared, so the login host sees the environments of all nodes; where each node has a disk of its own, the
folder that they share says what nodes get. What a node itself is (driver, GPUs, interpreters) is known only from a job
on it, and kept for a week.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import platformdirs

from envbuild.errors import EnvbuildError
from envbuild.hostlist import expand_hosts
from envbuild.model.facts import NodeFacts
from envbuild.model.target import Target, as_login
from envbuild.provision.ansible.play import run_hosts
from envbuild.provision.ansible.steps import NodeHost, tmp_folder
from envbuild.provision.contact.first_contact import ContactResult, contact, node_request
from envbuild.provision.contact.payload import write_payload
from envbuild.provision.contact.toolchain import first_tool
from envbuild.provision.jobs.answers import ask_in_job
from envbuild.provision.jobs.asked import asked_for_facts
from envbuild.provision.jobs.site import PROBE_LIMIT, JobSite, is_local
from envbuild.provision.run.context import Prepared, Run, Survey, Work
from envbuild.provision.run.run_dir import MAX_AGE, RunDir, keep, read_recent
from envbuild.provision.survey.ask import (
    decide_rest,
    is_reach_known,
    keep_in_use,
    probe_args,
    python_broken,
    told_facts,
)


def facts_file(target: Target, login: str) -> Path:
    """Where facts of a target's nodes are kept: one file a login host, partition and kind of node asked for."""
    scheduler = target.scheduler
    hosts = target.hosts if isinstance(target.hosts, tuple) else target.hosts.given
    asked = [login, scheduler.kind, hosts, scheduler.queue, scheduler.constraints, scheduler.nodes, target.prefix]
    if scheduler.modules is not None:
        # They decide which programs a probe finds.
        asked.append(scheduler.modules.to_json_dict())
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
    return platformdirs.user_cache_path("envbuild") / "nodes" / f"{target.name}-{digest}.json"


def read_answers(path: Path) -> dict[str, dict[str, Any]]:
    """By node what it said in the last week, its facts among it; empty where this envbuild cannot read them."""
    try:
        answers: dict[str, dict[str, Any]] = read_recent(path) or {}
        for answer in answers.values():
            NodeFacts.from_plain(answer["facts"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
    return answers


def keep_answers(path: Path, answers: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep them; forget what was kept where there are none. A cache that cannot be written is no error."""
    if answers:
        keep(path, answers)
        return
    with suppress(OSError):
        path.unlink(missing_ok=True)


def read_facts(path: Path) -> dict[str, NodeFacts]:
    """The facts among the answers, by node."""
    return {node: NodeFacts.from_plain(answer["facts"]) for node, answer in read_answers(path).items()}


def write_facts(path: Path, facts: Mapping[str, NodeFacts]) -> None:
    """Keep nothing but facts; forget all where there are none."""
    keep_answers(path, {node: {"facts": item.to_json_dict()} for node, item in facts.items()})


# What the shared prefix says is the same on every node, and newer on the login host than in the facts of an old job.
_SHARED = ("environments", "toolchain", "prefix", "busy")


def survey_jobs(work: Work, site: JobSite, *, bring_python: bool = False, anew: bool = False) -> Survey:
    """Facts and resolutions of the nodes of a cluster; nodes on which nothing has to be done need no job.

    `bring_python`: stage a Python for nodes that have none, and ask again; else they are among `without_python`.
    `anew`: do not rely on what an earlier job has found.

    Raises EnvbuildError `nodes-unknown` (exit 7) where a script is wanted and no earlier job has asked the nodes.
    """
    prepared, survey = work.prepared, Survey()
    top, shared = look_at_login(work, site)
    scripted = work.settings.script
    # What a base provides is part of the identity: an answer of last week may name another environment.
    based = prepared.target.base not in (None, "none") or all(v.base.kind != "none" for v in prepared.lock.variants)
    anew = anew or work.settings.repair or based
    known = {} if anew and not scripted else read_facts(facts_file(prepared.target, site.login))
    if scripted and not known:
        raise EnvbuildError(
            "nodes-unknown",
            f"envbuild knows nothing of the nodes of {site.pool.label}, and printing a script submits no job",
            why=f"no job of envbuild from {site.login} has probed them for {MAX_AGE / 86400:.0f} days",
            hint="`envbuild provision --dry-run` with the same target probes the nodes in one short job; "
            "`--facts FILE|NAME` prints the script from recorded facts",
        )
    if known:
        survey.facts = known
    else:
        _probe(work, site, top, work.run.id, survey)
        if bring_python and survey.without_python:
            survey = _bring_python(work, site, top, survey)
            top, shared = look_at_login(work, site)
    if is_local(prepared.target):
        for node, facts in survey.facts.items():
            # The environment only where its own disk had it.
            own = {(item.path, item.root) for item in facts.environments if item.stamp}
            there = tuple(item for item in shared["environments"] if (item.path, item.root) in own)
            survey.facts[node] = facts.model_copy(update={**shared, "environments": there})
    elif known:
        survey.facts = {node: facts.model_copy(update=shared) for node, facts in known.items()}
    if not work.settings.repair:
        keep_in_use(prepared, survey)
    rest = survey.undecided
    if rest and known and not scripted and not is_reach_known(prepared, survey):
        return survey_jobs(work, site, bring_python=bring_python, anew=True)
    decide_rest(prepared, survey)
    if is_local(prepared.target):
        _keep_only_wanted(survey, prepared, rest)
    return survey


def _keep_only_wanted(survey: Survey, prepared: Prepared, nodes: list[str]) -> None:
    """Forget an environment that is not the one that was chosen, or has other variables: all is done again then.

    A change of the link or of variables alone has to reach all nodes too, and only a new request of `ensure` does.
    """
    for node in nodes:
        variant, facts = survey.variants.get(node), survey.facts[node]
        if variant is None:
            continue
        variables = variant.variables(prepared.target.environment)
        good = tuple(
            item
            for item in facts.environments
            if item.here == variant.here and (item.stamp or {}).get("variables") == variables
        )
        survey.facts[node] = facts.model_copy(update={"environments": good})


def look_at_login(work: Work, site: JobSite) -> tuple[str, dict[str, Any]]:
    """The folder that login host and nodes share, and what is seen of it there, as fields of `NodeFacts`.

    Raises EnvbuildError as `contact` does: without a login host nothing can be submitted; and `shared-missing`.
    """
    facts = login_facts(site.target, work.prepared.stack.name, work.run)
    if is_local(work.prepared.target):
        seen = {"environments": facts.environments, "toolchain": facts.toolchain, "busy": None}
        return facts.prefix.path, {**seen, "shared": facts.prefix.path}
    return facts.prefix.path, {name: getattr(facts, name) for name in _SHARED}


def login_facts(target: Target, stack: str | None, run: RunDir | None = None) -> NodeFacts:
    """Brief facts of the login host; its prefix is there the folder that it shares with the nodes.

    Raises EnvbuildError as `contact` does, and `shared-missing` (exit 2).
    """
    if (local := is_local(target)) and target.shared is None:
        raise EnvbuildError(
            "shared-missing",
            f"the target {target.name} names no folder that its login node and nodes share",
            why="`placement: node-local` keeps jobs, tools and bundles in such a folder, and the prefix on each node",
            hint="`shared: /path/on/the/shared/file/system` in the target file; or `placement: shared`",
        )
    args = {"stack": stack, "verify": stack is not None, "brief": True, "published": local}
    return NodeFacts.from_plain(ask_login(target, "probe", args, run).result())


def ask_login(target: Target, verb: str, args: Mapping[str, Any], run: RunDir | None) -> ContactResult:
    """Ask the login host with a verb of the node program; `node` in its arguments is the host's own name."""
    host = as_login(target)
    (login,) = expand_hosts(host.hosts)
    request = node_request(verb, host.prefix, {"node": login, **args}, run.id if run else "-")
    return contact({login: request}, host.connection, run=run)[login]


def _ask(work: Run, site: JobSite, top: str, run: str, args: Mapping[str, Any]) -> dict[str, ContactResult]:
    """What the nodes of one short job answer to a probe; `run` names its folder below `top`."""
    request = node_request("probe", site.target.prefix, args, work.run.id)
    answers = ask_in_job(work, site, asked_for_facts(top, run, request), PROBE_LIMIT)
    return {node: verbs["probe"] for node, verbs in answers.items()}


def _probe(work: Work, site: JobSite, top: str, run: str, survey: Survey) -> None:
    """The same, into the survey, with everything that a plan needs."""
    prepared = work.prepared
    for node, answer in _ask(work, site, top, run, probe_args(prepared)).items():
        survey.take(node, answer)
    if survey.facts and not survey.errors and not survey.without_python:
        write_facts(facts_file(prepared.target, site.login), survey.facts)


def _bring_python(work: Work, site: JobSite, top: str, bare: Survey) -> Survey:
    """Stage a Python below `top` for the nodes that have none, and ask through another job, which may get others."""
    work.journal.stage(f"staging a Python on {site.login}: {', '.join(bare.without_python)} without one")
    paths = stage_python(work, site, top, {node: bare.contacts[node] for node in bare.without_python})
    again = Survey()
    _probe(work, site, top, f"{work.run.id}-again", again)
    brought = ", ".join(sorted(set(paths.values())))
    again.errors.update({node: python_broken(node, paths.get(node, brought)) for node in again.without_python})
    return again


def probe_in_job(work: Run, target: Target) -> tuple[dict[str, NodeFacts], dict[str, EnvbuildError]]:
    """Facts of the nodes that one short job got, and the errors of those that gave none.

    Raises EnvbuildError of asking the login host and of the job.
    """
    site = JobSite.of(target)
    facts = login_facts(target, None, work.run)
    return told_facts(_ask(work, site, facts.prefix.path, work.run.id, {}))


def login_work(work: Work, site: JobSite) -> Work:
    """The run with the login host as its only node."""
    return replace(work, prepared=work.prepared._replace(target=as_login(site.target)), tasks=0)


def on_login(
    work: Work, site: JobSite, files: NodeHost, requests: Mapping[str, dict[str, Any]], playbook: str
) -> Mapping[str, Mapping[str, Any]]:
    """What the login host answers in a play of its own. Raises the EnvbuildError of a step that failed there."""
    there = login_work(work, site)
    outcome = run_hosts({site.login: requests}, {site.login: files}, there, playbook=playbook)
    work.tasks += there.tasks
    if (error := outcome.error_of(site.login)) is not None:
        raise error
    return outcome.responses.get(site.login, {})


def stage(files: NodeHost | None, work: Work, site: JobSite) -> None:
    """Put tools and bundles there. Raises the EnvbuildError of a step that failed on the login host."""
    if files is not None and (files.payload is not None or files.bundles):
        on_login(work, site, files, {}, "provision.yml")


def stage_python(work: Work, site: JobSite, top: str, bare: Mapping[str, ContactResult]) -> dict[str, str]:
    """Put a Python below `top` for nodes that have none; its path by node.

    Raises EnvbuildError `interpreter-missing` (exit 7), `interpreter-mismatch` (exit 5), and as the download and
    `stage` do.
    """
    given = work.prepared.lock.variants
    tools = {node: first_tool(answer, given, work.settings.toolchain_file) for node, answer in bare.items()}
    payload = work.run.staging / "python.sh"
    write_payload(payload, list({tool.folder: tool for tool in tools.values()}.values()), prefix=top, packed=True)
    paths = {node: tool.path(top) for node, tool in tools.items()}
    user = next(iter(bare.values())).findings.get("user", "")
    tmp = tmp_folder(work.prepared.target.tmp, user) or posixpath.join(top, "tmp")
    stage(NodeHost(site.login, next(iter(paths.values())), "", payload=payload, tmp=tmp, prefix=top), work, site)
    return paths
