"""Programs that a test runs and a machine may not have: it is skipped then, and says which one."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import pytest

from tests.support.programs import completed


def need(*programs: str) -> None:
    """Skip the test where one of them is not on PATH."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here")


def why_no_namespaces(programs: Sequence[str], path: str, *kinds: str) -> str | None:
    """Why some programs are not there or cannot run in namespaces of these kinds (options of `unshare`), or None."""
    missing = [program for program in programs if shutil.which(program, path=path) is None]
    if missing:
        return f"missing programs: {', '.join(missing)} (see tests/system-packages.txt)"
    probe = completed(["unshare", *kinds, "true"])
    return f"namespaces are not allowed here: {probe.stderr.strip()}" if probe.returncode else None
