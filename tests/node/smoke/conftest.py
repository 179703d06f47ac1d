"""The environment in which smoke programs run."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest

from envbuild.node.smoke import runner
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


@pytest.fixture(autouse=True)
def short_graces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins that hang, or whose partner died, are waited for a second; those with torch have all the time."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(runner, "_GRACE", 1.0)
        monkeypatch.setattr(runner, "_SIBLING_GRACE", 1.0)
