"""Environments through jobs: one job that builds on its first node and tests on all, and what its nodes answered."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.model.evidence import NodeEvidence
from envbuild.model.facts import NodeFacts
from envbuild.model.plan import NodePlan, Plan
from envbuild.model.target import Target
from envbuild.node.redact import secrets_of
from envbuild.plan.planner import limit_of
from envbuild.plan.sharing import builder_of, other_steps
from envbuild.plan.tools import NodeTools
from envbuild.provision.contact.first_contact import ContactResult, node_request
from envbuild.provision.environments import Environments, asked_evidence, stage
from envbuild.provision.fleet.multi_node_smoke import gpus_of_stamp, job_request, note_floors
from envbuild.provision.fleet.sharing import not_built, smoke_failed
from envbuild.provision.jobs.answers import ask_in_job
from envbuild.provision.jobs.asked import SMOKE_LIMIT, asked_to_build, asked_to_test
from envbuild.provision.jobs.site import UNASKED, JobSite, cpus_unknown, is_local
from envbuild.provision.jobs.survey import facts_file, login_facts, survey_jobs, write_facts
from envbuild.provision.jobs.survey import stage as stage_on_login
from envbuild.provision.run.context import Outcome, Question, Work
from envbuild.provision.run.evidence import all_well, first_error, of_another_kind
from envbuild.provision.survey.ask import current_of, decide
from envbuild.schedule.job import JobStep
from envbuild.text import comment

# Without envbuild, there is nothing to test on other nodes.
ONE_NODE = """\
# Whatever the target says, this file asks for one node, which builds; `envbuild provision` alone tests on every node.
"""
_OTHER = """\
# `envbuild provision` submits another job, which also tests: `envbuild plan -v` with the same target prints it.
"""
# The launch of the same target, printed in the same shell, uses the environment of the same user.
_OWN = "`{{user}}` is {0.user} and `{{home}}` {0.home}: if jobs of yours have others, set an absolute `prefix:`."
Answers = Mapping[str, Mapping[str, ContactResult]]


def _with_common_python(builder: NodePlan, work: Work) -> NodeTools:
    """The tools of the builder; where a node needs a staged Python, it runs the node program on all of them."""
    facts, tools = work.survey.facts[builder.node], work.tools[builder.node]
    there = {*facts.toolchain, *(tool.folder for tool in tools.tools)}
    below = posixpath.join(facts.stage_prefix, "tools", "")
    for known in work.tools.values():
        if known.python.startswith(below) and known.python.removeprefix(below).partition("/")[0] in there:
            return tools._replace(python=known.python)
    return tools


def job_script(plan: Plan, site: JobSite, text: str, facts: Iterable[NodeFacts]) -> tuple[str, str]:
    """The sbatch or qsub file that does with bash alone what the plan does, and what nobody knows of its request.

    `text` is the script of its builder. `facts`: the recorded ones that the plan was made from.
    """
    target, limit = site.target, limit_of(plan, site.target)
    job = site.job("envbuild", [JobStep(argv=("true",))], "/", limit)
    job = job.model_copy(update={"nodes": 1, "queue": site.pool.queue(1, limit)})
    unknown = cpus_unknown(site, job)
    notes = UNASKED * (not site.asked) + (f"{comment(unknown)}\n" if unknown else "")
    notes += "".join({f"{comment(_OWN.format(node))}\n": None for node in facts})
    notes += _OTHER + ONE_NODE * (target.scheduler.nodes != 1)
    whole = text.replace("\n", f"\n{notes}", 1)
    return site.scheduler.render_body(job, whole, secrets_of(target.environment)), unknown


def refuse_script(target: Target) -> None:
    """Raises EnvbuildError `script-impossible` (exit 7): bash alone brings one environment to one prefix."""
    if target.engine == "container":
        raise EnvbuildError(
            "script-impossible",
            "envbuild cannot print a script for images",
            why="the node program takes an image in and tests inside it",
            hint="`envbuild provision` does that; `envbuild image build` only builds the image",
        )
    if is_local(target):
        raise EnvbuildError(
            "script-impossible",
            "envbuild cannot print a script for node-local environments",
            why="every job begins with the node program, which installs what its node lacks",
            hint="begin your jobs with `/bin/sh SHARED/ensure/STACK.sh`; with `placement: shared` there is a script",
        )


def _outcome(plan: Plan, builder: NodePlan, answers: Answers, work: Work) -> tuple[Plan, Outcome]:
    """Plan and outcome by the nodes that the job really had."""
    outcome = Outcome()
    responses = {
        node: {verb: answer.response for verb, answer in verbs.items() if answer.response}
        for node, verbs in answers.items()
    }
    built_on = next((node for node, verbs in responses.items() if "activate" in verbs or "install" in verbs), None)
    tests = other_steps(builder, built_on or "the first node", local=is_local(work.prepared.target))
    survey, nodes = work.survey, []
    planned, resolution = survey.facts[builder.node], builder.resolution
    variant, tools = survey.variants[builder.node], work.tools[builder.node]
    survey.facts = {node: _facts(node, verbs, planned) for node, verbs in responses.items()}
    survey.errors, survey.resolutions, survey.variants, work.tools = {}, {}, {}, {}
    decide(work.prepared, survey, answers)
    for node, verbs in responses.items():
        probed = verbs.pop("probe", None)
        outcome.responses[node] = verbs
        error = first_error(verbs.values())
        if error is None and probed is not None:
            error = _misfit(work, node, builder.variant_digest)
        if error is None and all_well(verbs):
            owed = (answers[node][verb].failure for verb in ("verify", "meet") if verb in answers[node])
            unsaid = next(filter(None, owed), None)
            error = unsaid and (_not_built(node, built_on, responses) or unsaid)
        if error is not None:
            outcome.errors[node] = error
        survey.variants[node], work.tools[node] = variant, tools
        chosen = survey.resolutions.get(node) or resolution.model_copy(update={"node": node})
        steps = builder.steps if node == built_on else tests
        nodes.append(builder.model_copy(update={"node": node, "steps": steps, "resolution": chosen}))
    return plan.model_copy(update={"nodes": tuple(nodes)}), outcome


def _facts(node: str, verbs: Mapping[str, Any], planned: NodeFacts) -> NodeFacts:
    """The node's own; where it said nothing, those of the node that the plan was made for, under its name."""
    probe = verbs.get("probe") or {}
    if not probe.get("ok"):
        return planned.model_copy(update={"node": node, "hostname": node})
    return NodeFacts.from_plain(probe["result"]).model_copy(update={"node": node, "shared": planned.shared})


def _misfit(work: Work, node: str, digest: str) -> EnvbuildError | None:
    """An error where the rules would not choose for this node what was built from another node's facts."""
    resolution, variant = work.survey.resolutions.get(node), work.survey.variants.get(node)
    if resolution is None or (variant is not None and variant.digest == digest):
        return None
    why = f"for it, the rules choose {resolution.variant_id or 'nothing'}"
    return of_another_kind(node, "the node that the plan was made for", why)


def _not_built(node: str, built_on: str | None, responses: Mapping[str, Mapping[str, Any]]) -> EnvbuildError | None:
    """Why a node has not tested where the one that built for it failed."""
    if built_on in (None, node) or all_well(responses[built_on]):
        return None
    error = first_error(responses[built_on].values()) or smoke_failed(responses[built_on])
    return not_built(node, built_on, error)


class InJobs(Environments):
    """The login host is asked, then jobs: what nodes share is staged from there, one node builds and all test."""

    def look(self, work: Work, *, bring_python: bool) -> None:
        """Ask the login host, and nodes through a job where nothing is known of them."""
        nodes = "" if work.settings.script else "; unknown nodes through a job"
        with work.phase("probe", f"contacting the login node{nodes}"):
            site = JobSite.of(work.prepared.target)
            work.survey = survey_jobs(work, site, bring_python=bring_python)
            work.survey.pool = site.pool

    def bring(self, work: Work, plan: Plan) -> tuple[Plan, Outcome]:
        """Put tools and bundles under the prefix, from the login host, then one job; plan and outcome of its nodes.

        Raises EnvbuildError of submitting and waiting; what single nodes did is in the outcome.
        """
        site, builder = JobSite.of(work.prepared.target), builder_of(plan)
        plan, files = stage(work, plan, only=builder.node)
        with work.phase("stage", f"staging on {site.login}"):
            stage_on_login(files.get(builder.node), work, site)
        with work.phase("provision", "provisioning through a job"):
            work.tools[builder.node] = tools = _with_common_python(builder, work)
            asked = asked_to_build(builder, work.prepared, work.survey, tools, work.run.id, site.nodes)
            answers = ask_in_job(work, site, asked, limit_of(plan, site.target))
            made, outcome = _outcome(plan, builder, answers, work)
            note_floors(work, outcome)
            # Of nodes that went wrong: what was known of them may be what led here.
            known = {} if outcome.errors else {node: work.survey.facts[node] for node in answers}
            write_facts(facts_file(work.prepared.target, site.login), known)
            return made, outcome

    def verify(self, work: Work, plan: Plan, outcome: Outcome) -> None:
        """Where there was a job, it has verified."""
        if plan.nothing_to_do:
            super().verify(work, plan, outcome)

    def ask(self, work: Work, question: Question) -> list[NodeEvidence]:
        """The smoke test through one job, on every node of it and then several together.

        Other verbs ask the login host, which is another target (`as_login`). Raises EnvbuildError of asking the login
        host and of the job.
        """
        prepared, outcome = work.prepared, Outcome()
        site = JobSite.of(prepared.target)
        with work.phase("probe", f"looking for environments on {site.login}"):
            facts = login_facts(prepared.target, prepared.stack.name, work.run)
            current = current_of(prepared, site.login, [item.to_json_dict() for item in facts.environments])
        if isinstance(current, EnvbuildError):
            raise current
        environment, variant, stamp = current
        about = {"stack": prepared.stack.name, "environment": environment}
        given = {part.verb: {**about, **part.args(variant, stamp)} for part in (question, question.then) if part}
        requests = {verb: node_request(verb, prepared.target.prefix, args, work.run.id) for verb, args in given.items()}
        gpus = gpus_of_stamp(variant, stamp)
        meeting = job_request(prepared.target, work.run.id, variant, environment, gpus, site.nodes)
        with work.phase("smoke", "testing through a job"):
            asked = asked_to_test(prepared, facts.prefix.path, work.run.id, requests, meeting)
            answers = ask_in_job(work, site, asked, site.limit(SMOKE_LIMIT))
        for node, verbs in answers.items():
            for verb, answer in verbs.items():
                outcome.take(node, verb, answer)
        note_floors(work, outcome)
        return [
            asked_evidence(node, current, outcome.responses.get(node, {}), outcome.errors.get(node)) for node in answers
        ]
