"""Fixtures that several rooms use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A fresh user with an own HOME, prefix, runs, wheels and repositories."""
    return World(tmp_path)
