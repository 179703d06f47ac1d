"""What `.ci/setup` says while it works; the tools that it calls are stand-ins."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parent.parent / ".ci" / "setup"
# Makes .venv with itself as python and beside it a uv that works until setup has waited three times.
PYTHON = """#!/bin/sh
case "$*" in
    *" venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/uv ;;
    *"-c "*executable*) echo "$0" ;;
    "pip sync"*) while [ "$(grep -c . "$WAITED")" -lt 3 ]; do /bin/sleep 0.05; done; exit "$ENDS" ;;
esac
"""
SLEEP = '#!/bin/sh\necho "$1" >>"$WAITED"\nexec /bin/sleep 0.05\n'


@pytest.mark.parametrize("ends", [0, 2])
def test_setup_says_that_it_goes_on_while_a_tool_is_quiet_and_no_longer(tmp_path: Path, ends: int) -> None:
    for name, text in (("python3.13", PYTHON), ("git", "#!/bin/sh\n"), ("sleep", SLEEP)):
        (tmp_path / "bin" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / ".ci").mkdir()
    shutil.copy(SETUP, tmp_path / ".ci")
    (tmp_path / "waited").touch()
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "WAITED": str(tmp_path / "waited"), "ENDS": str(ends)}
    done = subprocess.run(
        ["/bin/sh", str(tmp_path / ".ci" / "setup")], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == ends, done.stderr
    said = done.stderr.splitlines()
    assert said[0] == f"setup: making .venv with {tmp_path}/bin/python3.13"
    assert said[1] == "setup: installing what lockfiles/development.txt lists into .venv"
    assert set(said[2:]) == {"setup: still installing what lockfiles/development.txt lists into .venv"}
    assert set((tmp_path / "waited").read_text().split()) == {"20"}, "every 20 s"
