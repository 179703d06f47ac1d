"""What `envbuild launch` does with `--run` and `--submit`."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli.choose import configured, named_target, settings_of
from envbuild.cli.output import Ui
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.redact import redact_text

if TYPE_CHECKING:
    from envbuild.launch.command import Place
    from envbuild.model.launch import Launch
    from envbuild.model.stack import Stack
    from envbuild.provision.jobs.launch import Asked


def run_here(ui: Ui, made: Launch, place: Place, activate: str | None) -> int:
    """Become the command of one node on this machine.

    Raises EnvbuildError: `launch-parameter` (exit 2) where several nodes have commands and none was chosen, and
    `environment-unknown` (exit 1).
    """
    from envbuild.launch.job_steps import steps_of

    if len(made.commands) > 1:
        raise EnvbuildError(
            "launch-parameter",
            f"{len(made.commands)} nodes have a command each, and this is one node",
            hint="--node RANK on each of them; or --submit, which starts all",
        )
    missing = [path for path in (activate, *_programs(made)) if path and not Path(path).exists()]
    if missing:
        raise EnvbuildError(
            "environment-unknown",
            f"there is no {missing[0]}",
            hint=f"build it: envbuild provision {made.stack}; or name the environment: --environment DIR",
            exit_code=ExitCode.CHECK_FAILED,
        )
    if not ui.quiet:
        from envbuild.launch.shell import render

        sys.stderr.write(redact_text(render(made, activate)))
    *first, last = steps_of(made, place.output, activate)
    for step in first:
        code = subprocess.run(["bash", "-c", step.text], check=False).returncode
        if code:
            return code
    sys.stdout.flush()
    sys.stderr.flush()
    # In place of this process: signals reach the run as they come, and its exit code is ours.
    os.execvp("bash", ["bash", "-c", last.text])  # noqa: S606 - the text is quoted word by word


def _programs(made: Launch) -> list[str]:
    return [command.argv[0] for command in made.commands if command.argv[0].startswith("/")]


def submit(ui: Ui, stack: Stack, profile: str, values: dict[str, str], flags: dict[str, Any]) -> int:
    """Submit the launch as a job, or print its file; waits for it unless told not to."""
    from envbuild.cli.progress import RunProgress
    from envbuild.provision.jobs.launch import make_job, run_job
    from envbuild.provision.jobs.submit import submit as submit_job
    from envbuild.provision.run.findings import Narrowing
    from envbuild.provision.run.life import one_run
    from envbuild.provision.survey.hosts import reach

    config = configured(flags)
    overrides = {"prefix": config.prefix} if config.prefix else {}
    target, _ = reach(named_target(ui, flags, config), overrides, Narrowing(), jobs=True)
    asked = asked_of(values, flags)
    if flags["print_script"]:
        site, job, _ = make_job(target, stack, profile, asked)
        text = site.scheduler.render(job)
        ui.result({"script": text, "cost": job.cost()}, lambda: text, verbatim=True)
        return 0
    settings = replace(settings_of(config), cancel_job=flags["cancel_job"])
    told = {"stack": stack.name, "profile": profile, "target": target.name}
    with RunProgress(ui) as progress, one_run("launch", settings, progress, **told) as run:
        site, job, made = make_job(target, stack, profile, asked, run.run)
        for default in made.defaults:
            why = f" ({default.why})" if default.why else ""
            run.journal.stage(f"not said: {default.name}={default.value}{why}")
        if flags["no_wait"]:
            number = submit_job(run, site, job)
            ui.result({"job": number, "output": job.output}, lambda: number)
            return 0
        run.exit = run_job(run, site, job, lambda text: progress.pause(lambda: sys.stderr.write(redact_text(text))))
    ui.result({"exit": run.exit, "run": run.run.id}, lambda: "")
    return run.exit


def asked_of(values: dict[str, str], flags: dict[str, Any]) -> Asked:
    """What the options ask of a job. Raises click.UsageError."""
    from envbuild.provision.jobs.launch import Asked

    limit = flags.get("time_limit")
    for name in ("environment", "output"):
        if flags.get(name) and not flags[name].startswith("/"):
            raise click.UsageError(f"--{name} elsewhere is an absolute path on the nodes, not {flags[name]!r}")
        if ".." in (flags.get(name) or "").split("/"):
            raise click.UsageError(f"--{name} is a path without '..', not {flags[name]!r}")
    names = ("nodes", "gpus_per_node", "environment", "image", "output", "port", "deadline")
    return Asked(values, time_limit=f"{limit:.0f}s" if limit else None, **{name: flags.get(name) for name in names})
