"""Look and plan: facts, resolutions and the plan of a run. Changes nothing on a node that has a Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.facts import NodeFacts
from envbuild.model.plan import Plan
from envbuild.model.resolution import Decision, Resolution
from envbuild.node import identity
from envbuild.provision import toolchain
from envbuild.provision.bundle import node_pyz_digest
from envbuild.provision.collect import first_error
from envbuild.provision.execute import NodeFiles, run_hosts, tmp_folder
from envbuild.provision.inventory import expand_hosts
from envbuild.provision.journal import EventKind
from envbuild.provision.payload import write_payload
from envbuild.provision.prepare import Prepared
from envbuild.provision.survey import Survey, decide, rules, survey_nodes
from envbuild.provision.work import Work
from envbuild.redact import redact_data


def look_and_plan(work: Work, *, bring_python: bool) -> Plan:
    """Ask all nodes, decide for each, and plan.

    `bring_python`: put a Python under the prefix of nodes that have none, so that they can be asked; without it such
    nodes are errors (`node-without-python`).
    """
    if work.prepared.target.connection.kind == "job":
        from envbuild.provision.job_look import survey_jobs
        from envbuild.provision.job_site import JobSite

        with work.phase("probe", "asking the login host, and nodes through a job where they are not known"):
            work.survey = survey_jobs(work, JobSite.of(work.prepared.target), bring_python=bring_python)
        bring_python = False
    else:
        nodes = expand_hosts(work.prepared.target.hosts)
        meant = work.prepared.selection or f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
        with work.phase("probe", f"asking {meant}"):
            work.survey = survey_nodes(nodes, work.prepared, work.run.id, keep=not work.settings.repair)
    if bring_python and work.survey.without_python:
        with work.phase("toolchain", "bringing a Python to nodes that have none"):
            _bring_python(work)
        # What is known of these nodes now may be what others wait for: one that can build for them.
        decide(work.prepared, work.survey, list(work.survey.resolutions))
    for node in work.survey.without_python:
        try:
            work.survey.contacts[node].result()
        except EnvbuildError as error:
            work.survey.errors.setdefault(node, error)
    errors = {node: error.as_dict() for node, error in work.survey.errors.items()}
    work.journal.append(EventKind.CONTACTED, nodes=sorted(work.survey.facts), errors=errors)
    note_refusals(work.prepared, work.survey)
    chosen = {node: variant.id for node, variant in work.survey.variants.items()}
    work.journal.append(EventKind.RESOLVED, variants=chosen)
    _find_tools(work)
    plan = plan_of(work)
    work.survey.errors.update(work.lacking)
    work.run.write_json(work.run.path / "plan.json", redact_data(plan.to_json_dict()))
    work.journal.append(EventKind.PLANNED, nothing_to_do=plan.nothing_to_do)
    return plan


def plan_of(work: Work, artifacts: Mapping[str, Mapping[str, Any]] | None = None) -> Plan:
    """The plan for the nodes that something was chosen for; `artifacts` as `make_plan` takes them."""
    from envbuild.catalog.indexes import index_addresses
    from envbuild.catalog.patches import patches_of
    from envbuild.plan.planner import make_plan
    from envbuild.plan.shared_builds import share_builds

    prepared, survey = work.prepared, work.survey
    missing = {tool for node, each in work.tools.items() for tool in each.missing(survey.facts[node].toolchain)}
    tools = {tool.folder: toolchain.disk_bytes(tool) for tool in missing}
    made = make_plan(
        prepared.stack.name,
        prepared.profile,
        prepared.target,
        prepared.lock,
        survey.facts,
        {
            node: item
            for node, item in survey.resolutions.items()
            if (node in work.tools or item.refused) and (work.only is None or node in work.only)
        },
        run=work.run.id,
        controller=_controller(survey),
        pyz_digest=node_pyz_digest(),
        tools=work.tools,
        repair=tuple(node for node in work.tools if node not in work.done) if work.settings.repair else (),
        indexes=index_addresses(),
        artifacts=artifacts,
        tool_bytes=tools,
        wait=work.settings.wait,
        patches=patches_of(prepared.lock),
        jobs=work.settings.jobs,
        check_rebuild=work.settings.check_rebuild,
        asked=prepared.asked,
    )
    made = prepared.explained(made.model_copy(update={"nodes": (*survey.kept.values(), *made.nodes)}))
    if prepared.target.connection.kind == "ssh" and not made.nothing_to_do:
        made = _spread(work, made, tools)
        jobs = work.settings.jobs or prepared.target.build_jobs
        rebuild = work.settings.check_rebuild
        made = share_builds(made, survey.facts, survey.variants, jobs=jobs, check_rebuild=rebuild)
    if prepared.target.connection.kind != "job":
        made = _without_left_alone(work, made)
    if prepared.target.connection.kind == "job":
        from envbuild.provision.job_local import is_local
        from envbuild.provision.job_plan import share

        pins = prepared.target.scheduler.kind == "slurm"
        return share(made, survey.variants, local=is_local(prepared.target), pins=pins)
    return made


def _without_left_alone(work: Work, plan: Plan) -> Plan:
    """The plan without nodes that cannot compile what nobody gives them; `work.lacking` has their errors."""
    from envbuild.plan.shared_builds import left_alone, without
    from envbuild.plan.source_builds import lacks_tools

    names = left_alone(plan, work.survey.variants)
    work.lacking = {node: lacks_tools(work.survey.resolutions[node]) for node in names}
    return without(plan, names) if names else plan


def _spread(work: Work, plan: Plan, tool_bytes: Mapping[str, int]) -> Plan:
    """The plan with one builder for nodes that get the same environment."""
    from envbuild.plan.distribution import spread

    survey = work.survey
    return spread(
        plan,
        survey.facts,
        survey.variants,
        work.prepared.target,
        least={node: tools.least(survey.facts[node].prefix.path) for node, tools in work.tools.items()},
        tool_bytes=tool_bytes,
        tried=work.tried,
        rebuild=work.settings.check_rebuild,
    )


def _controller(survey: Survey) -> dict[str, Any]:
    """This process, and in `ended` the runs of this machine that hold a prefix and are gone: killed, or a node died."""
    ended = set()
    for facts in survey.facts.values():
        party = (facts.busy or {}).get("controller")
        if isinstance(party, dict) and identity.same_machine(party) and not identity.is_alive(party):
            ended.add(str((facts.busy or {}).get("run")))
    return {**identity.here(), **({"ended": sorted(ended)} if ended else {})}


def _find_tools(work: Work) -> None:
    for node, variant in work.survey.variants.items():
        if node in work.survey.errors:
            continue
        try:
            work.tools[node] = toolchain.node_tools(
                work.survey.facts[node],
                variant,
                work.survey.resolutions[node].interpreter,
                folder=work.run.staging,
                toolchain_file=work.settings.toolchain_file,
            )
        except EnvbuildError as error:
            work.survey.errors[node] = error


def note_refusals(prepared: Prepared, survey: Survey) -> None:
    """Make an error of every refusal that has none yet, with the profile of the stack that would fit those nodes."""
    found = {node: each for node, each in survey.resolutions.items() if each.refused and node not in survey.errors}
    if found:
        instead = _profile_that_fits(prepared, {node: survey.facts[node] for node in found})
        survey.errors.update({node: refusal(resolution, instead) for node, resolution in found.items()})


def _profile_that_fits(prepared: Prepared, facts: Mapping[str, NodeFacts]) -> str | None:
    from envbuild.catalog.loader import load_stack
    from envbuild.explain.decisions import other_profiles

    if not prepared.reference:
        return None
    loaded = load_stack(prepared.reference)
    others = other_profiles(loaded, prepared.profile, facts, prepared.target, rules())
    return next((other.name for other in others if other.fits), None)


def refusal(resolution: Resolution, profile: str | None = None) -> EnvbuildError:
    """Nothing fits a node: the error carries the rules that were against it. `profile`: one that would fit.

    Exit 7, or 5 when nothing but unrecorded hashes is in the way.
    """
    against = [decision for decision in resolution.decisions if decision.verdict == "refuse"]
    instead = next((decision.instead for decision in against if decision.instead), None)
    hints = (f"`--profile {profile}` fits" if profile else "", instead or "")
    unrecorded = {decision.rule for decision in against} == {"hash-unrecorded"}
    return EnvbuildError(
        against[0].rule if against else "nothing-fits",
        f"{resolution.node}: no variant of {resolution.stack} fits this node",
        why="; ".join(_told(decision) for decision in against[:4]),
        hint="; or ".join(filter(None, hints)) or "`envbuild plan --json` has every rule that was applied",
        exit_code=ExitCode.INTEGRITY if unrecorded else ExitCode.REFUSED,
        details={"node": resolution.node},
    )


def _told(decision: Decision) -> str:
    """What a rule says, and what is there instead where it knows."""
    found = decision.compared[1] if decision.compared else ""
    return f"{decision.what} ({found})" if found.startswith("there: ") else decision.what


def _bring_python(work: Work) -> None:
    """Run the toolchain task alone on nodes without a Python, then ask them again."""
    target = work.prepared.target
    files: dict[str, NodeFiles] = {}
    for node in work.survey.without_python:
        answer = work.survey.contacts[node]
        try:
            tools = toolchain.first_tools(answer, work.prepared.lock.variants, work.settings.toolchain_file)
        except EnvbuildError as error:
            work.survey.errors[node] = error
            continue
        prefix = answer.findings["prefix"]
        payload = work.run.staging / f"python-{node}.sh"
        write_payload(payload, tools, prefix=prefix, packed=target.connection.kind != "local")
        tmp = tmp_folder(target.tmp, answer.findings.get("user", ""))
        files[node] = NodeFiles(tools[0].path(prefix), "", payload, tmp=tmp)
    outcome = run_hosts({node: {} for node in files}, files, work)
    told = {node: first_error(answers.values()) for node, answers in outcome.responses.items()}
    failed = {**{node: error for node, error in told.items() if error is not None}, **outcome.errors}
    again = survey_nodes([node for node in files if node not in failed], work.prepared, work.run.id)
    again.errors.update({node: python_broken(node, files[node].python) for node in again.without_python}, **failed)
    work.survey.add(again)


def python_broken(node: str, path: str) -> EnvbuildError:
    """A node is without a Python after one was brought to `path`."""
    return EnvbuildError(
        "toolchain-python-broken",
        f"{node}: the Python that was brought does not run there",
        why=f"{path} is in place and is no usable Python; it may be built for another processor or libc",
        hint=f"try `{path} --version` on {node}; name a toolchain file with a fitting build (config key `toolchain`)",
        exit_code=ExitCode.REFUSED,
        details={"node": node},
    )
