"""Which process on which machine: written down so that another process can tell later whether it still lives.

`follow` ends this process when the ssh session that started it is gone: nobody could read its answer any more. Without
a terminal a process is not told: it would build on, alone, and hold the prefix.
"""

import contextlib
import os
import select
import signal
import socket
import threading
import time

from envbuild.node.protocol import Json
from envbuild.node.read_text import read

_SERVERS = ("sshd", "dropbear")
_POLL = 1.0


def start_time(pid: int) -> str:
    """Start time of a live process in clock ticks since boot (proc(5), field 22), empty for a dead one or a zombie."""
    fields = read("/proc/%d/stat" % pid, 4096).rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in ("Z", "X") else ""


def here() -> Json:
    """This process: `host`, `boot_id`, `pidns` (process ids of two containers mean nothing to each other), `pid`
    and `started`, its start time.
    """
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return {
        "host": socket.gethostname(),
        "boot_id": read("/proc/sys/kernel/random/boot_id", 4096).strip(),
        "pidns": namespace,
        "pid": os.getpid(),
        "started": start_time(os.getpid()),
    }


def is_alive(process: Json) -> bool:
    """True when a process of this machine, as `here` wrote it down, still runs."""
    pid = process.get("pid")
    if not isinstance(pid, int) or pid <= 0:
        return False
    started = start_time(pid)
    # The start time tells a reused process id from the process that was meant.
    return bool(started) and process.get("started", started) in (started, "")


def same_machine(process: Json) -> bool:
    """True when the process ran on this machine since its last boot, where this process can see its id."""
    me = here()
    same = all(process.get(key) == me[key] for key in ("host", "boot_id"))
    return same and process.get("pidns", me["pidns"]) == me["pidns"]


def follow(connection: "str | None") -> None:
    """Send SIGTERM to this process once its session has ended, where `connection` is Ansible's for ssh.

    A connection may serve many sessions and go on; then the end of ours is that nobody reads what we write any more.
    """
    if connection != "ansible.builtin.ssh":
        return
    session = find(os.getppid())
    if session is not None:
        # Standard output as it is now: sshd closes that pipe, and keeps the one of standard error open.
        pipe = os.dup(1)
        threading.Thread(target=_watch, args=(session, pipe), daemon=True).start()


def find(pid: int) -> "dict[str, object] | None":
    """The nearest process from `pid` upwards that is an ssh server: `pid` and `started`."""
    while pid > 1:
        head, _, rest = read("/proc/%d/stat" % pid, 4096).rpartition(")")  # pid (name) state parent ...: proc(5)
        if head.partition("(")[2].startswith(_SERVERS):
            return {"pid": pid, "started": start_time(pid)}
        pid = int((rest.split() + ["0", "0"])[1])  # a process that cannot be seen has none
    return None


def _watch(session: "dict[str, object]", pipe: int) -> None:
    while is_alive(session) and not _unread(pipe):
        time.sleep(_POLL)
    os.kill(os.getpid(), signal.SIGTERM)


def _unread(stream: int) -> bool:
    """Whether the other end of a pipe or socket is closed."""
    poll = select.poll()
    poll.register(stream, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
