"""Which process on which machine: written down so that another process can tell later whether it still lives."""

import os
import socket

from envbuild.node.protocol import Json
from envbuild.node.read_text import read


def start_time(pid: int) -> str:
    """Start time of a live process in clock ticks since boot (proc(5), field 22), empty for a dead one or a zombie."""
    fields = read("/proc/%d/stat" % pid, 4096).rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in ("Z", "X") else ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def here() -> Json:
    """This process: `host`, `boot_id`, `pidns` (process ids of two containers mean nothing to each other), `pid`
    and `started`, its start time.
    """
    return {
        "host": socket.gethostname(),
        "boot_id": read("/proc/sys/kernel/random/boot_id", 4096).strip(),
        "pidns": _pid_namespace(),
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
