"""The environment in which smoke programs run."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment without packages."""
    path = tmp_path_factory.mktemp("env") / "bare"
    venv.create(path, with_pip=False, symlinks=True)
    return path
