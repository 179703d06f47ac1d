"""Which verb lives in which module. Help and completion read this table, so that nothing else is imported."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import click

from envbuild import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


# Verb -> its module in this package, where a click command has the name of the verb, and its line of `--help`.
VERBS: dict[str, tuple[str, str]] = {
    "explain": ("explain_cmd", "What a stack's document gets wrong, and what is done instead"),
    "plan": ("provision_cmd", "Say what would run where, and why"),
    "probe": ("nodes_cmd", "Read the facts of the nodes"),
    "provision": ("provision_cmd", "Build the environment of a stack on a target"),
    "smoke": ("nodes_cmd", "Run the smoke benchmarks in a built environment"),
    "verify": ("nodes_cmd", "Compare a built environment with its lock and stamp"),
    "doctor": ("doctor_cmd", "Check this machine, or say what follows on a cluster"),
    "launch": ("launch_cmd", "Print the commands that start a stack, or run them here or as a job"),
    "bench": ("bench_cmd", "Measure a stack's own run, and compare it with its document"),
    "strategy": ("strategy_cmd", "Search the parallel degrees that train fastest, by trials"),
    "data": ("data_cmd", "Make small synthetic data for a stack's own run"),
    "trace": ("trace_cmd", "Show MegatronAPP's traces: Chrome trace, SVG, xlsx"),
    "stack": ("stack_cmd", "Stacks: list, show, validate"),
    "target": ("target_cmd", "Targets: list, show, validate, init"),
    "lock": ("lock_cmd", "Locks: create, record, sizes, check, diff, export"),
    "patch": ("patch_cmd", "Patches: list, apply"),
    "env": ("env_cmd", "Environments: list, activate, exec, shell, kernel, use, prune"),
    "bundle": ("bundle_cmd", "Bundles for machines without a network: create, verify, list"),
    "wheels": ("wheels_cmd", "Wheels built from source: list, verify, prune"),
    "cache": ("cache_cmd", "Caches of this machine and of nodes: show, clean"),
    "image": ("image_cmd", "Images: dockerfile, build, verify, diff, pin, apptainer, pods, workflow"),
    "run": ("run_cmd", "Runs: list, show, watch, prune"),
    "report": ("report_cmd", "Reports: show, verify, sign, diff, merge, kit"),
    "config": ("config_cmd", "Configuration: show, fabfile, playbooks"),
    "completion": ("completion_cmd", "Print the completion script of a shell"),
}
# What other tools call it. A second name for a verb would be one more thing to know, so it is only told.
MEANT = {
    **dict.fromkeys(("install", "build", "create", "setup", "sync", "up", "apply", "update"), "provision"),
    **dict.fromkeys(("list", "ls", "status", "envs", "environments"), "env list"),
    **dict.fromkeys(("activate", "deactivate", "use"), "env activate"),
    **dict.fromkeys(("uninstall", "remove", "rm", "delete", "destroy"), "env remove"),
    **dict.fromkeys(("clean", "prune", "gc"), "cache clean"),
    **dict.fromkeys(("init", "new"), "target init"),
    **dict.fromkeys(("check", "validate", "diff"), "verify"),
    **dict.fromkeys(("test", "tests"), "smoke"),
    **dict.fromkeys(("info", "facts", "inspect"), "probe"),
    **dict.fromkeys(("logs", "log", "history", "runs"), "run list"),
    **dict.fromkeys(("docs", "show", "describe"), "explain"),
    **dict.fromkeys(("docker", "container", "images"), "image"),
    **dict.fromkeys(("start", "submit", "train"), "launch"),
    **{name: f"env {name}" for name in ("exec", "shell", "kernel")},
    "export": "lock export",
    "stacks": "stack list",
    "targets": "target list",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one verb."""
        if cmd_name not in VERBS:
            return None
        command = getattr(importlib.import_module(f"envbuild.cli.{VERBS[cmd_name][0]}"), cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{cmd_name} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest verb when there is none of that name; `help VERB` is `VERB --help`."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            import difflib

            meant = MEANT.get(args[0]) or next(iter(difflib.get_close_matches(args[0], VERBS, n=1)), "")
            ctx.fail(f"no such verb: {args[0]}" + (f" (did you mean `{meant}`?)" if meant else ""))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Verbs and options from the table, without importing the commands."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=line) for name, (_, line) in VERBS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help lines from the table, without importing the commands."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 ok, 1 check failed or drift, 2 usage, 3 unreachable, 4 build failed, 5 integrity, "
    "6 below floor, 7 refused, 8 partial, 9 job failed, 70 internal, 75 try again, 130 interrupted.",
)
@click.version_option(__version__, message="envbuild %(version)s")
def cli() -> None:
    """Provision and verify reproducible GPU training environments."""
