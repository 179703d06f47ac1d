"""A stack's own run: `envbuild launch` prints, runs or submits its commands; `bench` measures; `data` makes data."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import choose
from envbuild.cli.output import Ui, comments_fitted, common_options
from envbuild.cli.progress import RunProgress
from envbuild.cli.provision_cmd import show_evidence
from envbuild.errors import EnvbuildError, ExitCode, writing
from envbuild.node.redact import redact_text, secrets_of
from envbuild.text import plural

if TYPE_CHECKING:
    from envbuild.launch.request import Place
    from envbuild.model.launch import Launch
    from envbuild.model.stack import Stack
    from envbuild.model.target import Target
    from envbuild.provision.jobs.launch import Asked
    from envbuild.provision.jobs.site import JobSite
    from envbuild.provision.run.context import Prepared
    from envbuild.schedule.job import Job

_LONGEST_JOB = 999_999.0 * 3600
environment_option = click.option(
    "--environment", metavar="DIR", help="The built environment (default: the one in use under the prefix)."
)
# What is run, and on how much: of `launch` and `bench`.
run_options = choose.options(
    choose.pairs_option("--set", "settings", help_="Set a parameter of the stack; repeatable."),
    click.option(
        "--nodes", type=choose.Count(min=1), help="Number of nodes (default: 1; of a submitted job, the target's)."
    ),
    click.option("--gpus-per-node", type=choose.Count(min=1), help="GPUs of a node (default: the target's)."),
    click.option("--master", metavar="ADDR", help="Address of the first node (`bench` over SSH: its SSH address)."),
    click.option("--port", type=choose.Count(1024, 65535), help="Port of the first node (default: the document's)."),
)


@click.command("launch")
@choose.stack_argument(run=True)
@choose.profile_option
@choose.target_option
@choose.prefix_option
@run_options
@click.option("--job", metavar="ID", help="Job id of the scheduler.")
@click.option("--node", "rank", type=choose.Count(min=0), help="Print only the commands of the node with this rank.")
@click.option("--hostfile", metavar="FILE", help="Node file of the MPI launcher.")
@click.option("--image", metavar="IMAGE", help="Container image to start in: an image reference or a .sqsh file.")
@environment_option
@click.option("-o", "--output", metavar="DIR", help="Where the run writes (default: here).")
@click.option("--run", "run_here", is_flag=True, help="Run this node's command here, and exit with its exit code.")
@click.option(
    "--submit", is_flag=True, help="Run it as a job of the target's scheduler, wait, and exit with its exit code."
)
@click.option("--print-script", is_flag=True, help="Print the job script of --submit, and submit nothing.")
@click.option("--no-wait", is_flag=True, help="With --submit: print the number of the job, and do not wait.")
@click.option("--cancel-job", is_flag=True, help="With --submit: Ctrl-C also ends the job.")
@choose.time_option(
    "--time-limit", least=1, most=_LONGEST_JOB, help="How long the job may run (default: the target's)."
)
@click.option("--parameters", is_flag=True, help="List what --set takes, and print no command.")
@common_options
def launch(ui: Ui, /, **flags: Any) -> int:
    """Print the commands that start STACK; --run and --submit start it.

    Without STACK, it is the one that the target names.
    """
    from envbuild.catalog.loader import load_stack
    from envbuild.launch.recipes import launch as make
    from envbuild.launch.recipes import launch_data
    from envbuild.launch.shell import render

    loaded = load_stack(flags["stack"])
    launch_data(loaded.stack)
    if flags["parameters"]:
        return _parameters(ui, loaded.stack)
    flags["submit"] |= flags["print_script"]
    _refuse_together(flags)
    profile = profile_to_run(flags, "launch")
    if flags["submit"]:
        return submit(ui, loaded.stack, profile, flags)
    place = launch_place(loaded.stack.name, flags)
    try:
        made = make(loaded.stack, profile, flags["settings"], place)
    except EnvbuildError as error:
        wanted = choose.described_target(flags).scheduler.nodes or 1
        if error.code == "launch-does-not-fit" and wanted > 1 and not flags["nodes"]:
            more = f"without --nodes it is for one node, and the target has {wanted}"
            error.why = "; ".join(filter(None, (error.why, more)))
        raise
    made = _of_rank(made, flags["rank"])
    target = choose.described_target(flags)
    if _for_a_job(target, flags):
        note = (
            f"for a machine of the cluster, not for this one; as a job of envbuild: {_job_instead(made, target, flags)}"
        )
        made = made.model_copy(update={"notes": (*made.notes, note.replace("\n", "; "))})
    activate = None if place.image else f"{place.environment}/.envbuild/activate.sh"
    if flags["run_here"]:
        _ask_for_environment(ui, flags)
        return run_here(ui, made, place, activate, _where(flags))
    data = {"launch": made.to_json_dict(), **({} if activate is None else {"activate": activate})}
    ui.result(data, lambda: comments_fitted(render(made, place.output, activate), sys.stdout), verbatim=True)
    return 0


def _ask_for_environment(ui: Ui, flags: dict[str, Any]) -> None:
    """Before an environment that nobody named runs here: its prefix may have come with the folder.

    Raises EnvbuildError `target-untrusted` (exit 7).
    """
    if not flags["environment"]:
        choose.named_target(ui, flags, choose.configured(flags))


def _refuse_together(flags: dict[str, Any]) -> None:
    """Options that belong to another way of starting."""
    if flags["submit"] and flags["run_here"]:
        raise click.UsageError("--run starts it here and --submit as a job: choose one")
    given = [name for name in ("master", "job", "hostfile", "rank") if flags["submit"] and flags[name] is not None]
    if given:
        option = {"rank": "node"}.get(given[0], given[0])
        raise click.UsageError(f"--{option} cannot be used with --submit: the job says it")
    for name in ("no_wait", "cancel_job", "time_limit"):
        if flags[name] and not flags["submit"]:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --submit")


def launch_place(stack: str, flags: dict[str, Any]) -> Place:
    """Nodes, GPUs and folders of a launch.

    Raises EnvbuildError `launch-parameter` (exit 2), `launch-does-not-fit` (exit 7).
    """
    from pydantic import ValidationError

    from envbuild.launch.request import Place

    target = choose.described_target(flags)
    output = flags["output"] or "."
    elsewhere = target.connection.kind == "ssh" and not flags.get("run_here")
    if (elsewhere or _for_a_job(target, flags)) and not flags["output"]:
        output = f"{choose.prefix_here(flags)}/launches"  # a folder that the nodes have too
    gpus = flags["gpus_per_node"] or target.expects.gpus_per_node
    if gpus is None:
        from envbuild.provision.jobs.launch import gpus_unsaid

        raise gpus_unsaid()
    given: dict[str, Any] = {name: flags.get(name) for name in ("master", "port", "job", "image")}
    try:
        return Place(
            nodes=flags.get("nodes") or 1,
            gpus_per_node=gpus,
            environment=environment_of(stack, flags),
            output=choose.absolute(output),
            hostfile=choose.absolute(flags["hostfile"]) if flags.get("hostfile") else None,
            **given,
            direct=not target.scheduler.starts_tasks,
            gpu=target.expects.gpu,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise EnvbuildError(
            "launch-parameter", f"{first['loc'][0]} {first['input']!r} is not possible", why=str(first["msg"])
        ) from error


def _job_instead(made: Launch, target: Target, flags: dict[str, Any]) -> str:
    """The command that submits the launch as a job, and in what that differs from what is printed."""
    nodes, limit = target.scheduler.nodes, target.scheduler.time_limit or flags["time_limit"]
    own = [] if flags["target"] else ["--target", str(choose.configured(flags).target)]
    own += [] if limit else ["--time-limit", "2h"]
    again = f"`{shlex.join(['envbuild', *sys.argv[1:], *own, '--submit'])}`"
    if nodes and nodes != made.nodes:
        again += f"; a job of the target has {plural(nodes, 'node')}, this is for {made.nodes}"
    return again + choose.filled_here(flags)


def _for_a_job(target: Target, flags: dict[str, Any]) -> bool:
    """Whether what is printed is for nodes that a job gets, and this is none of them."""
    here = flags.get("run_here") or any(map(os.environ.get, ("SLURM_JOB_ID", "PBS_JOBID")))
    return target.connection.kind == "job" and not here


def environment_of(stack: str, flags: dict[str, Any]) -> str:
    """The environment of a launch: the one that is named, else where the one in use lies under the prefix."""
    if flags.get("environment"):
        return choose.absolute(flags["environment"])
    return f"{choose.prefix_here(flags)}/current/{stack}"


def profile_to_run(flags: dict[str, Any], verb: str, *, read: bool = False) -> str:
    """The profile of a run: asked for, else of the environment in use where that lies here, else as `provision` has it.

    Raises EnvbuildError `profile-cannot-run` (exit 7), unless logs are only `read`.
    """
    from envbuild.catalog.loader import load_stack
    from envbuild.lock.agreement import choose_profile, profile_in_use, refuse_unable

    config, loaded, target = choose.configured(flags), load_stack(flags["stack"]), choose.described_target(flags)
    asked = flags["profile"] or config.profile
    if not (asked or flags.get("image") or target.connection.kind == "ssh"):
        asked = profile_in_use(loaded.stack, environment_of(loaded.stack.name, flags))
    profile = choose_profile(loaded, asked, target).name
    if not read:
        refuse_unable(loaded.stack, profile, verb, _where(flags))
    return profile


def _where(flags: dict[str, Any]) -> str:
    """Stack and target of these flags, as words of another command."""
    prefix = ["--prefix", flags["prefix"]] if flags["prefix"] else []
    return shlex.join([flags["stack"], "--target", flags["target"] or choose.configured(flags).target, *prefix])


def _of_rank(made: Launch, rank: int | None) -> Launch:
    """Only the commands of one node; a command without a node of its own belongs to the first."""
    if rank is None:
        return made
    commands = tuple(command for command in made.commands if (command.node or 0) == rank)
    if not commands:
        raise EnvbuildError(
            "launch-parameter",
            f"node {rank} has no command of its own",
            hint="one command of node 0 starts all nodes" if rank < made.nodes else f"nodes are 0 to {made.nodes - 1}",
        )
    return made.model_copy(update={"commands": commands})


def _parameters(ui: Ui, stack: Any) -> int:
    from envbuild.launch.recipes import launch_data, parameters_of

    _, data = launch_data(stack)
    rows = [
        {"name": field.alias or name, "default": data.defaults.get(field.alias or name), "what": field.description}
        for name, field in parameters_of(data).model_fields.items()
    ]
    width = max((len(str(row["name"])) for row in rows), default=0)

    def human() -> str:
        return "\n".join(
            f"{row['name']:{width}}  {row['what']}" + (f" (default: {row['default']})" if row["default"] else "")
            for row in rows
        )

    ui.result({"parameters": rows}, human)
    return 0


def run_here(ui: Ui, made: Launch, place: Place, activate: str | None, where: str) -> int:
    """Become the command of one node on this machine; `where` names stack and target in hints.

    Raises EnvbuildError: `launch-parameter` (exit 2) where several nodes have commands and none was chosen, and
    `environment-unknown` (exit 1).
    """
    from envbuild.launch.shell import steps_of

    if len(made.commands) > 1:
        raise EnvbuildError(
            "launch-parameter",
            f"{len(made.commands)} nodes have one command each, and this machine is one node",
            hint="run it with --node RANK on each node, or start all nodes with --submit",
        )
    programs = (command.argv[0] for command in made.commands if command.argv[0].startswith("/"))
    missing = [path for path in (activate, *programs) if path and not Path(path).exists()]
    if missing:
        raise EnvbuildError(
            "environment-unknown",
            f"there is no {missing[0]}",
            hint=f"build it: `envbuild provision {where}`; or name the environment: `--environment DIR`",
            exit_code=ExitCode.CHECK_FAILED,
        )
    if not ui.quiet:
        from envbuild.launch.shell import render

        sys.stderr.write(redact_text(render(made, place.output, activate)))
    *first, last = steps_of(made, place.output, activate)
    for step in first:
        code = subprocess.run(["bash", "-c", step.text], check=False).returncode
        if code:
            return code
    sys.stdout.flush()
    sys.stderr.flush()
    # In place of this process: signals reach the run as they come, and its exit code is ours.
    os.execvp("bash", ["bash", "-c", last.text])  # noqa: S606 - the text is quoted word by word


def submit(ui: Ui, stack: Stack, profile: str, flags: dict[str, Any]) -> int:
    """Submit the launch as a job, or print its file; waits for it unless told not to."""
    from envbuild.launch.shell import summary
    from envbuild.provision.jobs.launch import make_job, run_job
    from envbuild.provision.jobs.site import submit as submit_job
    from envbuild.provision.run.context import one_run

    target, asked = choose.target_of(ui, flags, jobs=True), asked_of(flags)
    if flags["print_script"]:
        home = ""
        try:
            site, job, made = make_job(target, stack, profile, asked)
        except EnvbuildError as error:
            if error.code not in ("scheduler-missing", "scheduler-unreachable", "node-unreachable"):
                raise
            site, job, made = make_job(target, stack, profile, asked, prefix=choose.prefix_here(flags))
            home = choose.filled_here(flags)
            ui.warn(f"{error.what}; {site.not_asked}")
        if late := _late(target, stack, made, asked):
            ui.warn(late)
        for line in summary(made):
            ui.note(line)
        text = site.scheduler.render(job, _by_hand(ui, site, job, stack, profile, flags) + home)
        ui.result({"script": text, "cost": job.cost()}, lambda: text, verbatim=True)
        return 0
    settings = replace(choose.settings_of(choose.configured(flags)), cancel_job=flags["cancel_job"])
    names = {"stack": stack.name, "profile": profile, "target": target.name}
    with RunProgress(ui) as progress, one_run("launch", settings, progress, **names) as run:
        site, job, made = make_job(target, stack, profile, asked, run.run)
        if late := _late(target, stack, made, asked):
            run.journal.stage(late)
        for default in made.defaults:
            why = f" ({default.why})" if default.why else ""
            run.journal.stage(f"default: {default.name}={default.value}{why}")
        for line in summary(made):
            run.journal.stage(line)
        if flags["no_wait"]:
            number = submit_job(run, site, job)
            ui.result({"job": number, "output": job.output}, lambda: number)
            return 0
        run.exit = run_job(run, site, job, lambda text: progress.pause(lambda: sys.stderr.write(redact_text(text))))
    ui.result({"exit": run.exit, "run": run.run.id}, lambda: "")
    return run.exit


def _late(target: Target, stack: Stack, made: Launch, asked: Asked) -> str:
    """What `bench` says of a run that hardly ends in its job. Raises as it does for one that cannot."""
    from envbuild.provision.bench import refuse_too_long

    reference = stack.reference
    if reference is None or reference.bench is None:
        return ""
    limit = asked.time_limit or target.scheduler.time_limit
    limited = target.model_copy(update={"scheduler": target.scheduler.model_copy(update={"time_limit": limit})})
    return refuse_too_long(limited, reference, reference.bench, made, None, None)


def _by_hand(ui: Ui, site: JobSite, job: Job, stack: Stack, profile: str, flags: dict[str, Any]) -> str:
    """How to submit a job that was printed: the scheduler opens its log before the job could make the folder.

    And how its log becomes a report. What nobody knows of its request is a warning too.
    """
    from envbuild.provision.jobs.site import cpus_unknown
    from envbuild.schedule.script import log_name

    if unknown := cpus_unknown(site, job):
        ui.warn(unknown)
    words = ["--profile", profile, "--nodes", str(job.nodes), "--gpus-per-node", str(job.gpus_per_node)]
    words += [word for name, value in flags["settings"].items() for word in ("--set", f"{name}={value}")]
    folder = shlex.quote(job.output)
    lines = [unknown, site.scheduler.submission(secrets_of(job.variables), folder)]
    if stack.reference is not None and stack.reference.bench is not None:
        log = f"{folder}/{log_name(job, 'NUMBER')}"
        lines.append(f"For a report of it: `envbuild bench {_where(flags)} {shlex.join(words)} --log {log}`.")
        lines.append(
            "The report of a job that you submit by hand (`bench --log`) says *not comparable*: nobody saw its GPUs. "
            "`bench` without --log compares."
        )
    return "\n" + "\n".join(filter(None, lines))


def asked_of(flags: dict[str, Any]) -> Asked:
    """What the options ask of a job. Raises click.UsageError."""
    from envbuild.provision.jobs.launch import Asked

    limit = flags.get("time_limit")
    for name in ("environment", "output"):
        if flags.get(name) and not flags[name].startswith("/"):
            raise click.UsageError(f"--{name} elsewhere is an absolute path on the nodes, not {flags[name]!r}")
        if ".." in (flags.get(name) or "").split("/"):
            raise click.UsageError(f"--{name} is a path without '..', not {flags[name]!r}")
    names = ("nodes", "gpus_per_node", "environment", "image", "output", "port", "deadline")
    given = {name: flags.get(name) for name in names}
    return Asked(flags["settings"], time_limit=f"{limit:.0f}s" if limit else None, where=_where(flags), **given)


@click.command("bench")
@choose.stack_argument(run=True)
@choose.where_options
@run_options
@click.option("--trials", type=choose.Count(min=1, max=100), default=1, help="Number of runs (default: 1).")
@choose.time_option("--run-timeout", "deadline", least=1, most=864000, default="1h", help="Longest time of a run.")
@click.option(
    "-o", "--output", metavar="DIR",
    help="Folder for the trials, each in a new subfolder (default: ./bench; on other hosts, below the prefix).",
)  # fmt: skip
@click.option(
    "--log", "logs", multiple=True, metavar="FILE", type=choose.FILE_THERE,
    help="Read the log of a run made elsewhere; runs nothing. Repeatable.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the commands of a trial, and run nothing; needs no GPU.")
@common_options
def bench(ui: Ui, /, trials: int, logs: tuple[Path, ...], **flags: Any) -> int:
    """Run STACK's own command, and compare its figure with the document's.

    Runs here, over SSH, or each run as a job. Exit 1 if a run fails or prints no figure, 6 if it is below the claim on
    the GPUs of the claim. Ctrl-C or a lost connection ends the job too. Without STACK, it is the one that the target
    names. Which size runs on how many nodes: docs/measure.md.
    """
    from envbuild.catalog.loader import load_stack
    from envbuild.provision.bench import Asked, bench
    from envbuild.provision.own_run import measured_by

    config = choose.configured(flags)
    measured_by(load_stack(flags["stack"]).stack)
    profile = profile_to_run(flags, "bench", read=bool(logs))
    prepared = choose.prepared_of(ui, {**flags, "profile": profile}, config, locked=False, jobs=True)
    kind = "local" if logs else prepared.target.connection.kind
    if kind == "local":
        flags["output"] = choose.absolute(flags["output"] or "bench")
    if flags["dry_run"]:
        return _trial_as_text(ui, prepared, flags, trials)
    place = None if kind == "job" else launch_place(prepared.stack.name, flags)
    asked = Asked(asked_of(flags), place, trials, logs)
    with RunProgress(ui) as progress:
        # Nobody would read what an interrupted job goes on to print.
        settings = replace(choose.settings_of(config), cancel_job=True)
        return show_evidence(ui, *bench(prepared, settings, progress, asked))


def _trial_as_text(ui: Ui, prepared: Prepared, flags: dict[str, Any], trials: int) -> int:
    """What a trial of `bench` runs: the file of its job, or its commands."""
    from envbuild.launch.recipes import launch
    from envbuild.launch.shell import render, summary
    from envbuild.provision.bench import claim_expected, doubts
    from envbuild.provision.jobs.launch import make_job
    from envbuild.provision.own_run import measured_by

    reference, measured = measured_by(prepared.stack)
    asked = asked_of(flags)
    if prepared.target.connection.kind == "job":
        site, job, made = make_job(
            prepared.target, prepared.stack, prepared.profile, asked, prefix=choose.prefix_here(flags)
        )
        ui.note(site.not_asked)
        hours = job.gpu_hours(trials)
        many = f" {trials} trials, a job each: at most {hours}." if trials > 1 and hours else ""
        for line in (f"job: {site.cost(job)}.{many}", *summary(made)):
            ui.note(line)
        text = site.scheduler.render(
            job, f"{many}{_by_hand(ui, site, job, prepared.stack, prepared.profile, flags)}{choose.filled_here(flags)}"
        )
    else:
        place = launch_place(prepared.stack.name, flags)
        made = launch(prepared.stack, prepared.profile, flags["settings"], place)
        text = render(made, place.output, f"{place.environment}/.envbuild/activate.sh")
    late = doubts(prepared.target, reference, measured, made, None, asked.deadline)
    for doubt in (*prepared.never_built, *late):
        ui.warn(doubt)
    claim = claim_expected(prepared.target, reference, measured, made, None)
    claimed = f"claimed: {claim.value:g} {measured.unit}, {claim.where}" if claim else "no figure is claimed for it"
    ui.note(f"it measures {measured.metric} in {measured.unit} of the run below; {claimed}")
    data: dict[str, Any] = {"launch": made.to_json_dict(), "script": text}
    data |= {"metric": measured.metric, "unit": measured.unit}
    data["claim"] = claim.model_dump(include={"value", "where", "source", "gpu", "gpus", "hosts"}) if claim else None
    ui.result(data, lambda: comments_fitted(text, sys.stdout), verbatim=True)
    return 0


@click.command("data")
@choose.stack_argument(run=True)
@choose.target_option
@choose.prefix_option
@environment_option
@click.option("-o", "--output", metavar="DIR", default="data", help="Where to put the data (default: ./data).")
@click.option("--real", is_flag=True, help="The document's own files: downloaded, unpacked and preprocessed.")
@click.option(
    "--from", "folders", multiple=True, metavar="DIR", type=choose.FOLDER_THERE,
    help="With --real: take the document's files from this folder, and download none. Repeatable.",
)  # fmt: skip
@common_options
def data(ui: Ui, /, real: bool, folders: tuple[Path, ...], **flags: Any) -> int:
    """Make small synthetic data for STACK's own run, or its document's data.

    Makes a corpus and a tokenizer with the stack's own tool. The same environment makes the same bytes; a second
    call replaces them. With --real, uses the document's own files: envbuild records the sha256 of each in your lock of
    the stack at the first download, and compares it later.
    """
    from envbuild.catalog.loader import load_stack, lock_path, pick_profile, shipped_lock
    from envbuild.lock.agreement import profile_in_use
    from envbuild.lock.files import read_lock
    from envbuild.lock.record import record_data
    from envbuild.provision.training_data import Real, make

    if folders and not real:
        raise click.UsageError("--from needs --real")
    loaded = load_stack(flags["stack"])
    _ask_for_environment(ui, flags)
    place = launch_place(loaded.stack.name, {"gpus_per_node": 1, **flags})
    own = None
    if real:
        profile = pick_profile(loaded, profile_in_use(loaded.stack, place.environment))
        path = lock_path(loaded, profile)
        lock = read_lock(path)
        path = shipped_lock(loaded, profile)[1] if loaded.shipped else path

        def record(name: str, sha256: str) -> None:
            nonlocal lock
            lock = record_data(path, lock, name, sha256)
            ui.note(f"recorded sha256 {sha256} of {name} in {path}")

        own = Real(folders, lock.data, record, ui.note)
    with writing(Path(place.output)):
        connection = choose.described_target(flags).connection
        host = connection.login.host if connection.login else "the target's hosts" * (connection.kind == "ssh")
        made = make(loaded.stack, place, own, where=_where(flags), host="" if flags["environment"] else host)
    files = [{"file": f"{place.output}/{name}", "sha256": digest} for name, digest in made.items()]
    if own is None:
        ui.note("these data are synthetic; --real takes the document's own")
    kind = "synthetic" if own is None else "real"
    ui.result({"kind": kind, "files": files}, lambda: "\n".join(f"{row['sha256']}  {row['file']}" for row in files))
    return 0
