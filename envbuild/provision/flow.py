"""The main job: look, plan, execute, verify, write evidence and reports. One direction, no way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from envbuild import __version__
from envbuild.errors import EnvbuildError
from envbuild.model.evidence import Evidence, NodeEvidence
from envbuild.model.first_use import trusted_files
from envbuild.model.lock import Variant
from envbuild.model.plan import NodePlan, Plan
from envbuild.provision import collect
from envbuild.provision.batches import in_waves
from envbuild.provision.contact import contact, node_request
from envbuild.provision.execute import NodeFiles, Outcome, Progress
from envbuild.provision.journal import EventKind, utc_now
from envbuild.provision.life import about, one_run
from envbuild.provision.look import look_and_plan, plan_of
from envbuild.provision.prepare import Prepared
from envbuild.provision.rundir import RunDir
from envbuild.provision.stage import node_files
from envbuild.provision.survey import Survey
from envbuild.provision.work import Settings, Work
from envbuild.redact import redact_data


def provision(
    prepared: Prepared, settings: Settings, progress: Progress, *, show_plan: Callable[[Plan, Survey], None]
) -> tuple[Evidence, RunDir]:
    """Build the environment of a stack on every node of a target; `show_plan` sees the plan before the work.

    Node failures are in the evidence; raised are errors of the run itself. Either way the journal says how it ended.
    """
    with one_run("provision", settings, progress, **about(prepared)) as run:
        work = Work(prepared, settings, run.run, run.journal, progress)
        if prepared.target.engine == "container":
            evidence = _images(work, show_plan)
        else:
            plan = look_and_plan(work, bring_python=True)
            show_plan(plan, work.survey)
            evidence = _carry_out(work, plan)
        run.exit = evidence.exit
    return evidence, run.run


def dry_run(prepared: Prepared, settings: Settings, progress: Progress) -> tuple[Plan, Survey]:
    """Look and plan in a run directory that is thrown away; nothing on a node changes."""
    import shutil

    run = RunDir.create(settings.runs_root)
    try:
        with run.open_journal() as journal:
            work = Work(prepared, settings, run, journal, progress)
            if prepared.target.engine == "container":
                from envbuild.provision.container import look_and_plan_images

                plan, _ = look_and_plan_images(work)
            else:
                plan = look_and_plan(work, bring_python=False)
    finally:
        shutil.rmtree(run.path, ignore_errors=True)
    return plan, work.survey


def _images(work: Work, show_plan: Callable[[Plan, Survey], None]) -> Evidence:
    """The same with one image that every node runs."""
    from envbuild.provision.container import carry_out_images, look_and_plan_images

    plan, images = look_and_plan_images(work)
    show_plan(plan, work.survey)
    plan, nodes = carry_out_images(work, plan, images)
    for node in nodes:
        work.journal.append(EventKind.NODE_FINISHED, node=node.node, status=node.status, exit=node.exit)
    warnings = (*plan.warnings, *work.notes)
    return write_evidence(work, "provision", nodes, warnings=warnings, pages=not plan.nothing_to_do)


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
    with one_run("fetch", settings, progress, **about(prepared)) as run:
        work = Work(prepared, settings, run.run, run.journal, progress)
        plan = look_and_plan(work, bring_python=True)
        if not plan.nothing_to_do:
            plan = _stage_for_jobs(work, plan)
    return plan, work.survey


def _carry_out(work: Work, plan: Plan) -> Evidence:
    """Do what the plan says, then verify what is there."""
    outcome = Outcome()
    if any(step.kind == "fetch" for node in plan.nodes for step in node.steps):
        plan = _first_use(work, plan)
    through_jobs = work.prepared.target.connection.kind == "job" and not plan.nothing_to_do
    if through_jobs:
        plan, outcome = _carry_out_jobs(work, plan)
    elif not plan.nothing_to_do:
        plan, outcome = in_waves(work, plan, _wave)
    if not through_jobs:
        with work.phase("verify", "" if plan.nothing_to_do else "verifying"):
            _verify(work, plan, outcome)
        _meet(work, plan, outcome)
    nodes = _node_evidence(work, plan, outcome)
    for node in nodes:
        work.journal.append(
            EventKind.NODE_FINISHED, node=node.node, status=node.status, exit=node.exit, error=node.error
        )
    warnings = (*plan.warnings, *work.notes)
    return write_evidence(work, "provision", nodes, warnings=warnings, pages=not plan.nothing_to_do)


def _meet(work: Work, plan: Plan, outcome: Outcome) -> None:
    """The joint smoke test of nodes with one environment, where one of them has been changed."""
    if work.prepared.target.connection.kind == "ssh" and not plan.nothing_to_do:
        from envbuild.provision.together import meet_nodes

        meet_nodes(work, plan, outcome)


def _wave(work: Work, plan: Plan) -> tuple[Plan, Outcome]:
    """All steps of the nodes of one plan."""
    from envbuild.provision.spread import execute_spread

    plan, files = _stage(work, plan)
    with work.phase("provision", "provisioning"):
        return execute_spread(plan, files, work, _stage)


def _carry_out_jobs(work: Work, plan: Plan) -> tuple[Plan, Outcome]:
    """The same through a job of the scheduler: plan and outcome of the nodes that the job got."""
    from envbuild.provision.job_site import JobSite
    from envbuild.provision.job_work import execute_jobs

    plan = _stage_for_jobs(work, plan)
    with work.phase("provision", "provisioning through a job"):
        return execute_jobs(plan, work, JobSite.of(work.prepared.target))


def _stage_for_jobs(work: Work, plan: Plan) -> Plan:
    """Put tools and deliveries under the prefix, from the login host; the plan as it is then."""
    from envbuild.provision.job_plan import builder_of
    from envbuild.provision.job_site import JobSite
    from envbuild.provision.job_stage import stage

    site = JobSite.of(work.prepared.target)
    builder = builder_of(plan)
    plan, files = _stage(work, plan, only=builder.node)
    with work.phase("stage", f"staging on {site.login}"):
        stage(files.get(builder.node), work, site)
    return plan


def _first_use(work: Work, plan: Plan) -> Plan:
    """Fetch and record what nobody has hashed; then the plan with names that follow from those hashes."""
    from envbuild.provision.first_use import settle

    settle(work, plan)
    made = plan_of(work)
    work.run.write_json(work.run.path / "plan.json", redact_data(made.to_json_dict()))
    work.journal.append(EventKind.PLANNED, nothing_to_do=made.nothing_to_do)
    return made


def _stage(work: Work, plan: Plan, *, only: str | None = None) -> tuple[Plan, dict[str, NodeFiles]]:
    """Everything the controller prepares: payloads, and deliveries for nodes that fetch nothing themselves.

    `only`: the node whose prefix all others share.
    """
    deliveries: dict[str, tuple[tuple[Path, str], dict[str, Any]]] = {}
    if any(step.kind == "deliver" for node in plan.nodes for step in node.steps):
        with work.phase("fetch", "fetching packages and sources for the nodes"):
            deliveries = _deliver(work, plan)
        plan = plan_of(work, {node: request for node, (_, request) in deliveries.items()})
    nothing: tuple[None, None] = (None, None)
    takers = {name for each in plan.spreads for name in each.nodes}
    files = {
        node.node: node_files(work, node.node, *deliveries.get(node.node, (nothing,))[0], least=node.node in takers)
        for node in plan.nodes
        if node.steps and only in (None, node.node)
    }
    return plan, files


def _deliver(work: Work, plan: Plan) -> dict[str, tuple[tuple[Path, str], dict[str, Any]]]:
    """Fetch once per variant, pack once; by node the archive and its folder there, and what the request says of it."""
    from envbuild.plan.delivery_layout import store_folder
    from envbuild.provision.deliver import artifact_cache, fetch_delivery

    cache = artifact_cache()
    out: dict[str, tuple[tuple[Path, str], dict[str, Any]]] = {}
    for node in plan.nodes:
        if not any(step.kind == "deliver" for step in node.steps):
            continue
        variant, facts = work.survey.variants[node.node], work.survey.facts[node.node]
        glibc = tuple(int(part) for part in facts.libc.version.split(".")) if facts.libc.kind == "glibc" else ()
        delivery = fetch_delivery(
            variant, cache=cache, glibc=glibc, on_fetch=lambda name: work.progress.stage(f"fetching {name}")
        )
        archive = work.run.staging / f"artifacts-{variant.digest[:12]}.tar"
        if not archive.exists():
            delivery.write_archive(archive)
        store = store_folder(facts.stage_prefix, variant)
        out[node.node] = ((archive, store), delivery.request(store))
    return out


def _verify(work: Work, plan: Plan, outcome: Outcome) -> None:
    """The fast check on every node whose steps all went well, in parallel."""
    by_name = {node.node: node for node in plan.nodes}
    for name, node_plan in by_name.items():
        found = _verified_by_probe(work, node_plan)
        if found is not None:
            outcome.responses.setdefault(name, {})["verify"] = found
    good = [name for name in by_name if name not in outcome.errors and _all_well(outcome.responses.get(name, {}))]

    def request_for(node: str) -> dict[str, Any]:
        variant = work.survey.variants[node].to_json_dict()
        args = {"stack": plan.stack, "environment": by_name[node].environment, "variant": variant, "deep": False}
        return node_request("verify", work.survey.facts[node].prefix.path, args, work.run.id)

    for node, answer in contact(good, request_for, work.prepared.target.connection).items():
        if isinstance(answer, EnvbuildError):
            outcome.errors[node] = answer
        elif answer.response is not None:
            outcome.responses.setdefault(node, {})["verify"] = answer.response


def _verified_by_probe(work: Work, node: NodePlan) -> dict[str, Any] | None:
    """A `verify` response made of what the probe checked already; only where nothing was changed since."""
    if not node.nothing_to_do:
        return None
    for stamp in work.survey.facts[node.node].environments:
        if stamp.path == node.environment and stamp.checks:
            ok = all(check.get("status") != "failed" for check in stamp.checks)
            written = stamp.stamp or {}
            told = {"packages": written.get("packages") or {}, "sources": written.get("sources") or []}
            result = {"ok": ok, "checks": list(stamp.checks), "root": stamp.root, "level": "stamped", **told}
            return {"ok": True, "changed": False, "result": result}
    return None


def _all_well(responses: Mapping[str, Mapping[str, Any]]) -> bool:
    """Every step went well and none has verified yet."""
    return "verify" not in responses and collect.all_well(responses)


def _node_evidence(work: Work, plan: Plan, outcome: Outcome) -> list[NodeEvidence]:
    survey = work.survey
    out = [
        collect.node_evidence(
            node, survey.facts[node.node], outcome.responses.get(node.node, {}), outcome.errors.get(node.node)
        ).model_copy(update={"first_use": trusted_files(_variant(work, node))})
        for node in plan.nodes
    ]
    planned = {node.node for node in plan.nodes}
    for node, error in survey.errors.items():
        if node not in planned:
            found = collect.failed_node(
                node, error, facts=survey.facts.get(node), resolution=survey.resolutions.get(node)
            )
            out.append(found)
    return out


def _variant(work: Work, node: NodePlan) -> Variant | None:
    """The variant of a planned node; of one that is kept, the variant of the lock with that digest."""
    same = (item for item in work.prepared.lock.variants if item.digest == node.variant_digest)
    return work.survey.variants.get(node.node) or next(same, None)


def write_evidence(
    work: Work, verb: str, nodes: list[NodeEvidence], *, warnings: tuple[str, ...] = (), pages: bool = True
) -> Evidence:
    """Evidence into the run directory, and the report's pages unless nothing happened that is worth a page."""
    from envbuild.provision.equality import equality_of, files_on
    from envbuild.report.render import write_report

    prepared = work.prepared
    several = len(nodes) > 1 and prepared.target.connection.kind == "ssh"
    nodes = [collect.coded(node, work.settings.command, several=several) for node in nodes]
    evidence = Evidence(
        envbuild=__version__,
        verb=verb,
        run=work.run.id,
        started=work.started,
        finished=utc_now(),
        stack=prepared.stack.name,
        profile=prepared.profile,
        target=prepared.target.name,
        lock_digest=prepared.lock_digest,
        exit=collect.run_exit(nodes),
        command=work.settings.command,
        nodes=tuple(nodes),
        deviations=(*prepared.stack.profiles[prepared.profile].deviations, *collect.deviations(nodes)),
        warnings=warnings,
        tools=_tool_versions(),
        ansible_tasks=work.tasks,
        phases=work.phases,
        # Where nothing was done, nobody is asked for files either: that run is to be over in a second.
        equality=equality_of(nodes, files_on(prepared.target, work.run.id) if pages else None),
    )
    written = write_report(evidence, work.run.path, pages=pages)
    work.journal.append(EventKind.EVIDENCE_WRITTEN, files=sorted(path.name for path in written.values()))
    return evidence


def _tool_versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("ansible-core", "ansible-runner", "uv")}
