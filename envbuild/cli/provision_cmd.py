"""`envbuild plan` and `provision`; `verify` and `smoke`, which ask nodes about an environment and change nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from posixpath import join
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from envbuild.cli import choose, names
from envbuild.cli.output import Ui, common_options, print_error, text_width
from envbuild.cli.progress import RunProgress
from envbuild.config import load_config
from envbuild.errors import EnvbuildError, as_dicts, exit_of, gravest
from envbuild.provision.run.run_dir import open_run
from envbuild.resources import artifact_cache, node_package
from envbuild.text import COPIED, few, grouped, size

if TYPE_CHECKING:
    from envbuild.model.evidence import Evidence
    from envbuild.model.facts import NodeFacts
    from envbuild.model.plan import NodePlan, Plan
    from envbuild.model.target import Target
    from envbuild.provision.jobs.site import JobSite
    from envbuild.provision.run.context import Prepared, Selection, Settings, Survey
    from envbuild.provision.run.run_dir import RunDir
    from envbuild.schedule.job import Job


@click.command("provision")
@choose.build_options
@click.option("--dry-run", is_flag=True, help="Print the plan and stop; on a cluster, a short job may ask the nodes.")
@click.option(
    "--print-script", is_flag=True, help="Print a bash file that builds the same, and stop; it says what must be there."
)
@click.option("--bundle", type=choose.THERE, metavar="FILE", help="Install from this bundle, without a network.")
@click.option("--cancel-job", is_flag=True, help="Ctrl-C also ends the job that envbuild waits for.")
@click.option("--batch", metavar="N|P%", help="Change this many nodes at a time, as 4 or 25%.")
@click.option("--max-fail", metavar="N|P%", help="Begin no more nodes once more than this many have failed.")
@choose.time_option(
    "--step-timeout", "deadline", least=1,
    help="How long nodes of one --batch may take (default: 6 hours). Jobs have a time limit instead.",
)  # fmt: skip
@click.option(
    "--ansible", is_flag=True, help="Run the playbook on this machine too, instead of calling its steps directly."
)
@click.option("--repair", is_flag=True, help="Build again although a finished environment exists.")
@click.option("--check-rebuild", is_flag=True, help="Compile everything twice and report whether both are equal.")
@click.option("--frozen", is_flag=True, help="Use the lock as it is, although the stack file has changed.")
@choose.facts_option
@common_options
def provision(ui: Ui, /, facts: str | None, **flags: Any) -> int:
    """Build, test and verify the environment of STACK on a target.

    Without STACK, it is that of this folder (if only one there has a lock), else the target's.
    """
    config, script = choose.configured(flags), flags["print_script"]
    if facts is not None and not (flags["dry_run"] or script):
        raise click.UsageError("--facts needs --dry-run or --print-script: recorded nodes cannot be changed")
    asks = facts is None
    prepared = choose.prepared_of(ui, flags, config, locked=not flags["frozen"], recorded=not asks, jobs=asks)
    _refuse_batches_of_jobs(prepared, flags)
    if script:
        from envbuild.catalog.loader import load_target, refuse_template
        from envbuild.provision.jobs.provision import refuse_script

        refuse_script(prepared.target)
        if prepared.target.connection.kind == "job":  # a template's placeholders would stand in it
            refuse_template(load_target(prepared.choice.target, template=True))
    settings = choose.settings_of(config)
    settings = replace(
        settings,
        repair=flags["repair"] or script,  # a script builds everything, also what is there already
        jobs=flags["jobs"],
        check_rebuild=flags["check_rebuild"],
        playbook=flags["ansible"],
        cancel_job=flags["cancel_job"],
        script=script,
        bundle=flags["bundle"],
        deadline=flags["deadline"] or settings.deadline,
    )
    if flags["dry_run"] or script:
        return _plan(ui, prepared, settings, facts)
    return show_built(ui, settings, *carry_out(ui, prepared, settings))


def _refuse_batches_of_jobs(prepared: Prepared, flags: dict[str, Any]) -> None:
    """Raises EnvbuildError `option-does-not-fit` (exit 2): one job changes one environment, not node after node."""
    given = [option for option, key in (("--batch", "batch"), ("--max-fail", "max_fail")) if flags.get(key)]
    if given and prepared.target.connection.kind == "job":
        raise EnvbuildError(
            "option-does-not-fit",
            f"{' and '.join(given)} cannot be used with {prepared.target.name}",
            why="envbuild reaches its nodes through one job: one node builds, and all nodes test",
            hint="`scheduler: {nodes: N}` in the target file sets the number of nodes",
        )


@click.command("plan")
@choose.build_options
@choose.facts_option
@common_options
def plan(ui: Ui, /, facts: str | None, **flags: Any) -> int:
    """Show what would run where, and why; same as `provision --dry-run`.

    Without STACK, it is that of this folder (if only one there has a lock), else the target's. Changes nothing. Of a
    cluster with jobs, one job of ten minutes at most asks nodes of which nothing is known; with --facts none does.
    --verbose adds what each rule compared, and the scripts of the jobs that `provision` submits.
    """
    config, asks = choose.configured(flags), facts is None
    prepared = choose.prepared_of(ui, flags, config, recorded=not asks, jobs=asks)
    return _plan(ui, prepared, replace(choose.settings_of(config), jobs=flags["jobs"]), facts)


def _plan(ui: Ui, prepared: Prepared, settings: Settings, facts: str | None) -> int:
    """The plan, or the script that does the same; why nodes are left out stands in both, of a script on stderr too."""
    if facts is None:
        from envbuild.provision.provision import dry_run

        with RunProgress(ui) as progress:
            example, (made, survey) = "", dry_run(prepared, settings, progress)
    else:
        prepared, made, survey, example = _recorded(prepared, settings, facts)
    site = None if made.nothing_to_do else _site(prepared.target, survey, example=bool(example))
    jobs = Jobs() if site is None or settings.script else _jobs(made, prepared, survey, site)

    def data() -> dict[str, Any]:
        selected = {} if prepared.selection is None else {"selection": prepared.selection.as_dict()}
        return {"plan": plan_data(made), "errors": as_dicts(survey.errors), **selected, **jobs.as_dict()}

    def text() -> list[tuple[str, str]]:
        unnamed = prepared.choice.unnamed if facts else ""
        plain = plan_text(made, survey, prepared.selection).splitlines()
        known = {} if example else survey.facts  # nobody benches facts of other machines here
        after = [] if unnamed else _after(made, prepared, known, jobs.building)
        lines = [(line, "") for line in (*filter(None, (example, unnamed)), *plain, *jobs.lines, *after)]
        return [*lines, *_details(made, prepared, survey, jobs)] if ui.verbose else lines

    if not settings.script:
        ui.result(data, text)
        return exit_of(survey.errors)
    if example:
        ui.warn(example)
    from envbuild.export.bash_script import render_script
    from envbuild.provision.provision import refuse_unrecorded

    refuse_unrecorded(prepared, made, survey)
    chosen = [prepared.reference, "--profile", prepared.profile, "--target", prepared.choice.target]
    chosen += ["--facts", facts] if facts else []
    script = render_script(made, prepared.lock, survey.errors, chosen=chosen)
    if site is not None:
        from envbuild.provision.jobs.provision import job_script

        script, unknown = job_script(made, site, script, survey.facts.values() if facts else ())
        if unknown:
            ui.warn(unknown)
    ui.result({**data(), "script": script}, lambda: script, verbatim=True)
    if not ui.json:
        for error in survey.errors.values():
            print_error(error)
    return exit_of(survey.errors)


def _recorded(prepared: Prepared, settings: Settings, facts: str) -> tuple[Prepared, Plan, Survey, str]:
    """The plan for nodes of which facts were recorded, and whose these are where they are an example's."""
    from envbuild.catalog.node_facts import load_facts, modules_seen, of_example
    from envbuild.provision.survey.plan_run import plan_recorded

    if settings.bundle is not None:
        from envbuild.provision.deliver import take_bundle

        prepared, _ = take_bundle(settings.bundle, prepared)
    target, recorded = prepared.target, load_facts(facts)
    example = of_example(facts, recorded, target)
    if settings.script and target.connection.kind == "job":
        # Another user's facts, with the user who submits and the home of this machine.
        own = {"user": choose.submitter(target), "home": str(Path.home())}
        recorded = {
            node: plain if plain.user == own["user"] else plain.model_copy(update=own)
            for node, plain in recorded.items()
        }
    made, survey = plan_recorded(
        prepared, recorded, toolchain_file=settings.toolchain_file, repair=settings.script,
        bundle=str(settings.bundle or ""), seen=modules_seen(facts),
    )  # fmt: skip
    return prepared, made, survey, example


def _site(target: Target, survey: Survey, *, example: bool) -> JobSite | None:
    """Where jobs of a target run, as its scheduler said or else facts; the processors of an example are not its own."""
    if target.connection.kind != "job":
        return None
    from envbuild.provision.jobs.site import JobSite

    if survey.pool is not None:
        return JobSite.of(target, survey.pool)
    other = {"cpus": None} if example else {}
    return JobSite.unasked(target, [node.model_copy(update=other) for node in survey.facts.values()])


class Jobs(NamedTuple):
    """What the plan says of the jobs of `provision`, and their scripts by name."""

    lines: tuple[str, ...] = ()
    scripts: Mapping[str, str] = {}
    building: Job | None = None

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"jobs": dict(self.scripts)} if self.scripts else {}


def _jobs(made: Plan, prepared: Prepared, survey: Survey, site: JobSite) -> Jobs:
    """The jobs that `provision` submits."""
    from envbuild.catalog.loader import is_template
    from envbuild.provision.jobs.asked import job_lines, jobs_of

    if is_template(prepared.target):
        name = prepared.choice.target
        return Jobs((f"  job: not known, as {name} is a template: `envbuild init FILE --extends {name}` writes yours",))
    try:
        jobs = jobs_of(made, prepared, survey, site)
        scripts = {job.name: site.scheduler.render(job, "") for job in jobs}
    except EnvbuildError as error:
        return Jobs((f"  job: {': '.join(filter(None, (error.what, error.why)))}",))
    lines = [
        *job_lines(made, prepared, site, jobs),
        "`--verbose` prints the scripts of both, and what each rule compared",
    ]
    return Jobs(tuple(f"  {line}" for line in lines), scripts, jobs[-1])


def _details(made: Plan, prepared: Prepared, survey: Survey, jobs: Jobs) -> list[tuple[str, str]]:
    """What each rule compared, where downloads come from, and the scripts of the jobs, to be copied."""
    from envbuild.explain.text import decision_lines

    lines = [(line, "") for line in decision_lines(survey.resolutions.values(), text_width())]
    if addresses := _addresses(made, prepared, survey):
        lines += [("\nDownloads come from these addresses, which may send on to other hosts for the files:", "")]
        lines += [(f"  {what:<24} {address}", "") for what, address in addresses]
        lines.append(("uv and the node program come with envbuild.", ""))
    return [*lines, *_scripts(jobs)] if jobs.scripts else lines


def _addresses(made: Plan, prepared: Prepared, survey: Survey) -> list[tuple[str, str]]:
    """What nodes or this machine download for the plan, and from where."""
    from envbuild.catalog.indexes import index_addresses
    from envbuild.catalog.toolchain import load_toolchain
    from envbuild.resolve.estimate import indexes_of, repositories

    indexes, rows = index_addresses(), []
    named = {build.name: build.url for build in load_toolchain(load_config().toolchain).builds}
    built = [node.node for node in made.nodes if any(step.kind == "install" for step in node.steps)]
    for variant in (survey.variants[node] for node in built):
        if variant.interpreter.kind == "standalone":
            rows.append(("Python", named[str(variant.interpreter.name)]))
        for name in indexes_of(variant):
            own = "the index that uv is configured with, else PyPI"
            rows.append((f"index {name}", indexes[name]["url"] if name in indexes else own))
        for channel in dict.fromkeys(archive.channel for archive in variant.archives):
            rows += [(f"channel {channel}", address) for address in prepared.channels.get(channel, ())]
        rows += [(f"source {name}", address) for name, address in repositories(variant)]
        if prepared.target.engine == "container" and variant.base.image:
            rows.append(("image", variant.base.image))
    return list(dict.fromkeys(rows))


def _scripts(jobs: Jobs) -> list[tuple[str, str]]:
    """The scripts of jobs, the variables that they get, and what they run, to be copied."""
    from envbuild.provision.jobs.asked import run_script
    from envbuild.schedule.cluster import KEPT

    lines: list[tuple[str, str]] = []
    scripts = {f"The job {name}": script for name, script in jobs.scripts.items()}
    of_run = "`run.sh`, which each node runs (findings.sh asks what the node has; node.pyz is envbuild's node program)"
    for name, script in {**scripts, of_run: run_script()}.items():
        lines += [(f"\n{name}:", ""), *((line, COPIED) for line in script.splitlines())]
    lines.append((f"\nOf the shell that submits them, jobs get these variables alone: {', '.join(KEPT)}.", ""))
    lines.append(("RUN stands for the id of the run, which names the folder of its job.", ""))
    lines.append((f"node.pyz is a zip file of {node_package()}: read it there.", ""))
    lines.append(("findings.sh only looks; `envbuild help findings.sh` says where it can be read.", ""))
    return lines


def _after(made: Plan, prepared: Prepared, facts: Mapping[str, NodeFacts], building: Job | None) -> list[str]:
    """A line on how the document's own run is measured, what its job takes, and how long it took there.

    `facts`: those of its nodes; `building`: the job of `provision`, which has the same GPUs and time limit.
    """
    lines: list[str] = []
    reference, choice = prepared.stack.reference, prepared.choice
    words = f"{prepared.reference or made.stack} --target {choice.target}"
    words += f" --profile {choice.profile}" if choice.profile else ""
    if reference is not None and made.nodes and not prepared.limits:
        from envbuild.launch.recipes import document_values
        from envbuild.launch.request import Place
        from envbuild.provision.survey.ask import rules
        from envbuild.resolve.compat import rows_like
        from envbuild.schedule.job import clock_text

        claims = [claim for claim in reference.figures if claim.model or claim.unit == "minutes"]
        says = ", ".join(f"{'at least ' if claim.least else ''}{claim.value:g} {claim.unit}" for claim in claims)
        where = f"{says} on {claims[0].where}, says {claims[0].source}" if claims else ""
        models = [row.model for row in rows_like(prepared.target.expects.gpu, rules())]
        other = bool(claims and claims[0].gpu and models) and claims[0].gpu not in models
        where = f" ({where}{'; not comparable on other GPUs, as yours' if other else ''})" if claims else ""
        nodes = prepared.target.scheduler.nodes or 1
        hosts = claims[0].hosts if claims else None
        job = prepared.target.connection.kind == "job"  # takes all nodes of a target that names no number
        words += f" --nodes {hosts}" if hosts and (job or hosts != nodes) else ""
        seen = max((len(node.gpus) for node in facts.values()), default=0)
        number = ""
        if not prepared.target.expects.gpus_per_node:  # `bench` refuses without it
            words += f" --gpus-per-node {seen or 'N'}"
            number = "" if seen else ", N being the GPUs of a node, which the target does not name"
        place = Place(
            nodes=hosts or nodes,
            gpus_per_node=prepared.target.expects.gpus_per_node or seen or 1,
            environment="/",
            output="/",
            master="first",
        )
        for name, value in document_values(prepared.stack, prepared.profile, place).items():
            words += f" --set {name}={value}"
        cost = ""
        if building and prepared.target.scheduler.time_limit and not number:
            hours = building.model_copy(update={"nodes": place.nodes}).gpu_hours()
            cost = f", as a job for at most {clock_text(building.time_limit or 0)}, {hours}" if hours else ""
        lines.append(f"  bench: `envbuild bench {words}`{number}, once it is built{cost}{where}")
    return lines


def carry_out(
    ui: Ui, prepared: Prepared, settings: Settings, confirm: Callable[[], None] | None = None
) -> tuple[Evidence, RunDir]:
    """Plan and provision; `confirm` is called between plan and work, where there is something to do."""
    from envbuild.provision.provision import provision as run_provision

    def show(made: Plan, survey: Survey) -> None:
        if not ui.quiet or confirm:
            text = plan_text(made, survey, prepared.selection, why=ui.verbose).rstrip("\n")
            progress.pause(lambda: ui.note(text))
        if confirm and not made.nothing_to_do:
            progress.pause(confirm)

    with RunProgress(ui) as progress:
        return run_provision(prepared, settings, progress, show_plan=show)


def show_built(ui: Ui, settings: Settings, evidence: Evidence, run: RunDir) -> int:
    """The summary of a run that built; its exit code."""
    from envbuild.report.terminal import summary_lines

    page = run.path / "report.html"
    named = str(page) if page.exists() else ""
    ui.result(evidence.to_json_dict, lambda: summary_lines(evidence, named, verbose=ui.verbose))
    kept = sum(node.status == "unchanged" for node in evidence.nodes)
    if settings.check_rebuild and kept:
        where = f" on {kept} of {len(evidence.nodes)} nodes" if len(evidence.nodes) > 1 else ""
        ui.note(f"hint: --check-rebuild compared nothing{where}, for nothing was built; `--repair` builds again")
    if not ui.quiet:
        for line in names.off_path():
            ui.note(line)
    return evidence.exit


def _classes(plan: Plan) -> list[list[NodePlan]]:
    """Nodes with equal plans: the same steps to the same environment, by the same decisions."""

    def key(node: NodePlan) -> Hashable:
        steps = tuple((step.kind, step.what, step.why) for step in node.steps)
        return steps, node.environment, node.python, node.resolution.decisions

    return list(grouped(plan.nodes, key).values())


def plan_data(plan: Plan) -> dict[str, Any]:
    """The plan for programs, by class as for people: the first node's in full, and in `nodes` the names of all."""
    classes = _classes(plan)
    data = plan.model_copy(update={"nodes": tuple(nodes[0] for nodes in classes)}).to_json_dict()
    for entry, nodes in zip(data["nodes"], classes, strict=True):
        entry["nodes"] = [node.node for node in nodes]
    return data


def plan_text(plan: Plan, survey: Survey, selection: Selection | None = None, *, why: bool = True) -> str:
    """The plan for people: per class of equal plans what, where, `why` and what it costs."""
    from envbuild.hostlist import fold_hosts
    from envbuild.resolve.estimate import unknown_places

    place = "local, this machine" if plan.target == "local" else plan.target
    lines = [f"plan: {plan.stack} ({plan.profile}) on {place}" + (f", {selection}" if selection else "")]
    if plan.profile_why:
        lines.append(f"  profile {plan.profile}: {plan.profile_why}")
    for node, *others in _classes(plan):
        steps = [(step.kind, step.what, step.why) for step in node.steps]
        nodes = fold_hosts([node.node, *(other.node for other in others)])
        count = f"{len(others) + 1} nodes, " if others else ""
        lines.append(f"  {count}{nodes}: variant {node.resolution.variant_id} of the lock, in {node.environment}")
        if not steps:
            lines.append("    nothing to do: by its stamp the environment is there, finished and in use")
            continue
        for kind, what, reason in steps:
            lines.append(f"    {kind:<10} {what}")
            lines += [f"{'':15}because {reason}"] if why else []
        facts, variant = survey.facts.get(node.node), survey.variants.get(node.node)
        lines += _total(node, bool(facts and variant and unknown_places(variant, facts)))
    lines += [f"  warning: {text}" for text in plan.warnings]
    if any(item.verdict in ("patch", "warn") for node in plan.nodes for item in node.resolution.decisions):
        lines.append("  `envbuild help NAME` explains a name in brackets")

    def rows(name: str) -> tuple[str, ...]:
        error, resolution = survey.errors[name], survey.resolutions.get(name)
        what = f"error[{error.code}]: {error.what.removeprefix(f'{name}: ')}"
        more = (("nearest variant", resolution.nearest if resolution else ""), ("why", error.why), ("hint", error.hint))
        return what, *(f"    {label}: {text}" for label, text in more if text)

    for (what, *more), same in grouped(survey.errors, rows).items():
        lines += [f"  {fold_hosts(same)}: {what}", *more]
    return "\n".join(lines) + "\n"


def _total(node: NodePlan, unknown: bool) -> list[str]:
    """What a node's steps cost in all, what is not counted, and what goes elsewhere; nothing where none is known.

    `unknown`: nobody knows whether the node reaches what it fetches.
    """
    from envbuild.resolve.estimate import disk_words, fetch_words, uncounted

    fetch, inodes = (sum(getattr(step, key) for step in node.steps) for key in ("fetch_bytes", "inodes"))
    if not (fetch or node.peak_bytes or inodes):  # what an image takes is known when it is built
        return []
    unsized = list(dict.fromkeys(name for step in node.steps for name in step.unsized))
    rough = any(step.rough for step in node.steps)
    stays, most = (disk_words(count, unsized, rough=rough) for count in (node.lasting_bytes, node.peak_bytes))
    place = node.environment.rpartition("/envs/")[0]
    cost = f"{fetch_words(fetch, unsized)}, {stays} and {inodes} files stay in {place}, {most} while building"
    packages = uncounted(unsized)
    sources = [name for name in unsized if name not in packages]
    kinds = {"not counted, often the largest part": packages, "counted on disk only": sources}
    left = "".join(f"; {says}: {few(names, 8)}" for says, names in kinds.items() if names)
    took = [step.before for step in node.steps if step.seconds]
    known = [seconds for seconds in took if seconds is not None]
    total = sum(known)
    duration = f"{total:.0f} s" if total < 120 else f"{total / 60:.0f} min"
    when = f", about {duration} as before" if known and len(known) == len(took) else ""
    here = []
    brought = any(step.kind == "deliver" and step.fetch_bytes for step in node.steps)
    # The choice has no reason where the target says that nodes fetch.
    if brought or (fetch and unknown and node.resolution.delivery.why):
        amount = f"{'at least ' if unsized else ''}{size(fetch)}"
        condition = "" if brought else "if the node does not reach these indexes and repositories: "
        places = f"{amount} in {artifact_cache()}, which stay, and as much in {load_config().runs_root}"
        here = [f"    here       {condition}{places} until the job ends"]
    return [f"    in all     {cost}{when}{left}", *_elsewhere(node, place), *here]


def _elsewhere(node: NodePlan, prefix: str) -> list[str]:
    """What goes into folders beside the prefix, none of which is counted."""
    from envbuild.node.build.build_dir import CANONICAL

    request = next((step.request for step in node.steps if step.kind == "install" and step.request), None)
    if request is None:
        return []
    args: Mapping[str, Any] = request["args"]
    build = args.get("build") or {}
    compiles = CANONICAL if any("build" in source for source in args["variant"]["sources"]) else None
    rows = (
        ("cache", args.get("cache"), None, "packages for later builds: {}, not counted"),
        ("store", build.get("store"), f"{prefix}/store/wheels", "compiled wheels: {}, not counted"),
        ("tmp", args.get("tmp"), join(prefix, "tmp"), "files of the build: {}; of compilers not counted"),
        ("compile", compiles, None, "sources while they compile: {}, or `tmp` where that lacks room; not counted"),
    )
    return [f"    {key:<10} {text.format(path)}" for key, path, usual, text in rows if path and path != usual]


@click.command("verify")
@choose.place_options
@choose.engine_option
@click.option(
    "--quick", is_flag=True, help="Read no contents; compare stamp, names and versions of packages, and link."
)
@click.option(
    "--since", metavar="RUN", shell_complete=names.runs, help="Print only what differs from that run; for cron."
)
@choose.deadline_option
@common_options
def verify(ui: Ui, /, quick: bool, since: str | None, deadline: float | None, **flags: Any) -> int:
    """Compare every file of an environment with its lock and stamp.

    Exit 1 on drift. --quick reads no file.
    """
    from envbuild.container.run_options import runs_in_jobs_alone
    from envbuild.provision import provision

    prepared, settings = _prepared(ui, flags)
    # The files of a shared prefix can be read on the login host, without a job; pyxis starts images in jobs alone.
    if not (prepared.target.engine == "container" and runs_in_jobs_alone(prepared.target.container)):
        prepared = prepared._replace(target=choose.seen_from_login(ui, prepared.target))
    earlier = _earlier(since, prepared) if since else None
    with RunProgress(ui) as progress:
        evidence, run = provision.verify(prepared, settings, progress, deep=not quick, deadline=deadline)
        return _show_since(ui, earlier, evidence) if earlier else show_evidence(ui, evidence, run)


def _earlier(run: str, prepared: Prepared) -> Evidence:
    """What a run of this stack saw. Raises EnvbuildError `since-of-another` (exit 2), and as `open_run` does."""
    from envbuild.report.recheck.opened import open_report

    evidence = open_report(open_run(load_config().runs_root, run).path).evidence
    asked = (prepared.stack.name, prepared.profile)
    if (evidence.stack, evidence.profile) != asked:
        raise EnvbuildError(
            "since-of-another",
            f"the run {evidence.run} is of {evidence.stack} ({evidence.profile}), not of {asked[0]} ({asked[1]})",
            why="environments of two stacks cannot be compared",
            hint="`envbuild run list` lists the runs with their stacks",
        )
    return evidence


def _show_since(ui: Ui, earlier: Evidence, evidence: Evidence) -> int:
    """What is other than in an earlier run; silence where nothing is and all is good, as cron mails what is printed."""
    from envbuild.report import diff
    from envbuild.report.diff import compare, exit_code

    # Another envbuild that looks is nothing that happened to the nodes.
    changes = [change for change in compare(earlier, evidence) if (change.topic, change.what) != ("run", "envbuild")]
    if changes or evidence.exit or ui.json:
        data = {"since": earlier.run, "run": evidence.run, "changes": [asdict(change) for change in changes]}
        ui.result(data, lambda: diff.lines(earlier, evidence, changes))
    return gravest([evidence.exit, exit_code(changes)])


@click.command("smoke")
@choose.place_options
@choose.engine_option
@click.option(
    "--only", multiple=True, metavar="ITEM[/CHECK]", help="Run only this part, for example machine/gemm; repeatable."
)
@click.option("--dry-run", is_flag=True, help="Print the job that it submits: nodes, time, GPU-hours, script.")
@common_options
def smoke(ui: Ui, /, *, only: tuple[str, ...], dry_run: bool, **flags: Any) -> int:
    """Run the smoke tests in the environment in use.

    Exit 1 if one fails, 6 below a floor. Tests left out by --only are reported as not checked. If the code of the stack
    is a folder of yours, every file is then compared as `verify` does.

    On a cluster, one job runs them, on as many nodes and at most as long as the job of `provision`: an hour where the
    target has no `time_limit`.
    """
    from envbuild.provision import provision

    prepared, settings = _prepared(ui, flags)
    if dry_run:
        return _smoke_job(ui, prepared, flags)
    with RunProgress(ui) as progress:
        return show_evidence(ui, *provision.smoke(prepared, replace(settings, only=only), progress))


def _smoke_job(ui: Ui, prepared: Prepared, flags: dict[str, Any]) -> int:
    """The job of `smoke`, which nobody submits. Raises EnvbuildError `option-does-not-fit` (exit 2)."""
    from envbuild.provision.jobs.asked import all_nodes, smoke_job
    from envbuild.provision.jobs.site import JobSite

    if prepared.target.connection.kind != "job":
        raise EnvbuildError(
            "option-does-not-fit",
            f"the target {prepared.target.name} has no scheduler that takes a job",
            why=f"its connection is {prepared.target.connection.kind}",
            hint="remove --dry-run: `smoke` then runs the tests at once, without a job",
        )
    site = JobSite.unasked(prepared.target)
    job = smoke_job(prepared, site, choose.prefix_here(flags))
    text = f"job: {site.cost(job)}{all_nodes(site, job)}; {site.not_asked}{choose.filled_here(flags)}"
    jobs = Jobs(tuple(text.splitlines()), {job.name: site.scheduler.render(job)})
    ui.result({"cost": job.cost(), **jobs.as_dict()}, lambda: [*((line, "") for line in jobs.lines), *_scripts(jobs)])
    return 0


def _prepared(ui: Ui, flags: dict[str, Any]) -> tuple[Prepared, Settings]:
    """What is asked about, as `prepare` has it, and how; nodes that were left out are told."""
    from envbuild.catalog.loader import manifest_digest

    config = choose.configured(flags)
    prepared = choose.prepared_of(ui, flags, config, locked=False, jobs=True)
    if prepared.selection is not None:
        ui.note(str(prepared.selection))
    if prepared.lock.manifest_digest != manifest_digest(prepared.stack, prepared.profile):
        ui.warn(
            f"the stack {prepared.stack.name} has changed since its lock was made: what is looked at is what the lock "
            f"says; `envbuild lock check {prepared.reference}` says where they differ"
        )
    return prepared, choose.settings_of(config)


def _one_place() -> bool:
    """Whether stdout and stderr are one terminal, pipe or file."""
    if sys.stdout.isatty() and sys.stderr.isatty():
        return True
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except OSError:  # streams without a file
        return False


def show_evidence(ui: Ui, evidence: Evidence, run: RunDir) -> int:
    """The summary of a run that changed nothing, and the errors of its nodes; its exit code.

    Where stdout and stderr go to one place, the error that stands in the summary is not printed again.
    """
    from envbuild.report.terminal import summary_lines
    from envbuild.report.view import View

    page = str(run.path / "report.html")
    ui.result(evidence.to_json_dict(), lambda: summary_lines(evidence, page, verbose=ui.verbose))
    in_summary = View(evidence).nodes_by_need[:1] if _one_place() else ()
    for node in evidence.nodes:
        if node.error and not ui.json and node not in in_summary:
            print_error(EnvbuildError.from_dict(node.error))
    return evidence.exit
