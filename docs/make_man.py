"""Writes the man page `docs/man/envbuild.1` from the commands and settings; the wheel installs it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from envbuild.cli.verbs import COMMANDS, cli
from envbuild.config import KEYS

PAGE = Path(__file__).parent / "man" / "envbuild.1"
FILES = {
    "envbuild.toml": "settings of a project, here or above up to the root of the git checkout",
    "~/.config/envbuild/config.toml": "settings of a user",
    "/etc/envbuild/config.toml": "settings of a machine",
    "~/.local/share/envbuild": "environments of this machine, where no other prefix is said",
    "~/.local/state/envbuild/runs": "a folder for each run, with its journal and report",
    "~/.cache/envbuild": "what can be fetched again; `envbuild store clean`",
}


def roff(text: str) -> str:
    """Text as a line that roff shows as it is."""
    plain = re.sub(r"\s+", " ", text.replace("\b", "")).strip().replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{plain}" if plain[:1] in (".", "'") else plain


def item(term: str, text: str) -> list[str]:
    """One entry of a list."""
    return [".TP", f".B {roff(term)}", roff(text)]


def commands(command: click.Command, name: str, context: click.Context) -> Iterator[tuple[str, str]]:
    """Usage and first sentence of every command below one."""
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            nested = command.get_command(context, below)
            if nested is not None and not nested.hidden:
                yield from commands(nested, f"{name} {below}", click.Context(nested, context, below))
    else:
        yield " ".join([name, *command.collect_usage_pieces(context)]), command.get_short_help_str(limit=300)


def page() -> str:
    """The whole page."""
    lines = ['.TH ENVBUILD 1 "" "envbuild" "User Commands"', ".SH NAME"]
    lines += [f"envbuild \\- {roff((cli.help or '').rstrip('.'))}", ".SH SYNOPSIS"]
    lines += [".B envbuild", "COMMAND [OPTIONS] [ARGUMENTS]", ".SH DESCRIPTION"]
    lines += [
        roff(
            "A stack says what to reproduce, a target says where; envbuild reads the facts of the nodes, builds from a "
            "lock in which every file has a hash, tests the result and writes a report. Without a command it names "
            "three next steps for the machine it is on; `envbuild help COMMAND` has the options of a command."
        ),
        ".SH COMMANDS",
    ]
    context = click.Context(cli, info_name="envbuild")
    for verb in COMMANDS:
        top = cli.get_command(context, verb)
        if top is not None:
            rows = commands(top, verb, click.Context(top, context, verb))
            lines += [line for row in rows for line in item(*row)]
    lines += [".SH EXIT STATUS", roff((cli.epilog or "").removeprefix("Exit codes: ")), ".SH ENVIRONMENT"]
    for key, setting in KEYS.items():
        lines += item(f"ENVBUILD_{key.upper()}", setting.help)
    lines.append(".SH FILES")
    for path, says in FILES.items():
        lines += item(path, says)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
