"""What `envbuild env` does inside an environment of this machine: one command, a shell, a Jupyter kernel."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.node import paths
from envbuild.node.env.other_shells import csh_quote

FILES = {"sh": "activate.sh", "fish": "activate.fish", "csh": "activate.csh"}
_KINDS = {"fish": "fish", "csh": "csh", "tcsh": "csh"}


def calling_shell() -> str:
    """The kind of the shell that called: what cannot be told is `sh`."""
    try:
        name = Path(f"/proc/{os.getppid()}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        name = ""
    return _KINDS.get(name, "sh")


def code_for(environment: str, shell: str) -> str:
    """What a shell of that kind reads to activate an environment."""
    word = "." if shell == "sh" else "source"
    path = f"{environment}/.envbuild/{FILES[shell]}"
    return f"{word} {csh_quote(path) if shell == 'csh' else shlex.quote(path)}\n"


def become(environment: str, command: Sequence[str]) -> NoReturn:
    """Run `command` in the environment in place of this process: signals and the exit code are its own.

    Raises EnvbuildError `environment-unknown` (exit 1) where the environment is not on this machine.
    """
    code = f'. {shlex.quote(_file(environment, "activate.sh"))} && exec "$@"'
    _replace(["bash" if Path("/bin/bash").exists() else "sh", "-c", code, "envbuild", *command])


def open_shell(environment: str) -> NoReturn:
    """Become the user's shell with the environment loaded after its own start-up files. Raises as `become`.

    A shell other than bash and fish starts with the variables, and its start-up files may change them.
    """
    shell = os.environ.get("SHELL") or "/bin/sh"
    name = Path(shell).name
    if name == "fish":
        load = code_for(environment, "fish") if _file(environment, "activate.fish") else ""
        _replace([shell, "--init-command", load])
    if name != "bash":
        become(environment, [shell])
    start = f"[ ! -r ~/.bashrc ] || . ~/.bashrc\n. {shlex.quote(_file(environment, 'activate.sh'))}\n"
    # A file without a name, which ends with the shell that reads it.
    held = os.memfd_create("envbuild", 0)
    os.write(held, start.encode())
    _replace([shell, "--rcfile", f"/proc/self/fd/{held}", "-i"])


def add_kernel(python: str, environment: str, stack: str) -> Path:
    """Register the environment with Jupyter by its own ipykernel; the folder of the kernel, which is this user's.

    `python` is the interpreter as the kernel shall call it. Raises EnvbuildError `kernel-missing` (exit 1) without
    ipykernel, `kernel-not-written` (exit 7), and as `become`.
    """
    file = _file(environment, "variables.json")
    variables = paths.read_json(file)
    if variables is None:
        raise EnvbuildError(
            "variables-unreadable",
            f"{file} cannot be read",
            hint=f"`envbuild env use {Path(environment).resolve().name}` writes it again",
            exit_code=ExitCode.CHECK_FAILED,
        )
    told = {"VIRTUAL_ENV": environment, "ENVBUILD_ENV": environment, "ENVBUILD_STACK": stack, "PYTHONNOUSERSITE": "1"}
    for name, value in variables.items():
        path = value["path"] if isinstance(value, dict) else None
        if path is None or os.path.exists(path):  # noqa: PTH110 - a path of the stack's, as the shells ask for it
            told[name] = path or value
    # Jupyter fills in ${PATH} when it starts the kernel.
    told["PATH"] = paths.search_path(environment, "${PATH}")
    words = [part for item in told.items() for part in ("--env", *item)]
    title = f"{stack} (envbuild)"
    argv = [python, "-m", "ipykernel", "install", "--user", "--name", f"envbuild-{stack}", "--display-name", title]
    env = {**os.environ, "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*argv, *words], env=env, capture_output=True, text=True, check=False)
    if "No module named ipykernel" in done.stderr:
        raise EnvbuildError(
            "kernel-missing",
            f"the environment of {stack} has no ipykernel",
            hint="list `ipykernel` under `packages` of the stack, then `envbuild lock create` and `envbuild provision`",
        )
    folder = done.stdout.strip().rpartition(" in ")[2]
    if done.returncode or not folder:
        why = done.stderr.strip()[-500:]
        raise EnvbuildError("kernel-not-written", "ipykernel did not register it", why=why)
    return Path(folder)


def _file(environment: str, name: str) -> str:
    """A file that `activate` or `use` has written. Raises EnvbuildError `environment-unknown` (exit 1)."""
    path = Path(environment) / ".envbuild" / name
    if path.is_file():
        return str(path)
    raise EnvbuildError(
        "environment-unknown",
        f"there is no {path} on this machine",
        hint=f"`envbuild env use {Path(environment).name}` writes what shells load; an environment of another machine "
        "is used there",
        exit_code=ExitCode.CHECK_FAILED,
    )


def _replace(argv: Sequence[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(argv[0], [*argv])  # noqa: S606 - no shell but the one that is meant
