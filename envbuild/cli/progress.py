"""Progress on stderr: live rows on a terminal; elsewhere a line at every change and a heartbeat, or every event."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, cast

import click

from envbuild.cli.choose import PROGRESS
from envbuild.cli.output import Ui, say
from envbuild.provision.run import live
from envbuild.provision.run.journal import Event, EventKind, utc_now

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

Mode = Literal["live", "plain", "json", "none"]
HEARTBEAT = 30.0
# Twice a second is enough to see that it lives, and costs little.
_REFRESH = 2


def mode_of(ui: Ui) -> Mode:
    """What was asked for; `auto` is live on a terminal that can show it, unless `CI` says that nobody looks."""
    context = click.get_current_context(silent=True)
    asked = context.meta.get(PROGRESS, "auto") if context is not None else "auto"
    if asked != "auto":
        return cast(Mode, asked)
    if ui.quiet:
        return "none"
    seen = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")
    return "live" if seen else "plain"


class RunProgress:
    """Shows the events of a run, and a heartbeat where nothing changes for a while."""

    def __init__(self, ui: Ui) -> None:
        """Nothing is written before the `with` block begins."""
        self._ui, self.mode = ui, mode_of(ui)
        self._view = live.View()
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._stop = threading.Event()
        self._said = time.monotonic()

    def __enter__(self) -> Self:
        """Start the display; a question to the user makes a live one go away for a while."""
        if self.mode == "live":
            from rich.live import Live

            from envbuild.transport import ssh

            ssh.around = self.pause
            self._live = Live(
                get_renderable=self._screen,
                console=self._ui.stderr_console(),
                refresh_per_second=_REFRESH,
                transient=True,
            )
            self._live.start()
        elif self.mode == "plain":
            threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the display away; what it showed last stays as plain lines of the summary."""
        self._stop.set()
        if self._live is not None:
            from envbuild.transport import ssh

            ssh.around = ssh.at_once
            self._live.stop()
            self._live = None

    def pause(self, write: Callable[[], object]) -> None:
        """Let something else write to the terminal while the live display is away."""
        if self._live is not None:
            self._live.stop()
        try:
            write()
        finally:
            if self._live is not None:
                self._live.start()

    def __call__(self, event: Event) -> None:
        """Take an event in and say what has changed."""
        with self._lock:
            changed = live.fold(self._view, event)
            if self.mode == "json":
                say(event.line().decode().rstrip("\n"))
            elif self.mode == "plain" and changed:
                self._say(self._changed(event))

    def stage(self, text: str) -> None:
        """What is begun where there is no run yet."""
        self(Event(0, utc_now(), EventKind.STAGE, data={"text": text}))

    def _changed(self, event: Event) -> list[str]:
        if event.node is None:
            return [str(event.data["text"])]
        row = self._view.rows[event.node]
        # Of a large fleet only what ends is told at once, and the rest by the heartbeat.
        if len(self._view.rows) > live.MOST_ROWS and row.running:
            return []
        return [live.plain(event.node, row, time.time())]

    def _say(self, lines: list[str]) -> None:
        if lines:
            self._said = time.monotonic()
            self._ui.note("\n".join(lines))

    def _beat(self) -> None:
        while not self._stop.wait(1.0):
            with self._lock:
                if time.monotonic() - self._said >= HEARTBEAT:
                    self._say(self._still(time.time()))

    def _still(self, now: float) -> list[str]:
        view = self._view
        running = [row for row in view.rows.values() if row.running]
        lines = live.rows(view, now) if running else [view.stage] * bool(view.stage)
        return [*lines, f"… {live.total(view, now)}"]

    def _screen(self) -> Text:
        from rich.text import Text

        with self._lock:
            lines = live.screen(self._view, time.time(), self._live.console.height if self._live else 24)
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
