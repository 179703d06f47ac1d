"""One exchange with a node over SSH, by the program `ssh`, as Ansible does; `ssh_config.py` has the options of both.

Each run logs in once on a host; all exchanges use that connection. envbuild asks the user only if authentication fails
otherwise: at the terminal, one host after the other.
"""

from __future__ import annotations

import os
import secrets
import select
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import IO, BinaryIO

from envbuild.errors import EnvbuildError
from envbuild.model.target import Connection
from envbuild.node import proc
from envbuild.node.proc import Finished
from envbuild.transport import ssh_config
from envbuild.transport.ssh_errors import can_answer, denied, login_error


def at_once(ask: Callable[[], object]) -> None:
    """Ask where nothing else is shown."""
    ask()


# Calls what it is given, while nothing else writes to the terminal.
around: Callable[[Callable[[], object]], None] = at_once


_CHUNK = 65536
# What `ssh` ends with when it has no connection.
_NO_CONNECTION = 255
# Seconds in which a server has to let somebody in, beside the time for connecting.
_LOGIN_S = 30.0
# Start-up files may print before it begins.
_CAT = """\
path={path}
trap 'rm -f -- "$path"' EXIT
trap 'exit 1' HUP INT PIPE TERM
printf '\\n%s\\n' {begin}
cat < "$path"
"""

_one_question = threading.Lock()
_lock = threading.Lock()
_answered = 0


def log_in(node: str, options: Connection) -> None:
    """Have a connection to `node`: opened here, or waited for where another thread opens it.

    Raises EnvbuildError `host-key-unknown`, `host-key-changed`, `ssh-auth-failed`, `login-needs-terminal`,
    `node-unreachable`, `ssh-missing` (exit 3), and as `ssh_config.arguments` does. The next call tries again.
    """
    key = tuple(_command(node, options, "own"))
    with _lock:
        logins = ssh_config.logins()
        begun, mine = logins.get(key), Future[None]()
        if begun is None:
            logins[key] = mine
    try:
        if begun is None:
            try:
                _get_in(node, options)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                mine.set_exception(error)
            else:
                mine.set_result(None)
        (begun or mine).result()
    except BaseException:
        logins.pop(key, None)
        raise


def _command(node: str, options: Connection, way: ssh_config.Way | None = None, *more: str) -> list[str]:
    """`ssh` with everything before the command that the node is to run."""
    address, user, port = options.reaches(node)
    argv = ["ssh", *ssh_config.arguments(options, node, way), *more]
    if user is not None and "@" not in address:
        argv += ["-l", user]
    if port is not None:
        argv += ["-p", str(port)]
    return [*argv, "--", address]


def _get_in(node: str, options: Connection) -> None:
    """Open a connection: with keys and agents alone, as the user has it open, or with the user's answers."""
    seen = _answered
    words = _open(node, options, "own")
    if words is None:
        return
    if denied(words):
        if _open(node, options, "users") is None:
            ssh_config.goes_through_the_users(options, node)
            return
        if can_answer():
            words = _ask(node, options, seen)
            if words is None:
                return
    raise login_error(node, options, words)


def _open(node: str, options: Connection, way: ssh_config.Way) -> str | None:
    """Log in and leave the connection open in the background; None, or what `ssh` said where it did not get in."""
    alone = way != "asking"
    # Verbose, for else the words of a jump host are lost, and the key that a host offers is not told. Into a file, for
    # `ssh` keeps that open in the background.
    argv = _command(node, options, way, "-f", "-N", *(["-v"] if alone else []))
    with tempfile.TemporaryFile() as errors:
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors if alone else None,
                env=proc.clean_env(),
                # Without a terminal no program that the user's configuration starts can ask there.
                start_new_session=alone,
                timeout=options.connect_timeout + _LOGIN_S if alone else None,
                check=False,
            )
        except FileNotFoundError:
            raise EnvbuildError(
                "ssh-missing", "this machine has no `ssh`", why="nodes are reached through the program of OpenSSH",
                hint="install OpenSSH's client"
            ) from None  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"no login within {options.connect_timeout + _LOGIN_S:g} s"
        errors.seek(0)
        message = errors.read(_CHUNK).decode("utf-8", "replace")
    return None if done.returncode == 0 else message


def _ask(node: str, options: Connection, seen: int) -> str | None:
    """Log in with the answers of the user; what `ssh` said where that did not do."""
    global _answered
    with _one_question:
        # A jump host may be open by now: then nobody has to answer for it again.
        words = _open(node, options, "own") if _answered != seen else ""
        if words is None:
            return None
        asked: list[str | None] = []
        around(lambda: asked.append(_open(node, options, "asking")))
        if asked[0] is None:
            _answered += 1
            ssh_config.hold()
            return None
    return "Permission denied (): what ssh said of it is above"


def session(node: str, options: Connection) -> list[str]:
    """The command that feeds its input to `/bin/sh -s` on `node`. Raises EnvbuildError as `log_in` does."""
    log_in(node, options)
    return [*_command(node, options), "/bin/sh -s"]


def exchange(node: str, script: bytes, options: Connection, deadline: float, limit: int) -> Finished:
    """Feed `script` to `/bin/sh -s` on `node`; each stream is cut at `limit` bytes, `deadline` is in seconds.

    Raises EnvbuildError as `log_in` does.
    """
    for _ in range(2):
        done = proc.run(session(node, options), timeout=deadline, stdin=script, limit=limit, tied=True)
        if done.rc != _NO_CONNECTION or done.out:
            break
        # The connection has ended meanwhile, and nothing has run.
        with _lock:
            ssh_config.logins().pop(tuple(_command(node, options, "own")), None)
    return done


def glance(node: str, script: bytes, options: Connection, deadline: float, limit: int) -> str:
    """The output of `script` on `node` through an open connection; empty without one, because it opens none."""
    if proc.run(_command(node, options, None, "-O", "check"), timeout=deadline, limit=limit).rc != 0:
        return ""
    # It may end just now; nobody is let in anew.
    none = ("ControlMaster=no", "PreferredAuthentications=none")
    argv = [*_command(node, options, None, *(word for option in none for word in ("-o", option))), "/bin/sh -s"]
    return proc.run(argv, timeout=deadline, stdin=script, limit=limit, tied=True).out


def download(node: str, path: str, options: Connection, *, size: int, out: BinaryIO, idle: float) -> str:
    """Write the file `path` of `node`, `size` bytes at most, to `out`, and remove it there; the end of stderr.

    Nothing larger than a chunk is ever in memory; `idle` is how many seconds may pass without a byte. Raises
    EnvbuildError as `exchange` does.
    """
    argv = session(node, options)
    begin = f"===envbuild file {secrets.token_hex(16)}==="
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as errors:
        source.write(_CAT.format(path=shlex.quote(path), begin=shlex.quote(begin)).encode())
        source.seek(0)
        process = subprocess.Popen(
            argv, stdin=source, stdout=subprocess.PIPE, stderr=errors, env=proc.clean_env(), start_new_session=True
        )
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            with process.stdout as stream:
                _after(stream, f"\n{begin}\n".encode(), size, out, idle)
            with suppress(subprocess.TimeoutExpired):
                process.wait(idle)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        errors.seek(0)
        return errors.read(_CHUNK).decode("utf-8", "replace")


def _after(stream: IO[bytes], begin: bytes, size: int, out: BinaryIO, idle: float) -> None:
    """Write at most `size` bytes that follow `begin`; start-up files may print a chunk or two before it."""
    head = b""
    while begin not in head and len(head) < 4 * _CHUNK:
        data = _read(stream, _CHUNK, idle)
        if not data:
            return
        head += data
    contents = head.partition(begin)[2][:size]
    written = len(contents)
    out.write(contents)
    while written < size:
        data = _read(stream, min(_CHUNK, size - written), idle)
        if not data:
            break
        written += len(data)
        out.write(data)
    _read(stream, 1, idle)  # the end: the script may still have to tidy up


def _read(stream: IO[bytes], size: int, idle: float) -> bytes:
    """What is there, at most `size` bytes; nothing at the end, and where nothing comes for `idle` seconds."""
    ready, _, _ = select.select([stream], [], [], idle)
    return os.read(stream.fileno(), size) if ready else b""
