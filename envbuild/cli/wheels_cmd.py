"""`envbuild wheels`: the wheels that were built from source, and the stores that keep them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import click

from envbuild.cli.choose import Amount, node_options, options, target_of, target_option
from envbuild.cli.output import Ui, common_options, failures
from envbuild.errors import ExitCode, as_dicts, gravest, sort_out
from envbuild.text import plural, size

_store_options = options(
    target_option,
    click.option("--prefix", metavar="DIR", help="Prefix whose store is meant; instead of the target's."),
    node_options,
    click.option("--store", metavar="DIR", help="Instead of the target's store; may hold {user} and {home}."),
)


@click.group("wheels")
def wheels() -> None:
    """Wheels built from source, kept by build key: built once, installed from then on."""


@wheels.command("list")
@_store_options
@common_options
def list_(ui: Ui, /, **flags: Any) -> int:
    """Say what is in the wheel store of every node of a target."""
    return _ask(ui, flags, _table, action="list")


@wheels.command("verify")
@_store_options
@common_options
def verify(ui: Ui, /, **flags: Any) -> int:
    """Check every byte of every stored wheel; exit 1 when one is damaged. Changes nothing."""
    return _ask(ui, flags, _verified, action="verify")


@wheels.command("prune")
@_store_options
@click.option(
    "--keep-days", type=Amount(min=0), default=90.0, show_default=True, metavar="N",
    help="Keep what was used in the last N days.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@common_options
def prune(ui: Ui, /, keep_days: float, dry_run: bool, **flags: Any) -> int:
    """Remove wheels that nobody used for long, the quarantine, and what killed builders left."""
    return _ask(ui, flags, _pruned, action="prune", keep_days=keep_days, dry_run=dry_run)


def _ask(ui: Ui, flags: dict[str, Any], human: Callable[[dict[str, Any]], str], **args: Any) -> int:
    """Print each node's answer; one exit code for all of them."""
    from envbuild.provision.contact.wheel_stores import ask_each

    target = target_of(ui, flags)
    store = flags["store"] or target.store
    good, errors = sort_out(ask_each("wheels", target, {**args, **({"store": store} if store else {})}))
    if errors and len(good) + len(errors) == 1:
        raise next(iter(errors.values()))

    def shown() -> str:
        parts: list[str] = []
        for node, result in good.items():
            parts += [f"{node}: {result['store']}"] if len(good) + len(errors) > 1 else []
            parts += [*(f"warning: {note}" for note in result["notes"]), human(result)]
        return "\n".join([*parts, *failures(errors)])

    if args["action"] == "list" and good and not any(result["entries"] for result in good.values()):
        ui.note("hint: `envbuild provision` keeps here what it builds from source; --target and --store name others")
    well = all(result.get("ok", True) for result in good.values())
    stores = [{"node": node, **result} for node, result in good.items()]
    ui.result({"ok": not errors and well, "stores": stores, "errors": as_dicts(errors)}, shown)
    return gravest([ui.exit_of(errors), ExitCode.OK if well else ExitCode.CHECK_FAILED])


def _table(result: dict[str, Any]) -> str:
    """One line a wheel, never cut: keys and commits are there to be copied."""
    rows = [_cells(entry) for entry in result["entries"] if entry["state"] == "unchecked"]
    other = [entry for entry in result["entries"] if entry["state"] != "unchecked"]
    lines = []
    if rows:
        rows.insert(0, ["key", "source", "commit", "torch", "CUDA", "arch", "compiler", "size", "last use"])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines += [f"{entry['entry'][:12]}  {entry['state']}: {entry['why']}" for entry in other]
    count = len(result["entries"])
    total = f"{plural(count, 'wheel')}, {size(result['bytes'])}" if count else "no wheels"
    return "\n".join([*lines, total + _quarantine(result)])


def _quarantine(result: dict[str, Any]) -> str:
    held = result["quarantine"]
    return f"; {len(held)} in quarantine, {size(sum(item['size'] for item in held))}" if held else ""


def _cells(entry: dict[str, Any]) -> list[str]:
    cuda = re.search(r"release ([0-9.]+)", entry["cuda"] or "")
    compiler = re.search(r"^(\S+).*?([0-9]+(?:\.[0-9]+)+)\s*$", entry["compiler"] or "")
    days = (time.time() - entry["last_used"]) / 86400
    return [
        entry["key"][:12],
        entry["source"] or "",
        (entry["commit"] or "")[:12],
        entry["torch"] or "none",
        cuda.group(1) if cuda else "none",
        " ".join(entry["arch_list"]) or "none",
        " ".join(compiler.groups()) if compiler else entry["compiler"] or "none",
        size(entry["size"]),
        "today" if days < 1 else f"{days:.0f} days ago",
    ]


def _verified(result: dict[str, Any]) -> str:
    lines = [
        f"{entry['state']:<9} {entry['entry'][:12]}  {entry.get('source') or ''}: {entry['why']}"
        for entry in result["entries"]
        if entry["state"] != "good"
    ]
    good = sum(entry["state"] == "good" for entry in result["entries"])
    lines.append(f"{good} of {len(result['entries'])} wheels are what their records say")
    if result["damaged"]:
        lines.append("a damaged wheel goes to the quarantine when it is next wanted, and is built again")
    return "\n".join(lines)


def _pruned(result: dict[str, Any]) -> str:
    would = "would remove" if result["dry_run"] else "removed"
    lines = [f"{would} {item.get('source') or ''} {item['name'][:24]}" for item in result["removed"]]
    lines += [f"kept {item['name'][:24]}: {item['why']}" for item in result["kept"] if item["why"] != "used since"]
    if not result["removed"]:
        return "\n".join([*lines, "nothing to remove"])
    return "\n".join([*lines, f"{would} {len(result['removed'])}, {size(result['bytes'])}"])
