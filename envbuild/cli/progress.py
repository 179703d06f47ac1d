"""Progress on stderr: one live row a node on a terminal, one plain line per change of state elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from envbuild.cli.output import Ui

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_STEPS = {
    "toolchain": "toolchain",
    "deliver": "delivering files",
    "carry": "sending the image",
    "container": "testing inside the image",
    "fetch": "fetching files without a recorded hash",
    "install": "building the environment",
    "unpack": "taking over the environment",
    "smoke": "smoke test",
    "activate": "hashing and stamping",
    "verify": "verifying",
}


class RunProgress:
    """Shows stages and steps; silent under `--quiet`."""

    def __init__(self, ui: Ui) -> None:
        """Live rows only where stderr is a terminal."""
        self._ui = ui
        self._rows: dict[str, tuple[str, str, float]] = {}
        self._done: dict[str, list[str]] = {}
        self._live: Live | None = None
        self._stage = ""
        self._tty = sys.stderr.isatty() and not ui.quiet

    def __enter__(self) -> Self:
        """Start the live display when there is a terminal; a question to the user makes it go away for a while."""
        if self._tty:
            from rich.live import Live

            from envbuild.transport import questions

            questions.around = self.pause

            self._live = Live(
                get_renderable=self._table, console=self._ui.stderr_console(), refresh_per_second=8, transient=True
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the live display away; what it showed last stays as plain lines of the summary."""
        if self._tty:
            from envbuild.transport import questions

            questions.around = questions.at_once
        if self._live is not None:
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

    def stage(self, text: str) -> None:
        """The run as a whole begins something."""
        self._stage = text
        if self._live is None and text:
            self._ui.note(text)

    def step(self, node: str, step: str, state: str, text: str = "") -> None:
        """A node begins or ends a step."""
        label = _STEPS.get(step, step)
        began = time.monotonic()
        if state == "started":
            self._rows[node] = (label, "", began)
        else:
            started = self._rows.get(node, (label, "", began))[2]
            mark = f"{label} {state} ({began - started:.1f} s)" + (f": {text}" if text else "")
            self._done.setdefault(node, []).append(f"{label} {began - started:.1f} s")
            self._rows[node] = (label, state, started)
            if self._live is None:
                self._ui.note(f"{node}: {mark}")
        if self._live is not None:
            self._live.refresh()

    def _table(self) -> Table:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        if not self._rows:
            table.add_row(Spinner("dots"), Text(self._stage))
        for node, (label, state, since) in sorted(self._rows.items()):
            now = f"{label}, {time.monotonic() - since:.0f} s" if not state else f"{label}: {state}"
            table.add_row(
                Spinner("dots") if not state else Text(" "),
                Text(node),
                Text(now),
                Text(" · ".join(self._done.get(node, [])), style="dim"),
            )
        return table
