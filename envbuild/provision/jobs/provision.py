"""Environments through jobs: one job that builds on its first node and tests on all, and what its nodes answered."""

from __future__ import annotations

import json
import posixpath
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.evidence import NodeEvidence
from envbuild.model.facts import NodeFacts
from envbuild.model.plan import NodePlan, Plan
from envbuild.model.target import Target
from envbuild.plan.sharing import builder_of, other_steps, pinned
from envbuild.provision.contact.first_contact import node_request
from envbuild.provision.contact.toolchain import NodeTools
from envbuild.provision.environments import Environments, asked_evidence, stage
from envbuild.provision.fleet.multi_node_smoke import gpus_of, gpus_of_stamp, job_request, note_floors
from envbuild.provision.fleet.sharing import not_built
from envbuild.provision.jobs.answers import (
    PROGRESS,
    Answers,
    Asked,
    ask_in_job,
    first_death,
    last_attempt,
    not_shared,
    progress_of,
    read_answers,
    tell_phases,
)
from envbuild.provision.jobs.node_local import ensure_step, is_local, published
from envbuild.provision.jobs.site import JobSite, finish, place, run_to_end
from envbuild.provision.jobs.stage import stage as stage_on_login
from envbuild.provision.jobs.survey import facts_file, login_facts, survey_jobs, write_facts
from envbuild.provision.run.context import Outcome, Question, Work
from envbuild.provision.run.evidence import first_error
from envbuild.provision.run.journal import EventKind
from envbuild.provision.run.progress_events import followed
from envbuild.provision.survey.ask import decide, probe_args
from envbuild.provision.survey.in_use import current_of
from envbuild.schedule.job import Job, JobState, JobStep, job_error

BUILD = ("install", "smoke", "activate")
LEAST_LIMIT = 1800
SMOKE_LIMIT = 3600
ASK_SECONDS = 5.0


def execute_jobs(plan: Plan, work: Work, site: JobSite) -> tuple[Plan, Outcome]:
    """Carry out a shared plan; the plan comes back for the nodes that the job got, and the survey has their facts.

    Raises EnvbuildError of submitting and waiting; what single nodes did is in the outcome.
    """
    builder = builder_of(plan)
    folder = posixpath.join(work.survey.facts[builder.node].stage_prefix, "jobs", work.run.id)
    work.tools[builder.node] = _with_common_python(builder, work)
    variant, facts = work.survey.variants[builder.node], work.survey.facts[builder.node]
    gpus = gpus_of(variant, facts, work.prepared.target)
    meeting = job_request(work, variant, builder.environment, gpus, site.nodes)
    place(site.runner, folder, _requests(builder, work, folder, meeting))
    steps = _steps(builder, work, folder, meets=bool(meeting))
    job = site.job("envbuild-provision", steps, folder, limit_of(plan, site), builder=pinned(plan))
    number, state = _followed(work, site, job, folder)
    attempt = last_attempt(site.runner, folder, site.scheduler.attempt(state))
    answers = read_answers(site.runner, attempt)
    if not answers and not state.good:
        last = site.scheduler.logs(job, number, 4096)
        error = first_death(job_error(number, state, last), state.nodes, site.runner, attempt)
        finish(work, site, job, number, state, good=False)
        raise error
    if not answers:
        raise not_shared(folder, number)
    failed = None if state.good else job_error(number, state, site.scheduler.logs(job, number, 4096))
    made, outcome = _outcome(plan, builder, answers, state, failed, work)
    if meeting:
        _add_unmet(outcome, answers, failed)
    note_floors(work, outcome)
    if failed is not None and failed in outcome.errors.values():
        tell_phases(outcome.errors, failed, site.runner, attempt)
    finish(work, site, job, number, state, good=not outcome.errors)
    known = facts_file(work.prepared.target, site.login)
    if outcome.errors:
        # What was known of the nodes may be what led here.
        known.unlink(missing_ok=True)
    else:
        write_facts(known, {node: work.survey.facts[node] for node in answers})
    return made, outcome


def _followed(work: Work, site: JobSite, job: Job, folder: str) -> tuple[str, JobState]:
    """`run_to_end`; what its nodes do is asked for and told while it runs, and not while it waits in the queue."""
    runs = threading.Event()

    def ask() -> str:
        return progress_of(site.runner, folder) if runs.is_set() else ""

    with followed({folder: ask}, _teller(work), ASK_SECONDS):
        return run_to_end(work, site, job, on_state=lambda state: (runs.clear if state.waiting else runs.set)())


def _teller(work: Work) -> Callable[[str, Mapping[str, Any]], None]:
    """Tells what a node of a job does; nobody else says that it begins a step."""
    steps: dict[str, str] = {}

    def tell(_: str, told: Mapping[str, Any]) -> None:
        node, step = told.get("host", ""), told.get("step", "")
        if steps.get(node) != step:
            steps[node] = step
            work.journal.tell(EventKind.STEP_STARTED, node=node, step=step)
        work.journal.now(node, told)

    return tell


def _with_common_python(builder: NodePlan, work: Work) -> NodeTools:
    """The tools of the builder; where a node needs a staged Python, it runs the node program on all of them."""
    facts, tools = work.survey.facts[builder.node], work.tools[builder.node]
    there = {*facts.toolchain, *(tool.folder for tool in tools.tools)}
    below = posixpath.join(facts.stage_prefix, "tools", "")
    for each in work.tools.values():
        if each.python.startswith(below) and each.python.removeprefix(below).partition("/")[0] in there:
            return tools._replace(python=each.python)
    return tools


def _requests(builder: NodePlan, work: Work, folder: str, meeting: dict[str, dict[str, Any]]) -> dict[str, bytes]:
    """The files of the job's folder: one request a verb, and the script that runs them."""
    prefix = work.survey.facts[builder.node].prefix.path
    requests = meeting | {str(step.request["verb"]): step.request for step in builder.steps if step.request is not None}
    variant = work.survey.variants[builder.node].to_json_dict()
    checked = {"stack": work.prepared.stack.name, "environment": builder.environment, "variant": variant, "deep": False}
    requests["verify"] = node_request("verify", prefix, checked, work.run.id)
    requests["probe"] = node_request("probe", prefix, probe_args(work.prepared), work.run.id)
    if is_local(work.prepared.target) and "install" in requests:
        told = requests["activate"]
        args = {**told["args"], "publish": published(builder, work, folder)}
        requests["activate"] = {**told, "args": args}
    script = Path(__file__).with_name("job_run.sh").read_bytes()
    return {
        "run.sh": script,
        **{
            f"requests/{verb}.json": json.dumps(
                {**told, "args": {"progress": f"{folder}/{PROGRESS}", **told["args"]}}, allow_nan=False
            ).encode()
            for verb, told in requests.items()
        },
    }


def _steps(builder: NodePlan, work: Work, folder: str, *, meets: bool) -> list[JobStep]:
    tools = work.tools[builder.node]
    run = ("/bin/sh", f"{folder}/run.sh", folder, tools.python, tools.pyz)
    asked = {str(step.request["verb"]) for step in builder.steps if step.request is not None}
    built = tuple(verb for verb in BUILD if verb in asked)
    tested = tuple(verb for verb in ("probe", "smoke", "verify") if verb != "smoke" or "smoke" in asked)
    together = [JobStep(argv=(*run, "meet"))] if meets else []
    if not is_local(work.prepared.target):
        return [JobStep(argv=(*run, *built), each="once"), JobStep(argv=(*run, *tested)), *together]
    # `activate` writes the request of `ensure`, which finds nothing to do on the node that built.
    return [
        JobStep(argv=(*run, *built), each="once"),
        JobStep(argv=(*run, "ensure", *tested)),
        *together,
    ]


def job_script(plan: Plan, target: Target, text: str) -> str:
    """The sbatch or qsub file that does with bash alone what the plan does; `text` is the script of its builder."""
    site = JobSite.of(target)
    job = site.job("envbuild", [JobStep(argv=("true",))], "/", limit_of(plan, site), builder=pinned(plan))
    # One node builds; there is nothing to test without envbuild on the others.
    return site.scheduler.render_body(job.model_copy(update={"nodes": 1}), text)


def limit_of(plan: Plan, site: JobSite) -> int:
    """Seconds that a job may run: as the target says, or four times what was estimated, half an hour at least."""
    estimated = max(sum(step.seconds for step in node.steps) for node in plan.nodes)
    return site.limit(max(LEAST_LIMIT, round(4 * estimated / 60) * 60))


def _outcome(
    plan: Plan, builder: NodePlan, answers: Answers, state: JobState, failed: EnvbuildError | None, work: Work
) -> tuple[Plan, Outcome]:
    """Plan and outcome by the nodes that the job really had."""
    outcome = Outcome()
    built_on = next((node for node, verbs in answers.items() if "activate" in verbs or "install" in verbs), None)
    tests = other_steps(builder, built_on or "the first node", local=is_local(work.prepared.target))
    survey, nodes = work.survey, []
    planned, resolution = survey.facts[builder.node], builder.resolution
    variant, tools = survey.variants[builder.node], work.tools[builder.node]
    names = sorted({*answers, *state.nodes})
    survey.facts = {node: _facts(node, answers.get(node, {}), planned) for node in names}
    survey.errors, survey.resolutions, survey.variants, work.tools = {}, {}, {}, {}
    decide(work.prepared, survey, names)
    for node in names:
        verbs = {verb: answer for verb, answer in answers.get(node, {}).items() if verb != "probe"}
        outcome.responses[node] = verbs
        error = first_error(verbs.values())
        if error is None and "probe" in answers.get(node, {}):
            error = _misfit(work, node, builder.variant_digest)
        if error is None and "verify" not in verbs and all(_well(answer) for answer in verbs.values()):
            error = _silent(node, built_on, answers, failed)
        if error is not None:
            outcome.errors[node] = error
        survey.variants[node], work.tools[node] = variant, tools
        chosen = survey.resolutions.get(node) or resolution.model_copy(update={"node": node})
        steps = builder.steps if node == built_on else tests
        nodes.append(builder.model_copy(update={"node": node, "steps": steps, "resolution": chosen}))
    return plan.model_copy(update={"nodes": tuple(nodes)}), outcome


def _add_unmet(outcome: Outcome, answers: Answers, failed: EnvbuildError | None) -> None:
    """An error for nodes that were to meet, for all were well, and that did not finish it."""
    if all("verify" in verbs and _well(verbs["verify"]) for verbs in answers.values()):
        for node, verbs in answers.items():
            if node not in outcome.errors and "meet" not in verbs:
                outcome.errors[node] = _silent(node, None, answers, failed)


def _facts(node: str, verbs: Mapping[str, Any], planned: NodeFacts) -> NodeFacts:
    """The node's own; where it said nothing, those of the node that the plan was made for, under its name."""
    probe = verbs.get("probe") or {}
    if not probe.get("ok"):
        return planned.model_copy(update={"node": node, "hostname": node})
    return NodeFacts.from_plain(probe["result"]).model_copy(update={"node": node, "shared": planned.shared})


def _well(answer: Mapping[str, Any]) -> bool:
    return bool(answer.get("ok")) and bool((answer.get("result") or {}).get("ok", True))


def _misfit(work: Work, node: str, digest: str) -> EnvbuildError | None:
    """An error where the rules would not choose for this node what was built from another node's facts."""
    resolution, variant = work.survey.resolutions.get(node), work.survey.variants.get(node)
    if resolution is None or (variant is not None and variant.digest == digest):
        return None
    return EnvbuildError(
        "nodes-differ",
        f"{node} is of another kind than the node that the plan was made for",
        why=f"for it, the rules choose {resolution.variant_id or 'nothing'}",
        hint="ask for nodes of one kind: `scheduler: {constraints: ...}`",
        details={"node": node},
    )


def _silent(node: str, built_on: str | None, answers: Answers, failed: EnvbuildError | None) -> EnvbuildError:
    """Why a node has not tested: the builder failed, or the job ended before."""
    if built_on and node != built_on and not all(_well(answer) for answer in answers[built_on].values()):
        what, hint = f"the smoke test of {built_on} failed", "the report has its checks"
        tested = EnvbuildError("smoke-failed", what, hint=hint, exit_code=ExitCode.CHECK_FAILED)
        return not_built(node, built_on, first_error(answers[built_on].values()) or tested)
    if failed is not None:
        return failed
    return EnvbuildError(
        "node-silent", f"{node} was in the job and did not finish", hint="the log of the job has more",
        details={"node": node},
    )  # fmt: skip


class InJobs(Environments):
    """The login host is asked, then jobs: what nodes share is staged from there, one node builds and all test."""

    def look(self, work: Work, *, bring_python: bool) -> None:
        """Ask the login host, and nodes through a job where nothing is known of them."""
        with work.phase("probe", "asking the login host, and nodes through a job where they are not known"):
            work.survey = survey_jobs(work, JobSite.of(work.prepared.target), bring_python=bring_python)

    def execute(self, work: Work, plan: Plan) -> tuple[Plan, Outcome]:
        """Stage, then one job; plan and outcome of the nodes that it got. The job verifies."""
        plan = self.stage(work, plan)
        with work.phase("provision", "provisioning through a job"):
            return execute_jobs(plan, work, JobSite.of(work.prepared.target))

    def stage(self, work: Work, plan: Plan) -> Plan:
        """Put tools and bundles under the prefix, from the login host; the plan as it is then."""
        site, builder = JobSite.of(work.prepared.target), builder_of(plan)
        plan, files = stage(work, plan, only=builder.node)
        with work.phase("stage", f"staging on {site.login}"):
            stage_on_login(files.get(builder.node), work, site)
        return plan

    def ask(self, work: Work, question: Question) -> list[NodeEvidence]:
        """The smoke test through one job, on every node of it and then several together.

        Other verbs ask the login host, which is another target (`as_login`). Raises EnvbuildError of asking the login
        host and of the job.
        """
        prepared, outcome = work.prepared, Outcome()
        site = JobSite.of(prepared.target)
        with work.phase("probe", f"asking {site.login} which environments are there"):
            facts = login_facts(prepared.target, prepared.stack.name, work.run)
            current = current_of(prepared, site.login, [item.to_json_dict() for item in facts.environments])
        if isinstance(current, EnvbuildError):
            raise current
        environment, variant, stamp = current
        args = {"stack": prepared.stack.name, "environment": environment, **question.args(variant, stamp)}
        requests = {question.verb: node_request(question.verb, prepared.target.prefix, args, work.run.id)}
        requests |= job_request(work, variant, environment, gpus_of_stamp(variant, stamp), site.nodes)
        folder = posixpath.join(facts.prefix.path, "jobs", work.run.id)
        with work.phase("smoke", "testing through a job"):
            first = ensure_step(prepared.target, facts.prefix.path, prepared.stack.name)
            asked = Asked("envbuild-smoke", folder, requests, before=first)
            answers = ask_in_job(work, site, asked, site.limit(SMOKE_LIMIT))
        for node, verbs in answers.items():
            for verb, answer in verbs.items():
                outcome.take(node, verb, answer)
        note_floors(work, outcome)
        return [
            asked_evidence(node, current, outcome.responses.get(node, {}), outcome.errors.get(node)) for node in answers
        ]
