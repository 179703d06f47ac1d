"""Builds without a network: everything that they need is in the environment and in the pinned tree."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from envbuild.node import proc

# As root; as a user who may make user namespaces (own id, then, with older programs, as its root).
_WAYS = (("-n",), ("-c", "-n"), ("-r", "-n"))
_WHERE = "/usr/bin:/bin:/usr/sbin:/sbin"


def off(ways: Sequence[Sequence[str]] = _WAYS) -> tuple[list[str], str]:
    """Words to put before a command so that it has no network, and what to say: `off`, or `on: ` and why."""
    program = shutil.which("unshare") or shutil.which("unshare", path=_WHERE)
    if program is None:
        return [], "on: this node has no unshare"
    why = ""
    for way in ways:
        words = [program] + list(way) + ["--"]
        done = proc.run(words + ["true"], timeout=10.0)
        if done.ok:
            return words, "off"
        lines = (done.err or done.out).strip().splitlines()
        why = lines[-1][:200] if lines else "unshare failed"
    return [], "on: " + why
