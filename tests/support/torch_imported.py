"""The smoke test's process that has torch imported, forked from one that has it already, which saves each test seconds.

It is `programs/template.py` of the smoke test's own folder, with that environment's packages, variables and folder. Not
shown is the start of its interpreter, and that torch can be imported there: other tests do.
"""

from __future__ import annotations

import array
import json
import socket
import subprocess
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.node.smoke import runner, template
from tests.node.torch_env import torch_environment
from tests.support.patience import alive, until

_SERVER = """
import array, json, os, signal, site, socket, sys
import torch, torch._dynamo
asked = socket.socket(fileno=os.dup(0))
before = [path for path in sys.path if path.endswith("-packages")]
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    data, given, *_ = socket.recv_fds(asked, 1 << 17, 1)
    if not data:
        sys.exit()
    pid = os.fork()
    if pid == 0:
        break
    os.close(given[0])
    asked.send(array.array("i", [pid]))
os.setsid()
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
asked.close()
for target, source in ((0, given[0]), (1, os.open(os.devnull, os.O_WRONLY)), (2, 1)):
    os.dup2(source, target)
told = json.loads(data)
os.chdir(told["cwd"])
os.environ.clear()
os.environ.update(told["env"])
python, *_, code, scratch, name = told["argv"]
sys.executable, sys.prefix = python, os.path.dirname(os.path.dirname(python))
sys.exec_prefix = sys.prefix
sys.path[:] = [path for path in sys.path if path not in before]
site.addsitedir(os.path.join(sys.prefix, "lib", "python%d.%d" % sys.version_info[:2], "site-packages"))
sys.argv = ["-c", scratch, name]
exec(code)
"""


@cache
def _server() -> socket.socket:
    """The way to the process that forks; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = [str(torch_environment() / "bin" / "python"), *runner.FLAGS, "-c", _SERVER]
    with theirs:
        subprocess.Popen(argv, stdin=theirs.fileno(), start_new_session=True)
    return ours


class _Forked:
    """As much of `Popen` as a template needs."""

    def __init__(self, argv: Sequence[str], *, stdin: int, env: dict[str, str], cwd: str, **_: Any) -> None:
        asked = json.dumps({"argv": [*argv], "env": env, "cwd": cwd}).encode()
        socket.send_fds(_server(), [asked], [stdin])
        (self.pid,) = array.array("i", _server().recv(64))

    def wait(self) -> None:
        until(lambda: not alive(self.pid))


@pytest.fixture
def torch_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of the smoke test begin where torch is imported, in `torch_environment` and in those above it."""
    forking = SimpleNamespace(Popen=_Forked, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(template, "subprocess", forking)
