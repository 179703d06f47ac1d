"""`envbuild doctor`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import names
from envbuild.cli.choose import node_options, target_of
from envbuild.cli.output import Ui, common_options
from envbuild.errors import EnvbuildError, ExitCode, as_dicts, gravest
from envbuild.text import grouped

if TYPE_CHECKING:
    from envbuild.doctor.controller import Diagnosis
    from envbuild.doctor.hosts import Visit


@click.command("doctor")
@click.option(
    "-t",
    "--target",
    metavar="TARGET",
    shell_complete=names.targets,
    help="Look at a target instead: login host or nodes, in 30 s.",
)
@click.option("--prefix", type=click.Path(path_type=Path), help="Also check that this prefix can be built in.")
@node_options
@common_options
def doctor(ui: Ui, /, prefix: Path | None, **flags: Any) -> int:
    """Check this machine (the programs that envbuild drives), or with --target a cluster and what follows from it."""
    if flags["target"]:
        return _target(ui, {**flags, "prefix": str(prefix) if prefix else None})
    from envbuild.doctor.controller import diagnose

    if flags["hosts"] or flags["limit"] or flags["exclude"]:
        raise EnvbuildError("target-missing", "--host, --limit and --exclude choose among the hosts of a target",
                            hint="name it: `--target TARGET`")  # fmt: skip
    lines = diagnose(prefix=prefix)
    ok = all(line.level != "missing" for line in lines)
    data = {"ok": ok, "checks": [asdict(line) for line in lines]}
    ui.result(data, lambda: "\n".join(_line(line) for line in lines), wrapped=True)
    return ExitCode.OK if ok else ExitCode.CHECK_FAILED


def _line(line: Diagnosis, width: int = 17) -> str:
    text = f"{line.level:8} {line.name:{width}} {line.found}" + (
        f"   needs {line.needed.replace('>= ', '>=')}" if line.needed else ""  # one word, which no line breaks
    )
    for label, more in (("so", line.consequence), ("hint", line.hint)):
        text += f"\n{'':{width + 9}} {label}: {more}" if more else ""
    return text


def _target(ui: Ui, flags: dict[str, Any]) -> int:
    from envbuild.doctor.hosts import visit

    visits = visit(target_of(ui, flags, jobs=None))
    bad = any(line.level == "missing" for each in visits for line in each.lines)
    errors = {each.node: each.error for each in visits if each.error}
    hosts = [{"node": each.node, "checks": [asdict(line) for line in each.lines]} for each in visits if not each.error]
    data = {"ok": not bad and not errors, "hosts": hosts, "errors": as_dicts(errors)}
    ui.result(data, lambda: _told(visits), wrapped=True)
    return gravest([ui.exit_of(errors), ExitCode.CHECK_FAILED if bad else ExitCode.OK])


def _told(visits: list[Visit]) -> str:
    """Hosts that differ in nothing but free space and names are told once."""
    good = [each for each in visits if each.error is None]
    alike = grouped(good, lambda each: tuple((line.name, line.level, line.consequence) for line in each.lines))
    parts: list[str] = []
    for same in alike.values():
        names = [each.node for each in same]
        shown = f"{', '.join(names[:6])}{', …' if len(names) > 6 else ''}"
        parts.append(f"{shown} ({len(names)} nodes, as the first)" if len(names) > 1 else shown)
        width = max(len(line.name) for line in same[0].lines)
        parts += [_line(line, width) for line in same[0].lines]
    for each in visits:
        if each.error is not None:
            parts.append(f"{each.node}: {each.error}")
            parts += [
                f"  {label}: {text}" for label, text in (("why", each.error.why), ("hint", each.error.hint)) if text
            ]
    return "\n".join(parts)
