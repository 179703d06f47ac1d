"""Where a question to the user and the display of progress, which share the terminal, agree on who writes to it."""

from __future__ import annotations

from collections.abc import Callable


def at_once(ask: Callable[[], object]) -> None:
    """Ask where nothing else is shown."""
    ask()


# Calls what it is given, while nothing else writes to the terminal.
around: Callable[[Callable[[], object]], None] = at_once
