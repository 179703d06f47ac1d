"""A scheduler of the tests need not be spared: envbuild asks it ten times as often."""

from __future__ import annotations

from envbuild.schedule import wait

# For `World.run(..., before=OFTEN)`.
OFTEN = ("tests.support.often:ask_often",)


def ask_often() -> None:
    """Every pause in waiting for a job is a tenth of what it is."""
    wait.PEEK /= 10
    wait.SOON /= 10
    wait.LONG_PAUSE /= 10
    wait.PAUSES = tuple(pause / 10 for pause in wait.PAUSES)
