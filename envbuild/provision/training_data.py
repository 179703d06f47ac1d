"""`data`: small synthetic data for a stack's own run, through the stack's own tool in its built environment."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.launch.recipes import preparation
from envbuild.launch.request import Place
from envbuild.launch.shell import command_text
from envbuild.model.launch import DataFile
from envbuild.model.stack import Stack
from envbuild.node import proc
from envbuild.node.redact import redact_text
from envbuild.node.smoke import training_data
from envbuild.regular_file import sha256_of
from envbuild.transport.download import download
from envbuild.transport.processes import end_marked, end_orphans, marker_value

_MARKER = "ENVBUILD_DATA_RUN"
_DEADLINE = 600.0
_FETCH = 24 * 3600.0
_LARGEST = 64 << 30
_LAST = 12  # lines of a tool that failed, in the error


@dataclass(frozen=True, slots=True)
class Real:
    """The document's own files: from `folders`, else from where the document has them.

    `known`: sha256 by name of those that were fetched before; `record` keeps that of a new one, `say` hears of each.
    """

    folders: Sequence[Path]
    known: Mapping[str, str]
    record: Callable[[str, str], object]
    say: Callable[[str], None]


def make(
    stack: Stack, place: Place, real: Real | None = None, *, where: str = "STACK", host: str = ""
) -> dict[str, str]:
    """The data in `place.output`, as sha256 by name; files of an earlier call are replaced, and only when all are made.

    `real`: of the document's own files, which stay there as they were fetched; else small and synthetic. `where` names
    stack and target in hints, `host` the machine with the environment if it is another one. Raises EnvbuildError as
    `preparation` does, `environment-unknown` and `data-failed` (exit 1), `data-not-made` (exit 7) if a real file cannot
    be got, and what `download` raises.
    """
    folder, activate = Path(place.output), f"{place.environment}/.envbuild/activate.sh"
    preparation(stack, place)
    if not Path(activate).exists():
        raise EnvbuildError(
            "environment-unknown",
            f"there is no {activate}",
            why="the data are made by the stack's own tool",
            hint=f"the prefix is on {host}: run this command there, with `--output` in a folder that the nodes see"
            if host
            else f"build it: `envbuild provision {where}`; or name the environment: `--environment DIR`",
            exit_code=ExitCode.CHECK_FAILED,
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as staging:
        there = preparation(stack, place.model_copy(update={"output": staging}), real=real is not None)
        for name, kind in there.files.items():
            Path(staging, name).parent.mkdir(exist_ok=True)
            training_data.write_file(kind, str(Path(staging, name)))
        for file in there.real:
            assert real is not None  # noqa: S101 - only then it has files
            shutil.copyfile(_fetched(file, folder, real), Path(staging, file.name))
        for command in there.commands:
            text = command_text(command, activate, staging)
            _run(text, command.argv[:2], Path(staging), _DEADLINE * (36 if real else 1))
        made = sorted(path for path in Path(staging).iterdir() if path.is_file())
        for path in made:
            shutil.move(path, folder / path.name)
    return {path.name: sha256_of(folder / path.name) for path in made}


def _fetched(file: DataFile, folder: Path, real: Real) -> Path:
    """A file of the document in the folder of the data, with the sha256 that is known of it, or recorded now."""
    here, known = folder / file.name, file.sha256 or real.known.get(file.name)
    if known and here.is_file() and sha256_of(here) == known:
        return here
    carried = next((path for path in (Path(top, file.name).absolute() for top in real.folders) if path.is_file()), None)
    if carried is None and (real.folders or file.url is None):
        where = f"no file of that name is in {', '.join(map(str, real.folders))}" if real.folders else file.note or ""
        raise EnvbuildError(
            "data-not-made",
            f"{file.name} is not available",
            why=where,
            hint=f"put it into a folder and name that: --from DIR{f' (it is at {file.url})' if file.url else ''}",
        )
    url = carried.as_uri() if carried else str(file.url)
    real.say(f"fetching {file.name} from {url}")
    try:
        got = download(url, here, known, size_cap=_LARGEST, deadline=_FETCH, resume=True)
    except EnvbuildError as error:
        if error.exit_code != ExitCode.INTEGRITY:
            error.hint = f"{error.hint}; or carry {file.name} here and name its folder: --from DIR"
        raise
    if not known:
        real.record(file.name, got.sha256)
    return here


def _run(text: str, words: tuple[str, ...], folder: Path, seconds: float) -> None:
    """Run a tool; one whose workers died may say nothing of it but an empty file."""
    end_orphans(_MARKER)
    marker = marker_value()
    argv, env = ["bash", "-c", f"exec 2>&1\n{text}"], {**os.environ, _MARKER: marker}
    try:
        done = proc.run(argv, timeout=seconds, env=env, limit=_LARGEST)
    finally:
        # Its workers may outlive it.
        end_marked(_MARKER, marker)
    empty = [path.name for path in sorted(folder.iterdir()) if path.is_file() and not path.stat().st_size]
    if done.ok and not empty:
        return
    ended = [f"timed out after {seconds:g} s" if done.timed_out else f"exit code {done.rc}"]
    ended += [f"{name} is empty" for name in empty[:1]]
    last = "\n".join(redact_text(done.out).splitlines()[-_LAST:])
    raise EnvbuildError(
        "data-failed",
        f"{' '.join(words)} failed: {', '.join(ended)}",
        why=last,
        hint="`envbuild smoke` says whether the environment works; nothing was changed in the folder",
    )
