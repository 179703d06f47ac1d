"""`envbuild run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from envbuild.cli import names
from envbuild.cli.choose import Count, progress_option
from envbuild.cli.output import Ui, columns, common_options
from envbuild.cli.progress import RunProgress
from envbuild.cli.verbs import Group
from envbuild.config import load_config
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.provision.run.journal import TERMINAL, Event, EventKind, follow
from envbuild.provision.run.run_dir import RunDir, list_runs, open_run
from envbuild.text import visible

# Events that only say how far a run is: for `--follow`.
FOLLOWED = ("stage", "now")


@click.group("run", cls=Group)
def run() -> None:
    """Runs: what was done, when, and how it ended."""


@run.command("list")
@click.option("-n", "--count", type=Count(min=1), default=20, show_default=True, help="Show at most this many.")
@common_options
def list_command(ui: Ui, count: int) -> None:
    """List the runs, the newest first."""
    runs = list_runs(load_config().runs_root)
    rows = [_row(item) for item in runs[:count]]
    if not rows:
        ui.note("no runs yet")
    elif len(runs) > count:
        ui.note(f"{len(runs) - count} older runs are not shown")
    ui.result({"runs": rows, "count": len(runs)}, lambda: _table(rows))


@run.command("show")
@click.argument("run_id", metavar="RUN", default="last", shell_complete=names.runs)
@click.option("--follow", is_flag=True, help="Follow the run until it ends, and exit with its exit code.")
@progress_option
@common_options
def show(ui: Ui, run_id: str, *, follow: bool) -> int:
    """Show the journal of RUN: an id, its beginning or end, or `last`.

    A run on another machine cannot be followed. Ctrl-C stops following; the run continues.
    """
    shown = open_run(load_config().runs_root, run_id)
    if follow:
        return _follow(ui, shown)
    for remark in shown.journal.remarks:
        ui.warn(f"{shown.journal_path}: {remark}")
    files = sorted(str(path.relative_to(shown.path)) for path in shown.path.iterdir() if path.is_file())
    data = {
        **_row(shown),
        "path": str(shown.path),
        "files": files,
        "remarks": list(shown.journal.remarks),
        "events": [
            {"seq": event.seq, "t": event.t, "kind": event.kind, "node": event.node, "data": event.data}
            for event in shown.journal.events
            if event.kind not in FOLLOWED
        ],
    }

    def story() -> str:
        """The journal, one line an event; what nodes said does nothing to a terminal."""
        lines = [f"{shown.id}  {shown.status}", f"{shown.path}  ({', '.join(files)})", ""]
        lines += [_line(event) for event in shown.journal.events if event.kind not in FOLLOWED]
        return visible("\n".join([*lines, *_by_node(shown.journal.events)]), keep_newlines=True)

    ui.result(data, story)
    return ExitCode.OK


def _follow(ui: Ui, followed: RunDir) -> int:
    """Raises EnvbuildError `run-elsewhere` (exit 7)."""
    if elsewhere := followed.elsewhere:
        raise EnvbuildError(
            "run-elsewhere",
            f"{followed.id} continues on another machine: {elsewhere}",
            why="only that machine sees whether the process of the run has ended",
            hint=f"`envbuild run show {followed.id}` shows what it has done; `--follow` works on {elsewhere}",
        )
    try:
        with RunProgress(ui) as progress:
            for event in follow(followed.journal_path, lambda: RunDir(followed.path).status == "running"):
                progress(event)
    except KeyboardInterrupt:
        ui.note(f"{followed.id} goes on; `envbuild run show {followed.id} --follow` shows it again")
        return ExitCode.INTERRUPTED
    row = _row(RunDir(followed.path))
    ui.result(row, lambda: _table([row]))
    return int(row.get("exit", ExitCode.OK if row["status"] == "finished" else ExitCode.CHECK_FAILED))


def _row(run: RunDir) -> dict[str, Any]:
    """What one line says about a run. A journal that cannot be read is a row too."""
    try:
        events = run.journal.events
        status, outcome = run.status, run.outcome
    except EnvbuildError as error:
        return {"id": run.id, "status": "unreadable", "outcome": "unreadable", "error": error.what}
    first = events[0].data if events else {}
    row: dict[str, Any] = {"id": run.id, "status": status, "outcome": outcome}
    row |= {key: first[key] for key in ("verb", "stack", "profile", "target", "command") if key in first}
    if events:
        row |= {"started": events[0].t, "last": events[-1].t}
        if (ended := _exit(events[-1])) is not None:
            row["exit"] = ended
    return row


def _exit(last: Event) -> int | None:
    """The exit code of a run whose last event this is; None where it has not ended, or does not say."""
    if last.kind == EventKind.INTERRUPTED:
        return int(ExitCode.INTERRUPTED)
    error = last.data.get("error")
    code = last.data.get("exit", error.get("exit") if isinstance(error, dict) else None)
    return code if last.kind in TERMINAL and isinstance(code, int) else None


def _table(rows: list[dict[str, Any]]) -> str:
    """One line a run: id, status, verb, stack and target."""
    lines = [("RUN", "STATUS", "VERB", "STACK AND TARGET")]
    for row in rows:
        what = f"{row.get('stack', '')} on {row['target']}" if "target" in row else row.get("error", "")
        lines.append((row["id"], row["outcome"], row.get("verb", ""), what))
    return columns(lines) if rows else ""


def _by_node(events: Sequence[Event]) -> list[str]:
    """Of a run on several nodes: how long each step took on each, how it ended, and why it failed where it did."""
    steps: dict[str, list[str]] = {}
    ends: dict[str, str] = {}
    for event in events:
        if event.node is None:
            continue
        row = steps.setdefault(event.node, [])
        if event.kind == "step-finished":
            seconds = event.data.get("seconds")
            took = f" {seconds:.1f} s" if isinstance(seconds, int | float) else ""
            status = event.data.get("status")
            ended = "" if status in ("ok", "changed") else f" {status}"
            row.append(f"{event.data.get('step')}{took}{ended}")
        elif event.kind == "node-finished":
            ends[event.node] = str(event.data.get("status"))
            error = event.data.get("error")
            if isinstance(error, dict):
                ends[event.node] += f"\n    error[{error.get('code')}]: {error.get('what')}"
                ends[event.node] += f"\n    why: {error['why']}" if error.get("why") else ""
    if len(steps) < 2:
        return []
    width = max(len(node) for node in steps)
    rows = [f"{node:{width}}  {', '.join([*row, ends.get(node, 'not finished')])}" for node, row in steps.items()]
    return ["", "by node:", *rows]


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
