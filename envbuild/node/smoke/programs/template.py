"""Smoke program `template`: imports torch once and starts the other programs as copies of itself, which need not.

Its stdin is a SOCK_SEQPACKET socket. It says `{"ready": true}` once, then takes messages `{"name": PROGRAM, "request":
PATH}`, each with the descriptor of the copy's output, and answers `{"started": PID}` (0: no fork). When a copy
has ended, `{"ended": PID, "status": S}` follows (S negative for a signal). It ends with the other end of the socket.
Nothing here touches a GPU: a CUDA context does not survive a fork.
"""

import array
import contextlib
import ctypes
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
import warnings
from typing import Any, Dict, List, Tuple

_LARGEST = 65536
_PR_SET_PDEATHSIG = 1  # linux/prctl.h: a copy ends with the process that could tell how it ended


def _copies(torch: Any) -> bool:
    """Whether a copy could use a GPU, which it alone can tell: to count GPUs may be enough to spoil it."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1] == 0
    spoiled = True
    try:
        spoiled = torch.cuda._is_in_bad_fork()
    finally:
        os._exit(int(spoiled))


def _preload() -> bool:
    """Import what the programs need (an optimizer's step needs `_dynamo`); False where a copy could not use a GPU.

    What cannot be imported is left to the programs, whose words say why.
    """
    for name in ("torch", "torch._dynamo"):
        with contextlib.suppress(Exception):
            __import__(name)
    torch = sys.modules.get("torch")
    return torch is None or _copies(torch)


def _receive(control: socket.socket) -> Tuple[bytes, List[int]]:
    fds = array.array("i")
    message, handed, _, _ = control.recvmsg(_LARGEST, socket.CMSG_SPACE(fds.itemsize))
    for level, kind, data in handed:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data)
    return message, list(fds)


def _send(control: socket.socket, answer: Dict[str, Any]) -> None:
    control.send(json.dumps(answer).encode("utf-8"))


def _become(asked: Dict[str, Any], output: int) -> int:
    """Run the program in this copy, as an interpreter of its own would; the exit status."""
    for target, source in ((0, os.open(asked["request"], os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(source, target)
    try:
        runpy.run_module("envbuild_smoke." + asked["name"], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write("%s\n" % (ended.code,))
        return 1
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0


def _copy(control: socket.socket, asked: Dict[str, Any], output: int, own: List[int]) -> None:
    own_pid = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(output)
        _send(control, {"started": 0})
        return
    if pid:
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # both do it: whoever hears of the copy may end its group at once
        os.close(output)
        _send(control, {"started": pid})
        return
    code = 1
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != own_pid:
            return
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in own:
            os.close(fd)
        code = _become(asked, output)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _reap(control: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            _send(control, {"ended": pid, "status": code})


def main() -> None:
    """Serve until the other end is closed."""
    control = socket.socket(fileno=os.dup(0))
    warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads: numpy's, which are made for it
    if not _preload():
        return
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _send(control, {"ready": True})
    while True:
        ready = select.select([control.fileno(), woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _reap(control)
        if control.fileno() in ready:
            message, fds = _receive(control)
            if not message:
                return
            _copy(control, json.loads(message.decode("utf-8")), fds[0], [control.fileno(), woken, waker])


if __name__ == "__main__":
    main()
