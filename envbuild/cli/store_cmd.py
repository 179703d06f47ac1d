"""`envbuild store`: wheels, caches, environments and runs that are kept, and how to be rid of old ones."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli.choose import configured, nodes_of_target, options, prefix_target, time_option
from envbuild.cli.env_cmd import change
from envbuild.cli.output import Ui, columns, common_options, failures
from envbuild.cli.verbs import Group
from envbuild.errors import EnvbuildError, ExitCode, as_dicts, gravest, sort_out
from envbuild.text import plural, size

if TYPE_CHECKING:
    from envbuild.provision.kept import Answers, Kept

HERE = "this machine"
KINDS = ("wheels", "caches", "environments", "runs")
_DAY = 86400.0
_MOST = 36525 * _DAY  # a date that many days before today exists
_nodes = options(nodes_of_target, common_options)
_kinds = click.option(
    "--only", "kinds", multiple=True, type=click.Choice(KINDS), help="Only this kind; repeatable.", default=KINDS,
    show_default=False,
)  # fmt: skip


@click.group("store", cls=Group)
def store() -> None:
    """Stored wheels, caches, environments and runs, here and on nodes."""


@store.command("list")
@_kinds
@_nodes
def list_(ui: Ui, /, kinds: tuple[str, ...], **flags: Any) -> int:
    """List what is stored where, by kind, and every built wheel.

    Lists caches and runs of this machine, and wheels and environments on the nodes. A remark says why `clean` leaves
    an item alone.
    """
    answers = _kept(ui, flags, kinds, 0.0, remove=False)
    good, errors = sort_out(answers)
    rows = [(where, place) for where, parts in good.items() for place in parts["places"] if place["items"]]

    def human() -> str:
        head = ("WHERE", "KIND", "SIZE", "ITEMS", "PATH", "REMARK")
        lines = [(w, row["kind"], size(row["bytes"]), str(row["items"]), row["path"], row["note"]) for w, row in rows]
        table = columns([head, *lines]) if rows else "nothing is kept"
        wheels = [line for where, parts in good.items() for line in _wheels(where, parts.get("entries", ()))]
        return "\n".join([table, *wheels, *_notes(good), *failures(errors)])

    wheels = [{"node": where, **entry} for where, parts in good.items() for entry in parts.get("entries", ())]
    ui.result({"places": _rows(good), "wheels": wheels, "errors": as_dicts(errors)}, human)
    return ui.exit_of(errors)


@store.command("verify")
@_nodes
def verify(ui: Ui, /, **flags: Any) -> int:
    """Check every byte of every built wheel; exit 1 for a damaged one.

    Changes nothing. The next build that needs a damaged wheel sets it aside and builds it again.
    """
    from envbuild.provision.contact.first_contact import ask_each

    target = prefix_target(ui, flags)
    named = {"store": target.store} if target.store else {}
    good, errors = sort_out(ask_each("wheels", target, {"action": "verify", **named}))
    damaged = any(answer["damaged"] for answer in good.values())

    def human() -> str:
        return "\n".join([line for node, answer in good.items() for line in _verified(node, answer)] + failures(errors))

    stores = [{"node": node, **answer} for node, answer in good.items()]
    ui.result({"ok": not (errors or damaged), "stores": stores, "errors": as_dicts(errors)}, human)
    return gravest([ui.exit_of(errors), ExitCode.CHECK_FAILED if damaged else ExitCode.OK])


@store.command("clean")
@_kinds
@time_option("--keep", most=_MOST, default="30d", help="Keep items younger than this, or used within this time.")
@click.option("--yes", is_flag=True, help="Remove it; without --yes nothing changes.")
@_nodes
def clean(ui: Ui, /, kinds: tuple[str, ...], keep: float, *, yes: bool, **flags: Any) -> int:
    """Remove old items here and on the nodes; only with --yes.

    Keeps environments in use and those that a process runs from; envbuild sees only your processes, unless it
    runs there as root. Moves files of yours in an environment to PREFIX/kept, and leaves those beside them alone. Keeps
    the newest run and any run in progress. Caches are fetched again when needed.
    """
    answers = _kept(ui, flags, kinds, keep / _DAY, remove=yes)
    good, errors = sort_out(answers)
    rows = _rows(good)

    def human() -> str:
        lines = []
        for row in (row for row in rows if row["old"]):
            lines.append(f"{row['where']}: {row['kind']}, {len(row['old'])} in {row['path']}, {size(row['old_bytes'])}")
            lines += [f"  {path}" for path in row["old"] if row["kind"] in KINDS]
        count, taken = sum(len(row["old"]) for row in rows), size(sum(row["old_bytes"] for row in rows))
        done = f"removed {plural(count, 'item')}, {taken}" if yes else (
            f"would remove {plural(count, 'item')}, {taken}; `--yes` does it")  # fmt: skip
        return "\n".join([*lines, *_notes(good), *failures(errors), done if count else "nothing is that old"])

    ui.result({"places": rows, "removed": yes, "notes": _notes(good), "errors": as_dicts(errors)}, human)
    return ui.exit_of(errors)


def _kept(ui: Ui, flags: dict[str, Any], kinds: tuple[str, ...], days: float, *, remove: bool) -> Answers:
    """What each place of these kinds keeps, by machine; `remove` what is older than `days`."""
    from envbuild.provision import kept

    config, dry = configured(flags), not remove
    answers: Answers = {HERE: {"places": [], "notes": []}}
    if "caches" in kinds:
        _add(answers, {HERE: kept.own_caches(days, dry_run=dry)})
    if "runs" in kinds:
        _add(answers, {HERE: kept.runs(config.runs_root, days, dry_run=dry)})
    if kinds == ("runs",):
        return answers
    target = prefix_target(ui, flags)

    def take(node: str, path: str) -> dict[str, Any]:
        return change(target, "remove", {"environment": path}, node, wait=config.wait)

    if "environments" in kinds:
        old, refused = kept.node_environments(target, days, remove=take if remove else None)
        _add(answers, old)
        answers |= refused
    if "wheels" in kinds:
        _add(answers, kept.node_wheels(target, days, dry_run=dry))
    if "caches" in kinds:
        _add(answers, kept.node_caches(target, days, dry_run=dry, wait=config.wait))
    return answers


def _add(answers: Answers, more: Answers) -> None:
    """The answer of each machine, with what another question adds; an error stands for all."""
    for where, part in more.items():
        before = answers.get(where, {"places": [], "notes": []})
        if isinstance(part, EnvbuildError) or isinstance(before, EnvbuildError):
            answers[where] = part if isinstance(part, EnvbuildError) else before
            continue
        joined = {key: [*before[key], *part.get(key, ())] for key in ("places", "notes")}
        answers[where] = {**before, **part, **joined}


def _rows(good: dict[str, Kept]) -> list[dict[str, Any]]:
    return [{"where": where, **place} for where, parts in good.items() for place in parts["places"]]


def _notes(good: dict[str, Kept]) -> list[str]:
    return [f"{where}: {note}" for where, parts in good.items() for note in parts["notes"]]


def _wheels(where: str, entries: Any) -> list[str]:
    """One line a wheel, never cut: keys and commits are there to be copied."""
    head = ("key", "source", "commit", "torch", "CUDA", "arch", "compiler", "size", "last use")
    rows = [_cells(entry) for entry in entries if entry["state"] == "unchecked"]
    lines = ["", f"wheels on {where}:", *columns([head, *rows]).split("\n")] if rows else []
    return lines + [f"{e['entry'][:12]}  {e['state']}: {e['why']}" for e in entries if e["state"] != "unchecked"]


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    cuda = re.search(r"release ([0-9.]+)", entry["cuda"] or "")
    compiler = re.search(r"^(\S+).*?([0-9]+(?:\.[0-9]+)+)\s*$", entry["compiler"] or "")
    days = (time.time() - entry["last_used"]) / _DAY
    return (
        entry["key"][:12],
        entry["source"] or "",
        (entry["commit"] or "")[:12],
        entry["torch"] or "none",
        cuda.group(1) if cuda else "none",
        " ".join(entry["arch_list"]) or "none",
        " ".join(compiler.groups()) if compiler else entry["compiler"] or "none",
        size(entry["size"]),
        "today" if days < 1 else f"{days:.0f} days ago",
    )


def _verified(node: str, answer: dict[str, Any]) -> list[str]:
    lines = [
        f"{entry['state']:<9} {entry['entry'][:12]}  {entry.get('source') or ''}: {entry['why']}"
        for entry in answer["entries"]
        if entry["state"] != "good"
    ]
    good = sum(entry["state"] == "good" for entry in answer["entries"])
    notes = [f"warning: {note}" for note in answer["notes"]]
    return [*notes, *lines, f"{node}: {good} of {len(answer['entries'])} wheels are what their records say"]
