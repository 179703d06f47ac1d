"""What the jobs of a run ask of their nodes, and what a plan says of these jobs before any is submitted."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild.model.plan import NodePlan, Plan
from envbuild.node_program import node_pyz
from envbuild.plan.planner import compiled, limit_of
from envbuild.plan.sharing import builder_of
from envbuild.plan.tools import NodeTools
from envbuild.provision.contact.first_contact import look_script, node_request
from envbuild.provision.fleet.multi_node_smoke import VERB as MEET
from envbuild.provision.fleet.multi_node_smoke import gpus_of, job_request, wants_to_meet
from envbuild.provision.jobs.site import PROBE_LIMIT, JobSite, is_local
from envbuild.provision.run.context import Prepared, Survey
from envbuild.provision.run.run_dir import MAX_AGE
from envbuild.provision.survey.ask import probe_args
from envbuild.schedule.job import Job, JobStep
from envbuild.schedule.script import ensure_file, ensure_script
from envbuild.text import few

# The name of the files of `node/logs.py` in the folder of a job.
PROGRESS = "progress"
# Of a container's job where the target names no time, in seconds.
IMAGE_LIMIT = 3600
SMOKE_LIMIT = 3600  # of the job of `smoke`, likewise
# Stands for the id of a run that has not begun.
RUN = "RUN"
# By the name of an answer what is asked; of `ensure`, the request is there only once `activate` has written it.
Requests = Mapping[str, dict[str, Any] | None]


@dataclass(frozen=True)
class Asked:
    """What the nodes of the job `name` are asked: `requests`, each node one after the other.

    `folder`: `jobs/<run>` below what login host and nodes share. `before`: what the job does first; `once`: what then
    only its first node is asked; `after`: what all are asked once all have answered the rest well. `stops`: the first
    request that goes wrong on a node is its last there.
    """

    name: str
    folder: str
    requests: Requests
    before: Sequence[JobStep] = ()
    once: Requests = field(default_factory=dict)
    after: Requests = field(default_factory=dict)
    stops: bool = False

    def steps(self) -> Iterator[JobStep]:
        """What the job does."""
        run = ("/bin/sh", f"{self.folder}/run.sh", *(() if self.stops or self.after else ("-k",)), self.folder)
        yield from self.before
        if self.once:
            yield JobStep(argv=(*run, *_words(self.once)), each="once")
        yield JobStep(argv=(*run, *_words(self.requests)))
        if self.after:
            yield JobStep(argv=(*run, *_words(self.after)))

    def job(self, site: JobSite, limit: int) -> Job:
        """The job that does it, in `limit` seconds at most. Raises EnvbuildError as `site.job` does."""
        return site.job(self.name, list(self.steps()), self.folder, limit)

    def files(self) -> dict[str, bytes]:
        """What lies in the folder: `job_run.sh`, and what it runs on every node."""
        named = {**self.once, **self.requests, **self.after}
        requests = {name: request for name, request in named.items() if request is not None}
        # Nodes without a Python of their own have one where tools were staged.
        top, prefix = posixpath.dirname(posixpath.dirname(self.folder)), next(iter(requests.values()))["prefix"]
        files = {
            "run.sh": run_script().encode(),
            "requests/findings.sh": look_script(prefix, top).encode(),
            "requests/node.pyz": node_pyz(),
        }
        for name, request in requests.items():
            # A probe has nothing to tell meanwhile, and also a Python runs it that is too old to.
            more = {"progress": f"{self.folder}/{PROGRESS}"} if request["verb"] != "probe" else {}
            asked = {**request, "args": {**more, **request["args"]}}
            files[f"requests/{name}.json"] = json.dumps(asked, allow_nan=False).encode()
        return files


def run_script() -> str:
    """What a job runs on each of its nodes: `run.sh` of its folder."""
    return Path(__file__).with_name("job_run.sh").read_text("utf-8")


def _words(requests: Requests) -> list[str]:
    """For `job_run.sh` what is asked: names, with the verb where that is another."""
    verbs = {name: name if request is None else request["verb"] for name, request in requests.items()}
    return [name if name == verb else f"{name}:{verb}" for name, verb in verbs.items()]


def asked_for_facts(top: str, run: str, request: dict[str, Any] | None = None) -> Asked:
    """What the short job asks all its nodes."""
    return Asked("envbuild-probe", posixpath.join(top, "jobs", run), {"probe": request})


def asked_to_build(
    builder: NodePlan, prepared: Prepared, survey: Survey, tools: NodeTools, run: str, nodes: int
) -> Asked:
    """What the job of a run asks its `nodes`: one builds, all test."""
    target, top = prepared.target, survey.facts[builder.node].stage_prefix
    folder = posixpath.join(top, "jobs", run)
    variant, facts = survey.variants[builder.node], survey.facts[builder.node]
    prefix = facts.prefix.path
    planned = {str(step.request["verb"]): step.request for step in builder.steps if step.request is not None}
    about = {"stack": prepared.stack.name, "environment": builder.environment}
    checked = {**about, "variant": variant.to_json_dict(), "deep": False}
    tested: dict[str, dict[str, Any] | None] = {
        "probe": node_request("probe", prefix, probe_args(prepared), run),
        **{verb: request for verb, request in planned.items() if verb == "smoke"},
        "verify": node_request("verify", prefix, checked, run),
    }
    if is_local(target):
        if "install" in planned:
            # How all nodes get the same, now and later.
            publish = {
                "folder": posixpath.join(top, "ensure"),
                "script": ensure_script(top, prepared.stack.name, tools.python, tools.pyz),
                "install": planned["install"]["args"],
                "requests": [posixpath.join(folder, "requests", "ensure.json")],
            }
            activate = planned["activate"]
            planned["activate"] = {**activate, "args": {**activate["args"], "publish": publish}}
        # `activate` writes the request of `ensure`, which finds nothing to do on the node that built.
        tested = {"ensure": None, **tested}
    meeting = job_request(target, run, variant, builder.environment, gpus_of(variant, facts, target), nodes)
    return Asked("envbuild-provision", folder, tested, once=planned, after=meeting, stops=True)


def asked_to_test(
    prepared: Prepared, top: str, run: str, requests: Requests, meeting: Mapping[str, dict[str, Any] | None]
) -> Asked:
    """What the job of `smoke` asks its nodes: the `requests`, then what `meeting` asks them together."""
    # Nodes may have lost an environment of their own; one that cannot have it goes on, and its answers say so.
    code = '/bin/sh "$1" > /dev/null || echo "$(uname -n): the environment is not there" >&2'
    ensure = ("/bin/sh", "-c", code, "ensure", ensure_file(top, prepared.stack.name))
    first = [JobStep(argv=ensure)] if is_local(prepared.target) else []
    return Asked("envbuild-smoke", posixpath.join(top, "jobs", run), requests, before=first, after=meeting)


def smoke_job(prepared: Prepared, site: JobSite, top: str) -> Job:
    """The job of `smoke` where nobody looked which environment is in use. Raises EnvbuildError as `site.job` does."""
    target, variants = prepared.target, prepared.lock.variants
    if target.engine == "container":
        asked = Asked("envbuild-smoke", posixpath.join(top, "jobs", RUN), {"ask": {"verb": "container"}})
        return asked.job(site, site.limit(IMAGE_LIMIT))
    verbs = ["smoke", *(["verify"] if any(variant.trees for variant in variants) else [])]
    together = site.nodes > 1 and any(wants_to_meet(variant, target) for variant in variants)
    asked = asked_to_test(prepared, top, RUN, dict.fromkeys(verbs), {MEET: None} if together else {})
    return asked.job(site, site.limit(SMOKE_LIMIT))


def all_nodes(site: JobSite, job: Job) -> str:
    """What to say of the nodes of a job that takes all there are, as nobody said how many that is; else empty."""
    if site.target.scheduler.nodes or site.asked:
        return ""
    where = job.queue or "the default partition"
    return f"; `nodes` is not set, so it takes all nodes in service of {where}, and this is of one"


def jobs_of(plan: Plan, prepared: Prepared, survey: Survey, site: JobSite) -> tuple[Job, Job]:
    """The jobs of a run that carries out the plan: the one that asks nodes of which nothing is known, and that which
    builds. Raises EnvbuildError as `site.job` does.
    """
    target, first = prepared.target, next(node for node in plan.nodes if node.steps)
    top = survey.facts[first.node].stage_prefix
    if target.engine == "container":
        folder = posixpath.join(top, "jobs", RUN)
        look = {"look": {"verb": "container"}}
        asking = Asked("envbuild-probe", folder, look)
        building = Asked("envbuild-provision", folder, {**look, "container": None})
        return asking.job(site, PROBE_LIMIT), building.job(site, site.limit(IMAGE_LIMIT))
    # Which programs answer stands in their requests, not in the script.
    tools = NodeTools((), "", "", "", None)
    building = asked_to_build(builder_of(plan), prepared, survey, tools, RUN, site.nodes)
    return asked_for_facts(top, RUN).job(site, PROBE_LIMIT), building.job(site, limit_of(plan, target))


def job_lines(plan: Plan, prepared: Prepared, site: JobSite, jobs: tuple[Job, Job]) -> list[str]:
    """What the plan says of its jobs: nodes, time, GPU-hours and account, and what of it nobody knows."""
    target, (asking, building) = prepared.target, jobs
    count = all_nodes(site, building)
    like = f"; all taken to be like {'this one' if len(plan.nodes) == 1 else 'these'}"
    login = target.connection.login
    at = "@".join(filter(None, (login.user or target.connection.user, login.host))) if login else "this machine"
    text = f"{site.cost(building)}, submitted from {at}{count}{like if len(plan.nodes) < building.nodes else ''}"
    if building.nodes > 1 and target.engine != "container":
        together = any(isinstance(step, JobStep) and step.argv[-1] == MEET for step in building.steps)
        text += f"; one node builds and all test{', then together (`meet`)' if together else ''}"
    if not site.asked:
        text += f"; {site.not_asked}"
    if not target.scheduler.time_limit:
        hour, four = "an hour", "four times the estimated seconds, 30 minutes at least"
        text += f"; no `time_limit`, so {hour if target.engine == 'container' else four}"
    if built := compiled(plan):
        cure = "" if target.scheduler.time_limit else ": set `time_limit`"
        took = "; ".join(prepared.built_in)
        text += f"; how long {few(built)} compile there is not known{took and f' ({took})'}{cure}"
    first = f"comes first, unless a job has asked the nodes in the last {MAX_AGE / 86400:.0f} days"
    return [f"facts: {site.cost(asking)}{count}; {first}", f"job: {text}"]
