"""What a target runs on this machine, and whether this user has allowed it: a target file is code on the controller.

Nobody is asked about a target that the user names. One that the current folder's project file names comes with the
folder, which may be a clone of anything: what it runs is shown and asked for once, and again when it changes.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from envbuild.catalog.loader import LoadedTarget
from envbuild.errors import EnvbuildError
from envbuild.model.target import HostSource, Target
from envbuild.node.protocol import NodeError, expand_prefix
from envbuild.node.variables import is_of_stacks
from envbuild.provision.survey.hosts import folder_of
from envbuild.regular_file import read_file, unreadable


class Question(NamedTuple):
    """`runs`: a line for each thing that the target runs here; `lets`: for what other programs are made to do by it.

    `digest`: sha256 (hex) of what decides all this.
    """

    target: Path
    runs: tuple[str, ...]
    lets: tuple[str, ...]
    digest: str


def question(loaded: LoadedTarget, brought: str = "") -> Question | None:
    """What to ask about a target; None where it runs nothing of its own. `brought`: as `brought_prefix` has it."""
    runs, lets = (*filter(None, [brought]), *_runs(loaded)), tuple(_lets(loaded))
    return Question(loaded.path, runs, lets, _digest(loaded, (*runs, *lets))) if runs or lets else None


def brought_prefix(target: Target, prefix: str, project: Path) -> str:
    """What to say of a prefix on this machine that came with the folder of the project file; empty for any other."""
    try:
        place = Path(expand_prefix(prefix)).resolve()
    except NodeError:  # the node says so
        return ""
    there = any((place / name).exists() for name in ("tools", "envs", "current"))
    came = target.connection.kind == "local" and place.is_relative_to(project.parent.resolve()) and there
    return f"runs the programs that lie in {place}" if came else ""


def _runs(loaded: LoadedTarget) -> Iterator[str]:
    target = loaded.target
    if isinstance(target.hosts, HostSource) and target.hosts.command is not None:
        yield f"runs `{shlex.join(target.hosts.command)}` to list the hosts"
    if target.connection.config is not None:
        yield f"lets ssh read {target.connection.config}, whose ProxyCommand and Match exec run programs"
    for interpreter in filter(None, (target.interpreter, target.base_python)):
        yield f"runs the interpreter {interpreter}"


def _lets(loaded: LoadedTarget) -> Iterator[str]:
    target = loaded.target
    if target.container is not None and (target.container.options or target.container.mounts):
        yield f"starts containers with {shlex.join([*target.container.options, *target.container.mounts])}"
    if target.container is not None and target.container.gitconfig is not None:
        yield f"lets git read {target.container.gitconfig}"
    names = sorted(name for name in target.environment if not is_of_stacks(name))
    if names:
        yield f"sets {', '.join(names)} in your shell"


def _digest(loaded: LoadedTarget, runs: tuple[str, ...]) -> str:
    """The files of the target, where they lie, and every file that it names and that is there.

    Raises EnvbuildError `file-unreadable` (exit 2).
    """
    target, folder = loaded.target, folder_of(loaded)
    words = list(target.hosts.command or ()) if isinstance(target.hosts, HostSource) else []
    gitconfig = target.container.gitconfig if target.container else None
    words += filter(None, (target.connection.config, target.interpreter, target.base_python, gitconfig))
    named = [folder / Path(word).expanduser() for word in words if not word.startswith("-")]
    made = hashlib.sha256("\0".join(runs).encode())
    for path in (*loaded.files, *named):
        if path.is_file():
            made.update(f"\0{path.resolve()}\0".encode("utf-8", "surrogateescape"))
            try:
                made.update(hashlib.sha256(read_file(path)).digest())
            except OSError as error:
                raise unreadable(path, error) from error
    return made.hexdigest()


def is_allowed(asked: Question) -> bool:
    """Whether this user has said yes to exactly this before."""
    try:
        return asked.digest in _record().read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return False


def allow(asked: Question) -> None:
    """Remember the yes of this user, by content. Raises OSError."""
    path = _record()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as stream:
        stream.write(f"{asked.digest}\n")


def refusal(asked: Question, project: Path) -> EnvbuildError:
    """`target-untrusted` (exit 7): nobody has allowed what the target runs."""
    return EnvbuildError(
        "target-untrusted",
        f"{asked.target} runs a program on this machine that you have not allowed",
        why=f"{project} names this target, which {'; '.join((*asked.runs, *asked.lets))}",
        hint=f"read {asked.target}, then add `--trust`; on a terminal envbuild asks, and remembers your answer",
    )


def _record() -> Path:
    import platformdirs

    return platformdirs.user_state_path("envbuild") / "allowed-targets"
