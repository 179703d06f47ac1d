"""The tree of commands: which command lives in which module. Help and completion read this table and import nothing."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING

import click

from envbuild import __version__
from envbuild.errors import EnvbuildError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from click.shell_completion import CompletionItem


# Section of `--help` -> command -> its module in this package, where a click command has this name, and its summary.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Start": {
        "up": ("init_cmd", "From a page, folder or repository to a verified environment"),
        "init": ("init_cmd", "Write a first target file, or draft a stack from a page"),
        "doctor": ("doctor_cmd", "Check this machine, or the nodes of a target"),
    },
    "Everyday": {
        "plan": ("provision_cmd", "Say what would run where, and why"),
        "provision": ("provision_cmd", "Build, test and verify the environment of a stack"),
        "status": ("env_cmd", "List the environments on every node"),
        "verify": ("provision_cmd", "Compare every file of an environment with its lock and stamp"),
        "smoke": ("provision_cmd", "Run the smoke tests in a built environment"),
        "env": ("env_cmd", "Environments: activate, run, use, remove, kernel"),
    },
    "Measure": {
        "bench": ("launch_cmd", "Measure a stack's own run, compare it with its document"),
        "launch": ("launch_cmd", "Print the commands that start a stack, or run them"),
        "strategy": ("strategy_cmd", "Search the parallel degrees that train fastest"),
        "trace": ("trace_cmd", "Show MegatronAPP's traces: Chrome trace, SVG, xlsx"),
        "data": ("launch_cmd", "Make small synthetic data for a stack's own run"),
    },
    "Prove": {
        "explain": ("explain_cmd", "Show what a stack's document gets wrong, and what is done"),
        "report": ("report_cmd", "Reports: show, verify, diff, sign, kit"),
    },
    "Describe": {
        "stack": ("catalog_cmd", "Stacks: list, show, check"),
        "target": ("catalog_cmd", "Targets: list, show, check"),
        "lock": ("lock_cmd", "Locks: create, record, check, diff, export"),
        "patch": ("catalog_cmd", "Patches: list, apply"),
    },
    "Hand over": {
        "bundle": ("bundle_cmd", "Bundles for machines without a network: create, verify"),
        "image": ("image_cmd", "Images: dockerfile, build, verify, pods"),
    },
    "Keep house": {
        "run": ("run_cmd", "Runs: list, show"),
        "store": ("store_cmd", "Wheels, caches, old environments and runs: list, verify, clean"),
        "config": ("config_cmd", "Configuration: show"),
        "completion": ("config_cmd", "Print the completion script of a shell"),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
# What a command was called, or other tools call it -> what to type. None of these runs: one command has one name.
NAMES = {
    **dict.fromkeys(("probe", "facts", "inspect"), "doctor --facts-out FILE"),
    **dict.fromkeys(("target init", "new"), "init"),
    "stack validate": "stack check",
    **dict.fromkeys(("target validate", "validate"), "target check"),
    **dict.fromkeys(("env exec", "exec"), "env run"),
    "env path": "status",
    **dict.fromkeys(("env prune", "run prune", "cache clean", "wheels prune", "prune", "gc"), "store clean"),
    **dict.fromkeys(("cache", "cache show", "wheels", "wheels list"), "store list"),
    "wheels verify": "store verify",
    "bundle list": "bundle verify --quick",
    **dict.fromkeys(("wheels pack", "wheels unpack"), "bundle create"),
    **dict.fromkeys(("image pin", "lock sizes"), "lock create"),
    **dict.fromkeys(("image diff", "report merge"), "report diff"),
    **dict.fromkeys(("image apptainer", "image workflow"), "image dockerfile"),
    **dict.fromkeys(("config fabfile", "config playbooks"), "config show"),
    **dict.fromkeys(("install", "build", "create", "setup", "sync", "apply", "update"), "provision"),
    **dict.fromkeys(("env list", "list", "ls", "envs", "environments"), "status --all"),
    "deactivate": "env activate",
    **dict.fromkeys(("uninstall", "rm", "delete", "destroy"), "env remove"),
    **dict.fromkeys(("env shell", "shell"), "env run"),
    **dict.fromkeys(("test", "tests"), "smoke"),
    "info": "doctor",
    **dict.fromkeys(("logs", "log", "history", "runs", "report list", "reports"), "run list"),
    **dict.fromkeys(("run watch", "watch"), "run show --follow"),
    **dict.fromkeys(("docs", "describe"), "explain"),
    **dict.fromkeys(("docker", "container", "images"), "image"),
    **dict.fromkeys(("start", "submit", "train"), "launch"),
    "stacks": "stack list",
    "targets": "target list",
}


def _unknown(words: list[str], names: Mapping[str, Sequence[str]]) -> EnvbuildError:
    """The error for a command that is not there; `words`: as typed, `names`: what to type for each that is there."""
    meant: Sequence[str] = [NAMES[typed] for typed in (" ".join(words), words[0]) if typed in NAMES][:1]
    if not meant:
        # What holds the word comes before what resembles it a little.
        near = difflib.get_close_matches(words[-1], names, n=1, cutoff=0.78)
        near = near or [name for name in names if words[-1] in name.split("-") and name.count("-") == 1]
        if words[0] != "help":  # a word that resembles it a little explains something else
            near = near or difflib.get_close_matches(words[-1], names, n=1)
        other = [" ".join(["launch", *words[1:]])] if words[0] == "run" else []
        meant = names[near[0]] if near else other
    typed = " ".join(words)
    what = (
        f"{words[1]} is no command, error code or word of envbuild"
        if words[0] == "help"
        else f"there is no command `envbuild {typed}`"
    )
    return EnvbuildError(
        "command-unknown",
        what,
        hint=" or ".join(f"`envbuild {command}`" for command in meant) or "`envbuild --help` lists the commands",
    )


class Group(click.Group):
    """A group of commands that names the right command where another one was typed."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does. Raises EnvbuildError `command-unknown` (exit 2)."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            own = ctx.command_path.split()[1:]
            raise _unknown([*own, args[0]], self.typed(ctx, own))
        return super().resolve_command(ctx, args)

    def typed(self, ctx: click.Context, own: list[str]) -> dict[str, list[str]]:
        """What to type for the name of each command; `own`: the words that name this group."""
        return {name: [" ".join([*own, name])] for name in self.list_commands(ctx)}


class Tree(Group):
    """All of envbuild: commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"envbuild.cli.{COMMANDS[cmd_name][0]}"), cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{cmd_name} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """`help COMMAND` is `COMMAND --help`, and `help WORD` explains a code, a check or a word of the glossary.

        Of a group that is gone the error names what replaced its command.
        """
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
            if explained := self._explained(ctx, " ".join(args[:-1])) if len(args) > 1 else ctx.get_help():
                click.echo(explained)
            if args[0] not in COMMANDS or (explained and len(args) > 2):
                ctx.exit()
        if args and args[0] not in COMMANDS and " ".join(args[:2]) in NAMES:
            raise _unknown(args[:2], {})
        return super().resolve_command(ctx, args)

    def typed(self, ctx: click.Context, own: list[str]) -> dict[str, list[str]]:
        """The commands of groups too, by their own name: `check` is `stack check`, `target check` or `lock check`."""
        typed = super().typed(ctx, own)
        groups = ((group, self.get_command(ctx, group)) for group in COMMANDS)
        below = ((group, name) for group, made in groups if isinstance(made, Group) for name in made.list_commands(ctx))
        for group, name in below:
            if name not in COMMANDS:
                typed.setdefault(name, []).append(" ".join([*own, group, name]))
        return typed

    def _explained(self, ctx: click.Context, code: str) -> str:
        """What a code or word means; of a command that is no word, nothing.

        Raises EnvbuildError `command-unknown`.
        """
        from envbuild.cli.help_code import codes, explanation, key_names, meanings

        if code.split()[0] in COMMANDS:
            return "\n".join(f"{meaning}\n" for meaning in meanings(code))
        if explained := explanation(code):
            return explained
        known = {name: [f"help {name}"] for name in (*codes(), *key_names())}
        raise _unknown([code] if code in NAMES else ["help", code], {**self.typed(ctx, ["help"]), **known})

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and options from the table, without importing the commands."""
        from click.shell_completion import CompletionItem

        items = [CompletionItem(name, help=line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections from the table, without importing the commands."""
        column = max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{column}}", line) for name, (_, line) in section.items()])


@click.group(
    cls=Tree,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 ok, 1 check failed or drift, 2 usage, 3 unreachable, 4 build failed, 5 integrity, "
    "6 below floor, 7 refused, 8 partial, 9 job failed, 70 internal, 75 try again, 130 interrupted, 143 terminated. "
    "`envbuild help WORD` explains a code, a check or a word, such as drift, smoke/step or stamp.",
)
@click.version_option(__version__, message="envbuild %(version)s")
def cli() -> None:
    """Provision and verify reproducible GPU training environments."""
