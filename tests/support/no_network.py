"""What takes the network away from a process before a command runs in it: see `forked.run`."""

from __future__ import annotations

import ctypes
import runpy
from functools import cache

from tests.support.programs import completed

# Of sched.h.
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000


@cache
def without_network() -> tuple[str, ...]:
    """Words that take the network away from a command and all that it starts; none where the system forbids that."""
    ways = (("unshare", "-n"), ("unshare", "-r", "-n"))
    return next((words for words in ways if completed(["sh", "-c", '"$@"', "sh", *words, "true"]).returncode == 0), ())


def leave() -> None:
    """Take the network away from this process and its children, as root may."""
    assert ctypes.CDLL(None).unshare(_NEW_NETWORK) == 0


def forbid(guard: str) -> None:
    """Run the program `guard`, and where the system allows that leave this process and its children no network."""
    for flags in (_NEW_NETWORK, _NEW_USER | _NEW_NETWORK):
        if ctypes.CDLL(None).unshare(flags) == 0:
            break
    runpy.run_path(guard)
