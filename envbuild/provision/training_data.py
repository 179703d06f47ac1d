"""`data`: small synthetic data for a stack's own run, through the stack's own tool in its built environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.launch.recipes import preparation
from envbuild.launch.request import Place
from envbuild.launch.shell import command_text
from envbuild.model.stack import Stack
from envbuild.node.redact import redact_text
from envbuild.node.smoke import training_data
from envbuild.regular_file import sha256_of
from envbuild.transport.processes import end_marked, end_orphans, marker_value

_MARKER = "ENVBUILD_DATA_RUN"
_DEADLINE = 600.0
_LAST = 12  # lines of a tool that failed, in the error


def make(stack: Stack, place: Place) -> dict[str, str]:
    """The data in `place.output`, as sha256 by name; files of an earlier call are replaced, and only when all are made.

    Raises EnvbuildError as `preparation` does, `environment-unknown` and `data-failed` (exit 1).
    """
    folder, activate = Path(place.output), f"{place.environment}/.envbuild/activate.sh"
    preparation(stack, place)
    if not Path(activate).exists():
        raise EnvbuildError(
            "environment-unknown",
            f"there is no {activate}",
            why="the data are made by the stack's own tool",
            hint=f"build it: envbuild provision {stack.name}; or name the environment: --environment DIR",
            exit_code=ExitCode.CHECK_FAILED,
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as staging:
        there = preparation(stack, place.model_copy(update={"output": staging}))
        for name, kind in there.files.items():
            Path(staging, name).parent.mkdir(exist_ok=True)
            training_data.write_file(kind, str(Path(staging, name)))
        for command in there.commands:
            _run(command_text(command, activate), command.argv[:2], Path(staging))
        made = sorted(path for path in Path(staging).iterdir() if path.is_file())
        for path in made:
            shutil.move(path, folder / path.name)
    return {path.name: sha256_of(folder / path.name) for path in made}


def _run(text: str, words: tuple[str, ...], folder: Path) -> None:
    """Run a tool; one whose workers died may say nothing of it but an empty file."""
    end_orphans(_MARKER)
    marker = marker_value()
    said, failed = "", f"timed out after {_DEADLINE:g} s"
    try:
        done = subprocess.run(
            ["bash", "-c", text],
            env={**os.environ, _MARKER: marker},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            timeout=_DEADLINE,
            check=False,
        )
        said, failed = done.stdout.decode("utf-8", "replace"), f"exit code {done.returncode}"
        empty = [path.name for path in sorted(folder.iterdir()) if path.is_file() and not path.stat().st_size]
        if done.returncode == 0 and not empty:
            return
        failed += f", {empty[0]} is empty" * bool(empty)
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode("utf-8", "replace")
    finally:
        # Its workers may outlive it.
        end_marked(_MARKER, marker)
    last = "\n".join(redact_text(said).splitlines()[-_LAST:])
    raise EnvbuildError(
        "data-failed",
        f"{' '.join(words)} failed: {failed}",
        why=last,
        hint="`envbuild smoke` says whether the environment works; nothing was changed in the folder",
    )
