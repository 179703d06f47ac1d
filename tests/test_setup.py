"""What `.ci/setup` says while it works; the tools that it calls are stand-ins."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.programs import completed, executable

SETUP = Path(__file__).parent.parent / ".ci" / "setup"
# Makes .venv with itself as python and beside it a uv that works until setup has waited three times.
PYTHON = """#!/bin/sh
case "$*" in
    *" venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/uv ;;
    *"-c "*executable*) echo "$0" ;;
    *"pip install"*) exit "${PIP_ENDS:-0}" ;;
    "pip sync"*) while [ "$(grep -c . "$WAITED")" -lt 3 ]; do /bin/sleep 0.05; done; exit "$ENDS" ;;
esac
"""
SLEEP = '#!/bin/sh\necho "$1" >>"$WAITED"\nexec /bin/sleep 0.05\n'


def setup(top: Path, python: str, **more: str) -> subprocess.CompletedProcess[str]:
    """What `.ci/setup` says where this stands for python3.13."""
    for name, text in (("python3.13", python), ("git", "#!/bin/sh\n"), ("sleep", SLEEP)):
        executable(top / "bin" / name, text)
    (top / ".ci").mkdir()
    shutil.copy(SETUP, top / ".ci")
    env = {"PATH": f"{top}/bin:/usr/bin:/bin", **more}
    argv = ["/bin/sh", str(top / ".ci" / "setup")]
    return completed(argv, env=env)


def test_setup_tells_what_a_python_said_that_has_venv_and_cannot_make_one(tmp_path: Path) -> None:
    broken = '#!/bin/sh\ncase "$*" in *" venv .venv") echo no encodings; exit 1 ;; *executable*) echo "$0" ;; esac\n'
    done = setup(tmp_path, broken)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [
        "no encodings", f"{tmp_path}/bin/python3.13 cannot make an environment; what it said stands above",
    ]  # fmt: skip


@pytest.mark.parametrize("ends", [0, 2])
def test_setup_says_that_it_goes_on_while_a_tool_is_quiet_and_no_longer(tmp_path: Path, ends: int) -> None:
    (tmp_path / "waited").touch()
    done = setup(tmp_path, PYTHON, WAITED=str(tmp_path / "waited"), ENDS=str(ends))
    assert done.returncode == ends, done.stderr
    said = done.stderr.splitlines()
    assert said[0] == f"setup: making .venv with {tmp_path}/bin/python3.13"
    assert said[1] == "setup: installing what lockfiles/development.txt lists into .venv"
    waiting = said[2:] if ends == 0 else said[2:-2]
    assert set(waiting) == {"setup: still installing what lockfiles/development.txt lists into .venv"}
    assert ("check the" in said[-2]) == (ends != 0)
    assert set((tmp_path / "waited").read_text().split()) == {"20"}, "every 20 s"


def test_setup_points_to_uv_where_python_is_too_old(tmp_path: Path) -> None:
    """The login node has no administrator; sudo comes last."""
    for name in ("python3", "python3.11", "python3.12"):
        executable(tmp_path / "bin" / name, "#!/bin/sh\nexit 1\n")
    done = setup(tmp_path, "#!/bin/sh\nexit 1\n")
    assert done.returncode == 1
    assert 0 < done.stderr.index("uv tool install --python '>=3.11' .") < done.stderr.index("sudo apt-get")
    assert "docs/install.md" in done.stderr
