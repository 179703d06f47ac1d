"""The configuration with which one run of envbuild logs in: the same file for Ansible and for our own questions.

OpenSSH reads it (`ssh -F`) and hands it on to every jump host. What must hold stands first, for the first value wins;
the user's own configuration is included, so that whatever `ssh HOST` reaches is reached. Connections are shared through
sockets in a private folder, so that a host is logged in on once a run; `close` ends them.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import pwd
import shutil
import socket
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from envbuild.errors import EnvbuildError
from envbuild.regular_file import read_file, unreadable
from envbuild.transport.processes import end_masters, end_masters_of_the_dead, sockets_prefix

if TYPE_CHECKING:
    from envbuild.model.target import Connection

# `own`: through our connections. `asking`: the same, and whoever sits at the terminal may be asked. `users`: through
# the connection that the user keeps open, where their configuration names one.
Way = Literal["own", "asking", "users"]

# A socket's path, with what OpenSSH adds while it makes it, must fit in 108 bytes (sun_path).
_LONGEST_FOLDER = 107 - len("/99") - 40 - len(".0123456789abcdef")
# A connection outlives its last use, and envbuild where that is killed, by so much.
_PERSIST = "15s"
_ALWAYS = """\
StrictHostKeyChecking yes
UpdateHostKeys no
ServerAliveInterval 30
ServerAliveCountMax 10
ClearAllForwardings yes
PermitLocalCommand no
RemoteCommand none
RequestTTY no
"""
_SILENT = "BatchMode yes\nLogLevel ERROR\n"


class _Run:
    """What one run has: its folder, the number of each way to configure, who has a connection of their own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.folder: Path | None = None
        self.numbers: dict[tuple[str | None, ...], int] = {}
        self.users: set[tuple[int, str]] = set()
        self.held: dict[Path, socket.socket] = {}
        self.logins: dict[tuple[str, ...], Future[None]] = {}


_run = _Run()


def arguments(connection: Connection, host: str, way: Way | None = None) -> list[str]:
    """The options for OpenSSH, one argument each; the files that they name are there.

    Without a `way` the one in which this run has logged in on `host`. Raises EnvbuildError `ssh-config-missing`
    (exit 3), and `path-unusable` (exit 2) for a path that OpenSSH's syntax cannot carry.
    """
    number, folder = _number(connection)
    chosen: Way = way or ("users" if (number, host) in _run.users else "own")
    options = ["-F", str(folder / f"{number}.{chosen}")]
    options += ["-o", f"ConnectTimeout={max(1, math.ceil(connection.connect_timeout))}"]
    if connection.identity is not None:
        options += ["-o", f"IdentityFile={_ssh_path(connection.identity)}", "-o", "IdentitiesOnly=yes"]
    return options


def goes_through_the_users(connection: Connection, host: str) -> None:
    """From now on `host` is reached through the connection that the user keeps open."""
    _run.users.add((_number(connection)[0], host))


def logins() -> dict[tuple[str, ...], Future[None]]:
    """The logins of this run, begun and done, by the command that logs in."""
    return _run.logins


def hold() -> None:
    """Keep all connections that are open now until this process ends, however long nobody uses them.

    A master goes on while somebody is connected to its socket, and the kernel ends that connection with this process.
    """
    for path in _run.folder.iterdir() if _run.folder else ():
        if path in _run.held or not path.is_socket():
            continue
        connected = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):  # it ends just now
            connected.connect(str(path))
            _run.held[path] = connected


def end_connections() -> None:
    """End every connection of this run, and what runs through it on nodes; the next use logs in again."""
    for connected in _run.held.values():
        connected.close()
    _run.held.clear()
    _run.logins.clear()
    if _run.folder is not None:
        end_masters(_run.folder)


def close() -> None:
    """End every connection and remove the files; harmless if there are none."""
    global _run
    end_connections()
    if _run.folder is not None:
        shutil.rmtree(_run.folder, ignore_errors=True)
    _run = _Run()


def _number(connection: Connection) -> tuple[int, Path]:
    """The number under which the files for this connection are in the folder; they are written on the first use."""
    key = (connection.config, connection.known_hosts, connection.identity)
    with _run.lock:
        folder = _run.folder = _run.folder or _made_folder()
        if key not in _run.numbers:
            number = len(_run.numbers)
            for way in get_args(Way):
                path = folder / f"{number}.{way}"
                path.touch(0o600)
                path.write_text(
                    _text(connection, way, folder / f"{number}"), encoding="utf-8", errors="surrogateescape"
                )
            _run.numbers[key] = number
        return _run.numbers[key], folder


def _made_folder() -> Path:
    end_masters_of_the_dead()
    atexit.register(close)
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) + len(f"/{sockets_prefix()}12345678") > _LONGEST_FOLDER:
        parent = "/tmp"  # noqa: S108 - mkdtemp makes a private folder there
    return Path(tempfile.mkdtemp(prefix=sockets_prefix(), dir=parent))


def _text(connection: Connection, way: Way, socket_path: Path) -> str:
    """One configuration; its sockets begin with `socket_path`."""
    always = _ALWAYS if way == "asking" else _ALWAYS + _SILENT
    if connection.known_hosts is not None:
        hint = (
            "correct `known_hosts:` of the target's `connection:`; `ssh -o UserKnownHostsFile=FILE HOST true` makes one"
        )
        known = _existing(connection.known_hosts, hint)
        always += f"UserKnownHostsFile {_ssh_path(str(known))}\nGlobalKnownHostsFile none\n"
    share = f'ControlMaster auto\nControlPath {_ssh_path(str(socket_path))[:-1]}%C"\nControlPersist {_PERSIST}\n'
    if connection.config is None:
        # The account's own home, as for `ssh HOST`, whatever HOME says; `~` would follow HOME.
        users = f"Include {_ssh_path(_home() + '/.ssh/config')}\nInclude /etc/ssh/ssh_config\n"
    else:
        path = _existing(connection.config, "correct `config:` of the target's `connection:`")
        # Not included: OpenSSH refuses an included file that others can write, and takes one that `-F` names.
        try:
            users = read_file(path).decode("utf-8", "surrogateescape")
        except OSError as error:
            raise unreadable(path, error) from error
    return f"{always}{users}\nHost *\n{share}" if way == "users" else f"{always}{share}{users}"


def _home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/nonexistent"  # `ssh` refuses to work for a user without an account, and says so


def _existing(name: str, hint: str) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path
    raise EnvbuildError("ssh-config-missing", f"{path} is not there", why="the target names it", hint=hint)


def _ssh_path(path: str) -> str:
    """A path as a value of OpenSSH's configuration: quoted, `%` doubled (ssh_config(5), TOKENS)."""
    full = str(Path(path).expanduser())
    if '"' in full or "${" in full or "\\" in full or "\n" in full:
        raise EnvbuildError(
            "path-unusable",
            f"OpenSSH cannot use the path {full!r}",
            why="it holds a double quote, a backslash, a line break or `${`",
            hint="rename the file, or link to it under a plain name",
        )
    return '"' + full.replace("%", "%%") + '"'
