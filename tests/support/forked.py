"""envbuild's command in a process forked from one that has imported it, which saves each call a third of a second.

The process is the command's own: arguments, environment, folder, umask, output and exit code are as those of
`python -m envbuild`. What is not shown is the start of the interpreter; `/proc/<pid>/environ` is that of the
process that was forked, and nothing waits for a disk.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.support.programs import executable

# The node program runs elsewhere, and these two bring native threads or much that few commands need.
_LATE = ("envbuild.node", "envbuild.conda", "envbuild.fab", "envbuild.__main__")
# What envbuild imports when it needs it.
_ALSO = (
    "ClusterShell.NodeSet", "ansible_runner.interface", "envbuild.node.probe.prefix", "jinja2",
    "pip._internal.models.index", "requests", "rich.console", "rich.table", "tomli", "tomlkit", "uv", "yaml",
)  # fmt: skip
_LARGEST = 1 << 17


# `envbuild` for programs that call it; the start of this one takes a hundredth of a second.
_PROGRAM = """#!{python} -IS
import _socket, json, os, sys
read, write = os.pipe()
umask = os.umask(0)
asked = {{"argv": sys.argv[1:], "env": {{**os.environ}}, "cwd": os.getcwd(), "umask": umask, "before": []}}
ends = b"".join(end.to_bytes(4, sys.byteorder) for end in (write, 1, 2))
forker = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
forker.connect({address!r})
forker.sendmsg([json.dumps(asked).encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, ends)])
os.close(write)
with open(read, "rb") as told:
    sys.exit(int.from_bytes(told.read()[4:8], sys.byteorder))
"""


class Ended(subprocess.CompletedProcess[str]):
    """How a command ended, and the processor time that it and its children took, in seconds."""

    seconds: float


def run(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout: float, before: Sequence[object] = ()
) -> Ended:
    """`envbuild ARGV`, as `subprocess.run` would run it without standard input. Raises TimeoutExpired.

    `before` is a function as `package.module:name` and its arguments, called in the process before the command.
    """
    umask = os.umask(0)
    os.umask(umask)
    words = [*map(str, argv)]
    asked = json.dumps({"argv": words, "env": {**env}, "cwd": str(cwd), "umask": umask, "before": before}).encode()
    pipes = [os.pipe() for _ in range(3)]
    try:
        socket.send_fds(_forker(), [asked], [write for _, write in pipes])
    finally:
        for _, write in pipes:
            os.close(write)
    told, out, err = _read([read for read, _ in pipes], argv, time.monotonic() + timeout)
    _, code, spent = array.array("i", told)
    ended = Ended([*argv], code, _text(out), _text(err))
    ended.seconds = spent / 1000
    return ended


def write_program(folder: Path) -> Path:
    """A program `envbuild` in `folder` that is forked as well, for others to call; returns its path."""
    path = folder / "envbuild"
    _forker()
    return executable(path, _PROGRAM.format(python=sys.executable, address=_address()))


def _read(ends: list[int], argv: Sequence[str], deadline: float) -> list[bytes]:
    """All that comes out of some pipes; when the time is over, the process that the first one names is killed."""
    found = dict.fromkeys(ends, b"")
    with selectors.DefaultSelector() as selector:
        for end in ends:
            selector.register(end, selectors.EVENT_READ)
        try:
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    os.kill(array.array("i", found[ends[0]])[0], signal.SIGKILL)
                    raise subprocess.TimeoutExpired([*argv], 0, found[ends[1]], found[ends[2]])
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    found[key.fd] += data
                    if not data:
                        selector.unregister(key.fd)
        finally:
            for end in ends:
                os.close(end)
    return [*found.values()]


def _text(data: bytes) -> str:
    return data.decode().replace("\r\n", "\n")


def _address() -> str:
    """Where the processes of one run of the tests find the forker."""
    return f"\0envbuild-tests-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"


@cache
def _forker() -> socket.socket:
    """The way to a process that forks; the first of a run's processes starts it, and it ends with the last."""
    while True:
        ours, listening = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
        try:
            listening.bind(_address())
        except OSError:  # another process has
            listening.close()
            with contextlib.suppress(ConnectionRefusedError):  # it has not come to listen
                ours.connect(_address())
                return ours
            ours.close()
            time.sleep(0.01)
            continue
        with listening:
            listening.listen()
            ours.connect(_address())
            # Of no test: some end all that has a name of theirs in its environment.
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(listening.fileno())], env={}, cwd=Path(__file__).parents[2],
                pass_fds=[listening.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        return ours


def _import_all() -> None:
    """Import envbuild and make what it makes once a process from what was shipped."""
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    package = importlib.import_module("envbuild")
    for module in pkgutil.walk_packages(package.__path__, "envbuild."):
        if not module.name.startswith(_LATE):
            importlib.import_module(module.name)
    for name in _ALSO:
        importlib.import_module(name)
    from envbuild.model.common import StrictModel
    from envbuild.node_program import node_pyz_digest
    from envbuild.report import render
    from envbuild.resolve.compat_read import load_compat

    load_compat()
    node_pyz_digest()

    models = [StrictModel]
    for model in models:
        models += model.__subclasses__()
        model.model_rebuild()
    for name in ("pictures.html.j2", "report.html.j2", "report.md.j2"):
        render._templates().get_template(name)


def _make_ready() -> None:
    """Compress uv for nodes that lack it: half a second of each command that sends it, always of the same file."""
    from envbuild.provision.contact import payload

    payload._squeezed(payload.uv_tool())


def _serve(listening: socket.socket) -> int:
    """Fork for each request until nobody is left who asks; the exit code, of a forked process that of its command."""
    gc.disable()  # modules are no garbage
    _import_all()
    os.fsync = lambda _: None  # as in conftest.py
    gc.freeze()
    gc.enable()
    asking: set[socket.socket] = set()
    # By the descriptor of each process: its id, and where its exit code and its time are told.
    running: dict[int, tuple[int, int]] = {}
    while True:
        ready = {*select.select([listening, *asking, *running], [], [])[0]}
        for process in running.keys() & ready:
            pid, told = running.pop(process)
            _, status, used = os.wait4(pid, 0)
            _tell(told, os.waitstatus_to_exitcode(status), round((used.ru_utime + used.ru_stime) * 1000))
            os.close(told)
            os.close(process)
        for way in asking & ready:
            data, descriptors, _, _ = socket.recv_fds(way, _LARGEST, 3)
            if not data:
                asking.remove(way)
                way.close()
                if not asking:
                    return 0
                continue
            told, out, err = descriptors
            given = json.loads(data)
            if "provision" in given["argv"]:
                _make_ready()
            pid = os.fork()
            if pid == 0:
                os.setsid()
                for each in (listening, *asking):
                    each.close()
                for descriptor in (told, *running, *(other for _, other in running.values())):
                    os.close(descriptor)
                return _command(given, out, err)
            os.close(out)
            os.close(err)
            _tell(told, pid)
            running[os.pidfd_open(pid)] = pid, told
        if listening in ready:
            asking.add(listening.accept()[0])


def _tell(end: int, *numbers: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # who asked waits no longer
        os.write(end, array.array("i", numbers))


def _command(asked: dict[str, object], out: int, err: int) -> int:
    from envbuild.cli.entry import main

    for descriptor, number in ((out, 1), (err, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(asked["env"])  # type: ignore[call-overload]
    os.umask(asked["umask"])  # type: ignore[arg-type]
    os.chdir(asked["cwd"])  # type: ignore[arg-type]
    if asked["before"]:
        name, *arguments = asked["before"]  # type: ignore[misc]
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)(*arguments)
    sys.path[0] = str(asked["cwd"])
    sys.argv[1:] = asked["argv"]  # type: ignore[call-overload]
    code = main()
    # As an interpreter ends, but for taking all modules apart, which copies the memory that was shared until then.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    raise SystemExit(_serve(socket.socket(fileno=int(sys.argv[1]))))
