"""`envbuild run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from envbuild.cli.output import Ui, common_options

if TYPE_CHECKING:
    from envbuild.provision.journal import Event
    from envbuild.provision.rundir import RunDir


@click.group("run")
def run() -> None:
    """Runs: what was done, when, and how it ended."""


@run.command("list")
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Show at most this many."
)
@common_options
def list_command(ui: Ui, limit: int) -> int:
    """List the runs, the newest first."""
    from envbuild.config import load_config
    from envbuild.provision.rundir import list_runs

    found = list_runs(load_config().runs_root)
    rows = [_row(item) for item in found[:limit]]
    if not rows:
        ui.note("no runs yet")
    elif len(found) > limit:
        ui.note(f"{len(found) - limit} older runs are not shown")
    ui.result({"runs": rows, "count": len(found)}, lambda: _table(rows))
    return 0


@run.command("show")
@click.argument("run_id", metavar="RUN", default="last")
@common_options
def show(ui: Ui, run_id: str) -> int:
    """Show the journal of RUN (an id, its beginning or its end, or `last`)."""
    from envbuild.config import load_config
    from envbuild.provision.rundir import open_run

    found = open_run(load_config().runs_root, run_id)
    for remark in found.journal.remarks:
        ui.warn(f"{found.journal_path}: {remark}")
    files = sorted(str(path.relative_to(found.path)) for path in found.path.iterdir() if path.is_file())
    data = {
        **_row(found),
        "path": str(found.path),
        "files": files,
        "remarks": list(found.journal.remarks),
        "events": [
            {"seq": event.seq, "t": event.t, "kind": event.kind, "node": event.node, "data": event.data}
            for event in found.journal.events
        ],
    }
    ui.result(data, lambda: _story(found, files))
    return 0


def _row(found: RunDir) -> dict[str, Any]:
    """What one line says about a run. A journal that cannot be read is a row too."""
    from envbuild.errors import EnvbuildError

    try:
        events = found.journal.events
        status: str = found.status
    except EnvbuildError as error:
        return {"id": found.id, "status": "unreadable", "error": error.what}
    first = events[0].data if events else {}
    row: dict[str, Any] = {"id": found.id, "status": status}
    row |= {key: first[key] for key in ("verb", "stack", "profile", "target", "command") if key in first}
    if events:
        row |= {"started": events[0].t, "last": events[-1].t}
        if "exit" in events[-1].data:
            row["exit"] = events[-1].data["exit"]
    return row


def _table(rows: list[dict[str, Any]]) -> str:
    """One line a run: id, status, verb, stack and target."""
    lines = []
    for row in rows:
        what = f"{row.get('stack', '')} on {row['target']}" if "target" in row else row.get("error", "")
        lines.append(f"{row['id']}  {row['status']:11}  {row.get('verb', ''):9}  {what}".rstrip())
    return "\n".join(lines)


def _story(found: RunDir, files: list[str]) -> str:
    """The journal, one line an event."""
    lines = [f"{found.id}  {found.status}", f"{found.path}  ({', '.join(files)})", ""]
    lines += [_line(event) for event in found.journal.events]
    return "\n".join(lines)


def _line(event: Event) -> str:
    words = [event.t[11:23], f"{event.kind:17}"]
    if event.node:
        words.append(event.node)
    words += [str(event.data[key]) for key in ("step", "status") if event.data.get(key) is not None]
    if isinstance(event.data.get("seconds"), int | float):
        words.append(f"{event.data['seconds']:.1f} s")
    if "exit" in event.data:
        words.append(f"exit {event.data['exit']}")
    error = event.data.get("error")
    if isinstance(error, dict):
        words.append(f"error[{error.get('code')}]: {error.get('what')}")
    return "  ".join(words)
