"""The environment in which smoke programs run."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest

from tests.node.smoke.subject import Subject


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment without packages."""
    path = tmp_path_factory.mktemp("env") / "bare"
    venv.create(path, with_pip=False, symlinks=True)
    return path


@pytest.fixture
def subject(environment: Path, tmp_path: Path) -> Subject:
    """That environment, to be tested."""
    return Subject(environment, tmp_path)
