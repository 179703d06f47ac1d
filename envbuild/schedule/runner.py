"""Where a scheduler's programs run: on this machine, or on the login host over SSH. Argument lists only."""

from __future__ import annotations

import base64
import os
import re
import secrets
import shlex
from collections.abc import Sequence
from typing import Protocol

from envbuild.model.target import Connection, Target
from envbuild.node import proc
from envbuild.node.proc import Finished

LIMIT = 16 * 1024 * 1024
TIMEOUT = 60.0
# sbatch hands its own environment on to the job: what a fresh login has is enough, and no token of this shell goes
# along. Slurm and PBS are configured by variables on some sites.
_KEPT = re.compile(
    r"\A(HOME|USER|LOGNAME|SHELL|PATH|LANG|TZ|KRB5CCNAME|MODULEPATH|MODULESHOME|LMOD_CMD|XDG_RUNTIME_DIR"
    r"|SLURM_CONF|SLURM_CLUSTERS|PBS_CONF_FILE|PBS_SERVER|PBS_DEFAULT|(?i:(?:https?|no|all)_proxy))\Z"
)


class Runner(Protocol):
    """Runs one program and returns what it left; never raises for what the program does.

    Raises EnvbuildError with exit code 3 when the host cannot be reached.
    """

    host: str

    def run(self, argv: Sequence[str], *, stdin: bytes | None = None, timeout: float = TIMEOUT) -> Finished:
        """Run `argv`; `timeout` in seconds."""


class Here:
    """This machine, which is a login node or the only one."""

    host = "localhost"

    def run(self, argv: Sequence[str], *, stdin: bytes | None = None, timeout: float = TIMEOUT) -> Finished:
        """Run `argv` with the environment of a fresh login."""
        env = {name: value for name, value in os.environ.items() if _KEPT.match(name)}
        env["LC_ALL"] = "C.UTF-8"
        return proc.run(list(argv), timeout=timeout, env=env, stdin=stdin, limit=LIMIT)


class Login:
    """A login host, one SSH exchange a program; what start-up files print there does no harm."""

    def __init__(self, host: str, connection: Connection) -> None:
        """`connection` says how the host is reached (`kind: ssh`)."""
        self.host = host
        self.connection = connection

    def run(self, argv: Sequence[str], *, stdin: bytes | None = None, timeout: float = TIMEOUT) -> Finished:
        """Run `argv` under `/bin/sh -s`; stdin goes along as base64."""
        from envbuild.transport import ssh

        nonce = secrets.token_hex(16)
        return _finished(
            ssh.exchange(self.host, _script(argv, stdin, nonce).encode(), self.connection, timeout, LIMIT), nonce
        )


def _script(argv: Sequence[str], stdin: bytes | None, nonce: str) -> str:
    command = shlex.join(argv)
    if stdin is None:
        run = f"{command} </dev/null"
    else:
        run = f"printf %s {base64.b64encode(stdin).decode()} | base64 -d | {command}"
    return (
        f"LC_ALL=C.UTF-8; export LC_ALL\nprintf '\\nbegin %s\\n' {nonce}\n{run}\nprintf '\\nend %s %d\\n' {nonce} $?\n"
    )


def _finished(done: Finished, nonce: str) -> Finished:
    """What the program of `_script` left, between the lines that the script printed around it."""
    _, found, rest = done.out.partition(f"\nbegin {nonce}\n")
    body, ended, code = rest.rpartition(f"\nend {nonce} ")
    if not found or not ended:
        said = done.out if not found else rest
        return Finished(out=said, err=done.err, timed_out=done.timed_out, truncated=done.truncated)
    number = int(code.split()[0])
    return Finished(rc=number, out=body, err=done.err, missing=number == 127, truncated=done.truncated)


def submit_host(target: Target) -> Runner:
    """Where jobs of a target are submitted: its login host, or this machine."""
    connection = login_connection(target)
    login = target.connection.login
    return Here() if connection is None or login is None else Login(login.host, connection)


def as_login(target: Target) -> Target:
    """Of a target whose nodes share a prefix and are reached through jobs: the login host, which sees that prefix.

    Where each node has a disk of its own, its prefix is the folder that they share. Any other target as it is.
    """
    if target.connection.kind != "job":
        return target
    connection = login_connection(target) or Connection(kind="local")
    seen = target.shared if target.placement == "node-local" and target.shared else target.prefix
    return target.model_copy(update={"connection": connection, "hosts": (submit_host(target).host,), "prefix": seen})


def login_connection(target: Target) -> Connection | None:
    """How the login host of a target is reached; None when jobs are submitted from this machine."""
    login = target.connection.login
    if login is None:
        return None
    named = {"user": login.user or target.connection.user, "port": login.port or target.connection.port}
    return target.connection.model_copy(update={"kind": "ssh", "login": None, **named})
