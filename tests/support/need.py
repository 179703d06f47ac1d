"""Programs that a test runs and a machine may not have: it is skipped then, and says which one."""

from __future__ import annotations

import shutil

import pytest


def need(*programs: str) -> None:
    """Skip the test where one of them is not on PATH."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here")
