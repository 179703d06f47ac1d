"""Which verb lives in which module. Help and completion read this table, so that nothing else is imported."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

import click

from envbuild import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Verb(NamedTuple):
    """`module:attribute` of a click command, and the line that `--help` shows for it."""

    module: str
    attribute: str
    help: str


VERBS: dict[str, Verb] = {
    "explain": Verb(
        "envbuild.cli.explain_cmd", "explain", "What a stack's document gets wrong, and what is done instead"
    ),
    "plan": Verb("envbuild.cli.provision_cmd", "plan", "Say what would run where, and why"),
    "probe": Verb("envbuild.cli.nodes_cmd", "probe", "Read the facts of the nodes"),
    "provision": Verb("envbuild.cli.provision_cmd", "provision", "Build the environment of a stack on a target"),
    "smoke": Verb("envbuild.cli.nodes_cmd", "smoke", "Run the smoke benchmarks in a built environment"),
    "verify": Verb("envbuild.cli.nodes_cmd", "verify", "Compare a built environment with its lock and stamp"),
    "doctor": Verb("envbuild.cli.doctor_cmd", "doctor", "Check this machine, or say what follows on a cluster"),
    "launch": Verb(
        "envbuild.cli.launch_cmd", "launch", "Print the commands that start a stack, or run them here or as a job"
    ),
    "bench": Verb("envbuild.cli.bench_cmd", "bench", "Measure a stack's own run, and compare it with its document"),
    "strategy": Verb(
        "envbuild.cli.strategy_cmd", "strategy", "Search the parallel degrees that train fastest, by trials"
    ),
    "data": Verb("envbuild.cli.data_cmd", "data", "Make small synthetic data for a stack's own run"),
    "trace": Verb("envbuild.cli.trace_cmd", "trace", "Show MegatronAPP's traces: Chrome trace, SVG, xlsx"),
    "stack": Verb("envbuild.cli.stack_cmd", "stack", "Stacks: list, show, validate"),
    "target": Verb("envbuild.cli.target_cmd", "target", "Targets: list, show, validate, init"),
    "lock": Verb("envbuild.cli.lock_cmd", "lock", "Locks: create, sizes, check, diff, export"),
    "patch": Verb("envbuild.cli.patch_cmd", "patch", "Patches: list, apply"),
    "env": Verb("envbuild.cli.env_cmd", "env", "Environments: list, activate, exec, shell, kernel, use, prune"),
    "wheels": Verb("envbuild.cli.wheels_cmd", "wheels", "Wheels built from source: list, verify, prune, pack, unpack"),
    "cache": Verb("envbuild.cli.cache_cmd", "cache", "Caches of this machine and of nodes: show, clean"),
    "image": Verb(
        "envbuild.cli.image_cmd", "image", "Images: dockerfile, build, verify, diff, pin, apptainer, pods, workflow"
    ),
    "run": Verb("envbuild.cli.run_cmd", "run", "Runs: list, show, watch, prune"),
    "report": Verb("envbuild.cli.report_cmd", "report", "Reports: show, verify, sign, diff, merge, kit"),
    "config": Verb("envbuild.cli.config_cmd", "config", "Configuration: show, fabfile, playbooks"),
    "completion": Verb("envbuild.cli.completion_cmd", "completion", "Print the completion script of a shell"),
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
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        command = getattr(importlib.import_module(verb.module), verb.attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{verb.module}.{verb.attribute} is not a command")
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

        found = [CompletionItem(name, help=verb.help) for name, verb in VERBS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help lines from the table, without importing the commands."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 ok, 1 check failed or drift, 2 usage, 3 unreachable, 4 build failed, 5 integrity, "
    "6 below floor, 7 refused, 8 partial, 9 job failed, 70 internal, 75 try again, 130 interrupted.",
)
@click.version_option(__version__, message="envbuild %(version)s")
def cli() -> None:
    """Provision and verify reproducible GPU training environments."""
