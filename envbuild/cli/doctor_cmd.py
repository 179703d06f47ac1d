"""`envbuild doctor`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from envbuild.cli.output import Ui, common_options
from envbuild.errors import ExitCode


@click.command("doctor")
@click.option("--prefix", type=click.Path(path_type=Path), help="Also check that this prefix can be built in.")
@common_options
def doctor(ui: Ui, prefix: Path | None) -> int:
    """Check this machine: the programs that envbuild drives, found and new enough."""
    from envbuild.doctor import Diagnosis, diagnose

    lines = diagnose(prefix=prefix)
    ok = all(line.level != "missing" for line in lines)

    def human() -> str:
        return "\n".join(_line(line) for line in lines)

    def _line(line: Diagnosis) -> str:
        text = f"{line.level:8} {line.name:17} {line.found}   needs {line.needed}"
        for label, more in (("so", line.consequence), ("hint", line.hint)):
            text += f"\n{'':26} {label}: {more}" if more else ""
        return text

    ui.result({"ok": ok, "checks": [asdict(line) for line in lines]}, human)
    return ExitCode.OK if ok else ExitCode.CHECK_FAILED
