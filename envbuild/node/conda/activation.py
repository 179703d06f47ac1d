"""What the activation scripts of conda packages set: compilers name themselves so, MPI and data folders too.

They are run once more by a shell of ours, with nothing of the user's, for what cannot source them: builds, smoke tests,
modulefiles, and a plain `sh`, which may not read what is written for bash.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping

from envbuild.node import proc
from envbuild.node.protocol import NodeError
from envbuild.node.redact import looks_secret, redact_text

_DEADLINE = 60.0
_SYSTEM_PATH = "/usr/bin:/bin"
# A shell sets these itself.
_SHELL = ("_", "PWD", "OLDPWD", "SHLVL")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")  # an exported function of bash has another form


def scripts(environment: str, folder: str = "activate.d") -> list[str]:
    """What conda packages have for a shell in `etc/conda/<folder>`, in the order of their names, as conda runs it."""
    top = os.path.join(environment, "etc", "conda", folder)
    names = sorted(os.listdir(top)) if is_conda(environment) and os.path.isdir(top) else []
    return [os.path.join(top, name) for name in names if name.endswith(".sh")]


def is_conda(environment: str) -> bool:
    """Whether conda packages are in the environment."""
    return os.path.isdir(os.path.join(environment, "conda-meta"))


def shell() -> str:
    """What runs the scripts of conda packages, most of which are written for bash."""
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def variables(environment: str) -> dict[str, str]:
    """The variables that the scripts set, by name; of a list of folders (`PATH`, `..._PATH`) what they add.

    Names that look like those of secrets are left out. Raises NodeError `conda-script-failed` (exit 4).
    """
    files = scripts(environment)
    if not files:
        return {}
    path = f"{environment}/bin:{_SYSTEM_PATH}"
    before = {"PATH": path, "HOME": environment, "CONDA_PREFIX": environment, "LC_ALL": "C.UTF-8"}
    lines = ["exec 3>&1 1>&2", *(f". {shlex.quote(file)}" for file in files), "exec env -0 >&3"]
    done = proc.run([shell(), "-c", "\n".join(lines)], timeout=_DEADLINE, env=before, cwd=environment)
    after = dict(row.split("=", 1) for row in done.out.split("\0") if "=" in row)
    if not done.ok or not after:
        raise NodeError(
            "conda-script-failed",
            "an activation script of a conda package ended its shell",
            why=f"{', '.join(map(os.path.basename, files))}: {redact_text(done.err).strip()[-1000:]}",
            hint="remove the package, or choose another build of it",
        )
    changed = {name: _added(name, value, before) for name, value in sorted(after.items()) if value != before.get(name)}
    changed = {name: value for name, value in changed.items() if value and _NAME.match(name) and name not in _SHELL}
    return {name: value for name, value in changed.items() if not looks_secret(name, any_key=False)}


def onto(environment: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The same for a process with the variables `environ`, and CONDA_PREFIX; nothing where conda packages are not.

    What the scripts add to a list of folders stands before those of `environ`.
    """
    if not is_conda(environment):
        return {}
    settings = {
        name: f"{value}:{environ[name]}" if is_list(name) and environ.get(name) else value
        for name, value in variables(environment).items()
    }
    return dict(settings, CONDA_PREFIX=environment)


def is_list(name: str) -> bool:
    """Whether the variable `name` is a list of folders."""
    return name.endswith("PATH")


def _added(name: str, value: str, before: dict[str, str]) -> str:
    if not is_list(name):
        return value
    known = before.get(name, "").split(":")
    return ":".join(word for word in value.split(":") if word not in ("", *known))
