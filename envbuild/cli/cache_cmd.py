"""`envbuild cache`: what lies beside environments, on this machine and on nodes, and how to be rid of it."""

from __future__ import annotations

from typing import Any

import click

from envbuild.cli.choose import configured, keep_days, place_options, target_of
from envbuild.cli.output import Ui, common_options, failures, pruned
from envbuild.errors import EnvbuildError, as_dicts, sort_out

HERE = "this machine"


@click.group("cache")
def cache() -> None:
    """Caches: what this machine keeps for nodes and, with --target, what lies on those beside environments."""


@cache.command("show")
@place_options
@common_options
def show(ui: Ui, /, **flags: Any) -> int:
    """Say what lies where, by kind; a remark says why `clean` leaves it alone."""
    return _tidy(ui, flags, None, dry_run=True)


@cache.command("clean")
@keep_days(30)
@place_options
@common_options
def clean(ui: Ui, /, keep_days: float, *, yes: bool, **flags: Any) -> int:
    """Remove what was neither changed nor read for long and can be had again; environments stay.

    Without `--yes` it only says what.
    """
    return _tidy(ui, flags, keep_days, dry_run=not yes)


def _tidy(ui: Ui, flags: dict[str, Any], days: float | None, *, dry_run: bool) -> int:
    """Ask and, unless `dry_run`, remove what is older than `days`; None: tell of everything."""
    from envbuild.provision.caches import node_caches, own_caches
    from envbuild.schedule.runner import as_login
    from envbuild.text import size

    answers: dict[str, dict[str, Any] | EnvbuildError] = {HERE: own_caches(days or 0.0, dry_run=dry_run)}
    if flags.get("target"):
        # What lies under a shared prefix can be seen without a job.
        target = as_login(target_of(ui, flags, jobs=lambda target: target.placement == "shared"))
        answers |= node_caches(target, days or 0.0, dry_run=dry_run, wait=configured(flags).wait)
    good, errors = sort_out(answers)

    def human() -> str:
        lines = [line for where, item in good.items() for line in (f"{where}:", *_rows(item, old=days is not None))]
        if days is not None:
            rows = [row for item in good.values() for row in item["places"]]
            taken = size(sum(row["old_bytes"] for row in rows))
            lines += [note for item in good.values() for note in item["notes"]]
            lines.append(pruned(sum(len(row["old"]) for row in rows), "item", taken, yes=not dry_run))
        return "\n".join([*lines, *failures(errors)])

    told = [{"where": where, **item} for where, item in good.items()]
    ui.result({"caches": told, "errors": as_dicts(errors)}, human)
    return ui.exit_of(errors)


def _rows(answer: dict[str, Any], *, old: bool) -> list[str]:
    """One line a kind: what there is of it, or with `old` what goes."""
    from envbuild.text import size

    lines = []
    for row in answer["places"]:
        count, taken = (len(row["old"]), row["old_bytes"]) if old else (row["items"], row["bytes"])
        note = f" (kept: {row['note']})" if row["note"] and not old else ""
        if count:
            lines.append(f"  {row['kind']:<10}{size(taken):>9} in {count:<5} {row['path']}{note}")
    return lines or ["  nothing"]
