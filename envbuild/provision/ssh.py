"""One exchange with a node over SSH through Fabric, host keys always verified. Nothing else imports Fabric.

Fabric takes care of the user's ssh configuration, identities and ProxyJump; its policy of accepting unknown hosts is
replaced, on every hop.
"""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import fabric
import paramiko

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.target import Connection

_CHUNK = 65536
# What goes wrong is in the coded error; without a handler logging would print paramiko's tracebacks as a last resort.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class _UnknownHostKeyError(paramiko.SSHException):  # type: ignore[misc]
    def __init__(self, hostname: str, key: paramiko.PKey) -> None:
        super().__init__(f"no known host key for {hostname}")
        self.hostname = hostname
        self.key = key


class _Reject(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
        raise _UnknownHostKeyError(hostname, key)


def _unreachable(node: str, code: str, what: str, why: str, hint: str = "", **details: str) -> EnvbuildError:
    found: dict[str, Any] = {"node": node, **details}
    return EnvbuildError(code, what, why=why, hint=hint, exit_code=ExitCode.UNREACHABLE, details=found)


def _hops(connection: fabric.Connection) -> list[fabric.Connection]:
    """The connection and the gateways that it goes through."""
    found = []
    hop: Any = connection
    while isinstance(hop, fabric.Connection):
        found.append(hop)
        hop = hop.gateway
    return found


def _known_hosts(connection: fabric.Connection, given: str | None) -> list[Path]:
    """The files that decide: the one given, or those of ssh's configuration, or the user's and the system's."""
    if given:
        return [Path(given).expanduser()]
    settings = connection.ssh_config
    user = settings.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
    system = settings.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")
    return [Path(name).expanduser() for name in f"{user} {system}".split()]


def _harden(connection: fabric.Connection, given: str | None, node: str) -> None:
    """Verify host keys on this hop and on every one before it."""
    for hop in _hops(connection):
        hop.client.set_missing_host_key_policy(_Reject())
        for path in _known_hosts(hop, given):
            if path.is_file():
                hop.client.load_system_host_keys(str(path))
            elif given:
                raise _unreachable(node, "known-hosts-missing", f"{path} is not there", "the target names it")


def open_connection(node: str, options: Connection) -> fabric.Connection:
    """A Fabric connection to `node`, not yet open. Raises EnvbuildError `known-hosts-missing`, `ssh-config-missing`."""
    if options.config and not Path(options.config).expanduser().is_file():
        raise _unreachable(node, "ssh-config-missing", f"{options.config} is not there", "the target names it")
    config = fabric.Config(runtime_ssh_path=str(Path(options.config).expanduser()) if options.config else None)
    kwargs: dict[str, Any] = {"banner_timeout": options.connect_timeout, "auth_timeout": options.connect_timeout}
    if options.identity:
        kwargs["key_filename"] = str(Path(options.identity).expanduser())
    reached, user, port = options.reaches(node)
    host = fabric.connection.derive_shorthand(reached)["host"]
    # Fabric would take `ProxyJump none` for a host of that name.
    direct = config.base_ssh_config.lookup(host).get("proxyjump", "").lower() == "none"
    connection = fabric.Connection(
        reached,
        gateway=False if direct else None,
        user=None if "@" in reached else user,
        port=port,
        config=config,
        connect_timeout=options.connect_timeout,
        connect_kwargs=kwargs,
    )
    _harden(connection, options.known_hosts, node)
    return connection


def fingerprint(key: paramiko.PKey) -> str:
    """As ssh prints it: `SHA256:...`."""
    return str(key.fingerprint)


def _host_and_port(hostname: str) -> tuple[str, str]:
    if hostname.startswith("[") and "]:" in hostname:
        host, _, port = hostname[1:].partition("]:")
        return host, port
    return hostname, "22"


@contextmanager
def _coded(node: str, options: Connection, ports: dict[str, int]) -> Iterator[None]:
    """Turn what Fabric and paramiko raise into coded errors that say what to do; `ports` by host, of every hop."""
    file = shlex.quote(options.known_hosts) if options.known_hosts else ""
    try:
        yield
    except _UnknownHostKeyError as error:
        host, port = _host_and_port(error.hostname)
        into = f"-o UserKnownHostsFile={file} " if file else ""
        shown = fingerprint(error.key)
        raise _unreachable(
            node,
            "host-key-unknown",
            f"the host key of {error.hostname} is not known",
            f"it offers {error.key.get_name()} {shown}, which is in no known_hosts file",
            f"compare the fingerprint, then accept it: `ssh {into}-p {port} {host} true`",
            fingerprint=shown,
        ) from None
    except paramiko.BadHostKeyException as error:
        shown = fingerprint(error.key)
        port_of = ports.get(error.hostname, 22)
        where = f" -f {file}" if file else ""
        name = error.hostname if port_of == 22 else f"[{error.hostname}]:{port_of}"
        raise _unreachable(
            node,
            "host-key-changed",
            f"the host key of {name} is not the one that is known",
            f"known: {fingerprint(error.expected_key)}; offered: {error.key.get_name()} {shown}",
            f"find out why; if it is right, forget the old key: `ssh-keygen -R '{name}'{where}`, then log in once",
            fingerprint=shown,
        ) from None
    except paramiko.AuthenticationException as error:
        hint = "check user and identity of the target's `connection:`; `ssh-add` unlocks a key with a passphrase"
        raise _unreachable(node, "ssh-auth-failed", f"{node} refuses the login", str(error), hint) from error
    except (OSError, paramiko.SSHException, EOFError, ValueError) as error:  # ValueError: no such host name or port
        why = f"{type(error).__name__}: {error}"
        raise _unreachable(
            node, "node-unreachable", f"{node} cannot be reached", why, f"try `ssh {node} true`"
        ) from error


class _Collector:
    """Both streams of one channel until it ends, a cap is passed or the deadline is over."""

    def __init__(self, channel: paramiko.Channel, limit: int) -> None:
        self.channel = channel
        self.limit = limit
        self.out: list[bytes] = []
        self.err: list[bytes] = []
        self.size = 0

    def feed(self, data: bytes) -> None:
        try:
            self.channel.sendall(data)
            self.channel.shutdown_write()
        except OSError:
            pass  # the far end closed early; what it said meanwhile tells why

    def _read(self, receive: Callable[[int], bytes], parts: list[bytes], end: float) -> bool:
        """Read one stream to its end, or until the cap is passed; False when the deadline comes first."""
        while self.size <= self.limit:
            left = end - time.monotonic()
            if left <= 0:
                return False
            self.channel.settimeout(left)
            try:
                data = receive(_CHUNK)
            except TimeoutError:
                return False
            if not data:
                return True
            parts.append(data)
            self.size += len(data)
        self.channel.close()  # whoever reads the other stream stops too
        return True

    def collect(self, deadline: float) -> tuple[bool, bool]:
        """Returns (truncated, timed out)."""
        end = time.monotonic() + deadline
        other = threading.Thread(target=self._read, args=(self.channel.recv_stderr, self.err, end), daemon=True)
        other.start()
        in_time = self._read(self.channel.recv, self.out, end)
        other.join(max(0.0, end - time.monotonic()))
        truncated = self.size > self.limit
        return truncated, not truncated and (not in_time or other.is_alive())


def log_in(node: str, options: Connection) -> fabric.Connection:
    """An open connection to `node`.

    Raises EnvbuildError `host-key-unknown`, `host-key-changed`, `ssh-auth-failed`, `node-unreachable`.
    """
    ports: dict[str, int] = {}
    with _coded(node, options, ports):
        connection = open_connection(node, options)
        ports.update((hop.host, int(hop.port)) for hop in _hops(connection))
        try:
            connection.open()
        except BaseException:
            _close(connection)
            raise
    return connection


def exchange(
    node: str,
    script: bytes,
    options: Connection,
    deadline: float,
    limit: int,
    logged_in: Callable[[], fabric.Connection] | None = None,
) -> tuple[bytes, str, bool, bool]:
    """Feed `script` to `/bin/sh -s` on `node`: stdout, stderr, truncated at `limit` bytes, timed out at `deadline` (s).

    `logged_in` waits for a connection that was begun before. Raises EnvbuildError as `log_in` does.
    """
    connection = logged_in() if logged_in else log_in(node, options)
    with _coded(node, options, {}):
        try:
            channel = connection.transport.open_session(timeout=options.connect_timeout)
            channel.settimeout(deadline)
            channel.exec_command("/bin/sh -s")
            collector = _Collector(channel, limit)
            threading.Thread(target=collector.feed, args=(script,), daemon=True).start()
            truncated, timed_out = collector.collect(deadline)
        finally:
            _close(connection)
    err = b"".join(collector.err).decode("utf-8", "replace")
    return b"".join(collector.out), err, truncated, timed_out


def download(
    node: str, script: bytes, options: Connection, *, begin: bytes, size: int, out: BinaryIO, idle: float
) -> tuple[int, str]:
    """Feed `script` to `/bin/sh -s` on `node` and write what it prints after `begin`, `size` bytes at most, to `out`.

    Returns the bytes written and the end of stderr. Nothing larger than a chunk is ever in memory; `idle` is how many
    seconds may pass without a byte. Raises EnvbuildError as `exchange` does.
    """
    connection = log_in(node, options)
    with _coded(node, options, {}):
        try:
            channel = connection.transport.open_session(timeout=options.connect_timeout)
            channel.settimeout(idle)
            channel.exec_command("/bin/sh -s")
            channel.sendall(script)
            channel.shutdown_write()
            written = _after(channel, begin, size, out)
            err = channel.recv_stderr(_CHUNK) if channel.recv_stderr_ready() else b""
        finally:
            _close(connection)
    return written, err.decode("utf-8", "replace")


def _after(channel: paramiko.Channel, begin: bytes, size: int, out: BinaryIO) -> int:
    """Write at most `size` bytes that follow `begin`; start-up files may print a chunk or two before it."""
    head = b""
    while begin not in head and len(head) < 4 * _CHUNK:
        data = channel.recv(_CHUNK)
        if not data:
            return 0
        head += data
    found = head.partition(begin)[2][:size]
    written = len(found)
    out.write(found)
    while written < size:
        data = channel.recv(min(_CHUNK, size - written))
        if not data:
            break
        written += len(data)
        out.write(data)
    channel.recv(1)  # the end: the script may still have to tidy up
    return written


def _close(connection: fabric.Connection) -> None:
    """Close every hop; Fabric leaves gateways open."""
    for hop in _hops(connection):
        try:
            hop.close()
        except (OSError, paramiko.SSHException):
            pass  # it is gone already
