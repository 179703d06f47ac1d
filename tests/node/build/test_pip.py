"""What real pips do with the flags of a package of Apex's shape, and that a build of ours never loses one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from envbuild.node.build import wheel as build_wheel
from envbuild.node.protocol import Exit
from tests.node.build_projects import EXTENSIONS, PYPROJECT, build, index_environment, shape_project, source
from tests.node.build_projects import own_folder as own_folder
from tests.node.pythons import find_python
from tests.support.fails import fails

pytestmark = pytest.mark.slow

PYTHON = find_python("3.9")
TOOLS = ("setuptools==65.7.0", "wheel==0.38.4")
# Ways to say it, each for a package without and with a pyproject.toml (which does not name torch, as Apex's).
GLOBAL = ["--global-option=--cpp_ext", "--global-option=--cuda_ext"]
SETTINGS = ["--config-settings=--build-option=--cpp_ext", "--config-settings=--build-option=--cuda_ext"]
WAYS = [(None, GLOBAL), (None, SETTINGS), (PYPROJECT, GLOBAL), (PYPROJECT, SETTINGS)]
# Flags of two that reached setup.py, by way; None: pip ended with an error. 0 and 1 are wheels that lack extensions
# while pip ends with 0.
SEEN = {
    "21.3.1": (2, None, 0, None),
    "23.0.1": (2, 0, 0, 1),
    "23.1.2": (2, 0, 0, 2),
    "24.0": (2, 2, 0, 2),
    "25.2": (2, 2, 0, 2),
    "25.3": (None, 2, None, 2),
    "26.0.1": (None, 2, None, 2),
}


def with_pip(python: str, project: Path, words: list[str], out: Path) -> int | None:
    """How many of the two extensions are in the wheel that pip makes; None when it makes none."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    command = [python, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", *words]
    done = subprocess.run([*command, "-w", str(out), str(project)], capture_output=True, env=env)
    if done.returncode:
        return None
    (wheel,) = out.glob("*.whl")
    return len(build_wheel.modules(str(wheel)))


@pytest.mark.parametrize("pip", SEEN)
def test_pip_may_lose_flags_in_silence(tmp_path: Path, pip: str) -> None:
    if PYTHON is None:
        pytest.skip("no Python 3.9, for which all these pips are")
    python = index_environment(tmp_path / "environment", PYTHON, f"pip=={pip}", *TOOLS)
    seen = []
    for index, (pyproject, words) in enumerate(WAYS):
        project = shape_project(tmp_path / f"pip-{index}", pyproject=pyproject)
        seen.append(with_pip(python, project, words, tmp_path / f"pip-out-{index}"))
    assert tuple(seen) == SEEN[pip]


def test_our_build_never_loses_a_flag_and_calls_no_pip(tmp_path: Path) -> None:
    if PYTHON is None:
        pytest.skip("no Python 3.9, with which pips were asked")
    python = index_environment(tmp_path / "environment", PYTHON, *TOOLS)
    assert subprocess.run([python, "-c", "import pip"], capture_output=True).returncode, (
        "whichever there is, it has no say"
    )
    for index, pyproject in enumerate((None, PYPROJECT)):
        project = shape_project(tmp_path / f"project-{index}", pyproject=pyproject)
        asked = source(flags=["cpp_ext", "cuda_ext"], extensions=EXTENSIONS)
        assert build(python, tmp_path, project, asked, f"out-{index}")["extensions"] == EXTENSIONS
        with fails("extensions-missing", Exit.BUILD_FAILED):
            build(python, tmp_path, project, source(flags=["cpp_ext"], extensions=EXTENSIONS), f"no-{index}")
        assert not list((tmp_path / f"no-{index}").iterdir())
