"""Ends this process when the ssh session that started it is gone: nobody could read its answer any more.

Without a terminal a process is not told: it would build on, alone, and hold the prefix.
"""

import os
import select
import signal
import threading

from envbuild.node import identity
from envbuild.node.read_text import read

_SERVERS = ("sshd", "dropbear")
_POLL = 1.0


def follow(connection: "str | None") -> None:
    """Send SIGTERM to this process once its session has ended, where `connection` is Ansible's for ssh.

    A connection may serve many sessions and go on; then the end of ours is that nobody reads what we write any more.
    """
    if connection != "ansible.builtin.ssh":
        return
    session = find(os.getppid())
    if session is not None:
        # Standard output as it is now: sshd closes that pipe, and keeps the one of standard error open.
        told = os.dup(1)
        threading.Thread(target=_watch, args=(session, os.getpid(), told), daemon=True).start()


def find(pid: int) -> "dict[str, object] | None":
    """The nearest process from `pid` upwards that is an ssh server: `pid` and `started`."""
    while pid > 1:
        name, parent = _name_and_parent(pid)
        if name.startswith(_SERVERS):
            return {"pid": pid, "started": identity.start_time(pid)}
        pid = parent
    return None


def _name_and_parent(pid: int) -> "tuple[str, int]":
    """As proc(5) has them; ("", 0) for a process that cannot be seen."""
    head, _, rest = read("/proc/%d/stat" % pid, 4096).rpartition(")")
    try:
        return head.partition("(")[2], int(rest.split()[1])
    except (ValueError, IndexError):
        return "", 0


def _watch(session: "dict[str, object]", pid: int, told: int) -> None:
    gone = threading.Event()
    while identity.is_alive(session) and not _unread(told):
        gone.wait(_POLL)
    os.kill(pid, signal.SIGTERM)


def _unread(stream: int) -> bool:
    """Whether the other end of a pipe or socket is closed."""
    poll = select.poll()
    poll.register(stream, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
