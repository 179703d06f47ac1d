"""Finds and ends the processes of one piece of work by a variable in their environment (Linux: proc(5)).

Process groups and parents do not do: Ansible's workers leave the group, and orphans lose their parent.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from envbuild.node.identity import start_time

_PROC = Path("/proc")
_SOCKETS = "eb-ssh-"
# Seconds to end by itself; a step that puts an environment back on a loaded node needs them.
GRACE = 30.0
# Seconds that a killed one is waited for; what hangs in a driver never ends.
KILLED = 10.0
# Seconds that one look at all processes waits for those whose program is being started.
_LOADED = 1.0
_ENV_END = 51 - 3  # the place of env_end behind the name in proc(5)'s stat


def marker_value() -> str:
    """A value for a marker that names its owner, this process, and what makes it unique."""
    return f"{_owner()}{time.monotonic_ns()}"


def _owner() -> str:
    """This process: its id, its start time, and of which namespace its id is, each with a dot."""
    return f"{os.getpid()}.{start_time(os.getpid())}.{_namespace():x}."


def _namespace() -> int:
    """That of process ids, short, for names of sockets have no room; 0 where it cannot be seen."""
    try:
        return (_PROC / "self/ns/pid").stat().st_ino & 0xFFFF
    except OSError:
        return 0


def end_orphans(name: str, *, grace: float = GRACE) -> list[int]:
    """End processes whose marker names an owner that was killed before it could end them. Returns their ids."""
    values = {value for value in _marked(name).values() if not _owner_lives(value)}
    return [process for value in values for process in end_marked(name, value, grace=grace)]


def _owner_lives(value: str) -> bool:
    """True, too, for an owner of which this process cannot say it: its id is that of another container, or none."""
    pid, start, namespace, *_ = f"{value}...".split(".")
    if not pid.isdigit() or not start.isdigit() or namespace != f"{_namespace():x}":
        return True
    return start_time(int(pid)) == start


def find_marked(name: str, value: str) -> list[int]:
    """Process ids, not the caller's, whose environment at their start had `name=value`."""
    return [process for process, mark in _marked(name).items() if mark == value]


def _marked(name: str) -> dict[int, str]:
    """The marker's value by process id, for every process of this user that has one."""
    wanted = os.fsencode(f"{name}=")
    marks: dict[int, str] = {}
    until = time.monotonic() + _LOADED
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or entry.name == str(os.getpid()):
            continue
        try:
            while not (environment := (entry / "environ").read_bytes()) and _is_loading(entry):
                if time.monotonic() > until:
                    break
                time.sleep(0.001)
            # It may have got one since it was looked at.
            environment = environment or (entry / "environ").read_bytes()
        except OSError:
            # Gone meanwhile, or another user's.
            continue
        if wanted not in environment:
            continue
        for setting in environment.split(b"\0"):
            if setting.startswith(wanted):
                marks[int(entry.name)] = os.fsdecode(setting[len(wanted) :])
    return marks


def _is_loading(entry: Path) -> bool:
    """Whether its program is just being started: it has one, and no environment yet (neither has a kernel thread)."""
    try:
        (entry / "exe").readlink()
        return (entry / "stat").read_text().rpartition(")")[2].split()[_ENV_END] == "0"
    except (OSError, IndexError):
        return False


def end_marked(name: str, value: str, *, grace: float = GRACE) -> list[int]:
    """End these processes: SIGTERM, up to `grace` seconds, then SIGKILL. Returns the ids that were found first.

    What is there ten seconds later hangs in the kernel and is left: `find_marked` tells it.
    """
    first = processes = find_marked(name, value)
    signalled: set[int] = set()
    until = time.monotonic() + grace
    while processes and time.monotonic() < until:
        # Those, too, that one of them has started meanwhile.
        _signal([process for process in processes if process not in signalled], signal.SIGTERM)
        signalled.update(processes)
        time.sleep(0.05)
        processes = find_marked(name, value)
    until = time.monotonic() + KILLED
    while processes and time.monotonic() < until:
        _signal(processes, signal.SIGKILL)
        time.sleep(0.05)
        processes = find_marked(name, value)
    return first


def sockets_prefix() -> str:
    """How the name of a folder for OpenSSH's control sockets begins: it names its owner, this process."""
    return f"{_SOCKETS}{_owner()}"


def end_masters(folder: Path) -> None:
    """End OpenSSH's processes that name `folder`: connection masters, and who uses them; what they run on nodes ends.

    A master writes its title over its environment, so that no marker is found there.
    """
    named = os.fsencode(f"{folder}/")
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
                if words.startswith((b"ssh: ", b"ssh\0")) and named in words:
                    _signal([int(entry.name)], signal.SIGTERM)
            except OSError:
                continue


def end_masters_of_the_dead() -> None:
    """The same for every folder of this user whose owner was killed; the folders are removed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_SOCKETS}*"):
        try:
            mine = folder.stat().st_uid == os.getuid()
        except OSError:
            continue
        if mine and not _owner_lives(folder.name.removeprefix(_SOCKETS)):
            end_masters(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue
