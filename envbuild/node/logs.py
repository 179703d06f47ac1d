"""What the node program writes down while a run changes this prefix: what it does now, and the verb `log`.

Progress is JSON lines in a file of this host, which the controller reads: bounded (the file begins anew at `FULL`),
lossy (the state of each second, where it has changed), and never in the way: what cannot be asked or written is not
told, and the work goes on.
"""

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator

from envbuild.node import hashing, paths
from envbuild.node.protocol import RUN, Json, NodeError
from envbuild.node.read_text import names
from envbuild.node.redact import redact_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = "logs"
MOST_LINES = 2000
# The output of one build is some megabytes; only the end of a log is ever read.
READ_BYTES = 1024 * 1024
BEAT = 1.0  # seconds
# How a job calls this node, where it calls it otherwise than the node itself.
NODE = "ENVBUILD_NODE"
FULL = 64 * 1024
_LONGEST = 200  # characters of a name
_DAY = 86400.0
_PROGRESS = re.compile(RUN + r"\.progress\.")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")


class Progress:
    """`progress(phase, ...)` says what is done from now on; it costs an assignment, and a thread writes it."""

    def __init__(self) -> None:
        """Told to nobody until `following` names a file."""
        self._state: Json = {}
        self._ask: Callable[[], Json] | None = None
        self._path = self._host = ""
        self._step = ""
        self._count = 0
        self._last: Json = {}

    def __call__(
        self,
        phase: str,
        what: str = "",
        done: "float | None" = None,
        total: "float | None" = None,
        unit: str = "",
        ask: "Callable[[], Json] | None" = None,
    ) -> None:
        """`phase` in words, `what` it works on, `done` of `total` in the `unit` (`bytes`, or a plural).

        `ask` is called once a second in another thread; what it returns stands above the other words.
        """
        self._state, self._ask = {"phase": phase, "what": what, "done": done, "total": total, "unit": unit}, ask

    @contextlib.contextmanager
    def following(self, path: "Any", step: str) -> "Iterator[None]":
        """Write what `step` does to `<path>.<host>` until the end of the block; nothing where `path` is no path."""
        if not (isinstance(path, str) and path.startswith("/")):
            yield
            return
        self._host, self._step = os.environ.pop(NODE, "") or os.uname().nodename, step
        self._path = "%s.%s" % (path, self._host)
        paths.set_umask(os.path.dirname(os.path.dirname(path)))  # its folder may not be there yet
        stop = threading.Event()
        thread = threading.Thread(target=self._beat, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(BEAT)
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _beat(self, stop: "threading.Event") -> None:
        folder = os.path.dirname(self._path)
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
        _sweep(folder)
        while not stop.wait(BEAT):
            with contextlib.suppress(Exception):  # whatever it is, the work goes on
                self._write(stop)

    def _write(self, stop: "threading.Event") -> None:
        ask = self._ask
        state = dict(self._state, **(ask() if ask else {}))
        state = {key: value for key, value in state.items() if value not in (None, "")}
        if not state or state == self._last or stop.is_set():  # asking may take longer than the step
            return
        self._last, self._count = state, self._count + 1
        words = {key: redact_text(str(state.get(key, "")))[:_LONGEST] for key in ("phase", "what")}
        line = dict(
            state,
            **words,
            t=round(time.time(), 3),
            seq="%d.%d" % (os.getpid(), self._count),
            step=self._step,
            host=self._host,
        )
        full = os.path.exists(self._path) and os.path.getsize(self._path) > FULL
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if full else os.O_APPEND)
        with os.fdopen(os.open(self._path, flags, 0o600), "wb") as stream:
            stream.write(json.dumps(line).encode("ascii") + b"\n")


progress = Progress()


def _sweep(folder: str) -> None:
    """Remove what killed runs left here."""
    for name in names(folder):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):  # another user's, or it goes meanwhile
            if _PROGRESS.match(name) and time.time() - os.stat(path).st_mtime > _DAY:
                os.unlink(path)


def run(request: Json) -> "tuple[bool, Json]":
    """Returns (False, `file` and the `lines` of its end). `args.log_of`: a run (default: the newest log).

    Raises NodeError `log-unknown` (1) where there is none.
    """
    args = request["args"]
    folder = os.path.join(request["prefix"], FOLDER)
    wanted, count = args.get("log_of"), args.get("lines", 40)
    if not isinstance(count, int) or not 1 <= count <= MOST_LINES:
        raise NodeError("request-invalid", "`args.lines` is not a number from 1 to %d" % MOST_LINES)
    if wanted is not None and not (isinstance(wanted, str) and _NAME.match(wanted)):
        raise NodeError("request-invalid", "`args.log_of` is not a run")
    name = _newest(folder) if wanted is None else wanted + ".log"
    path = os.path.join(folder, name or "")
    if not name or not os.path.isfile(path):
        raise NodeError(
            "log-unknown",
            "there is no log %sunder %s" % ("of %s " % wanted if wanted else "", folder),
            hint="a run that changes nothing writes no log",
        )
    with open(path, "rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - READ_BYTES))
        text = stream.read(READ_BYTES).decode("utf-8", "replace")
    lines = []
    for line in text.splitlines():
        try:
            lines += str(json.loads(line)["message"]).splitlines()
        except (ValueError, KeyError, TypeError):
            lines.append(line[:2000])  # the half of a line where reading began, or one that was torn
    return False, {"file": path, "lines": lines[-count:]}


def digest(prefix: str, run: object) -> "Json | None":
    """`file`, `bytes` and `sha256` of the log of a run as it is now; None where none can be read."""
    path = os.path.join(prefix, FOLDER, "%s.log" % run)
    if not _NAME.match(str(run)):
        return None
    try:
        return {"file": path, "bytes": os.path.getsize(path), "sha256": hashing.digest_of(path)}
    except OSError:
        return None


def _newest(folder: str) -> "str | None":
    logs = []
    for name in [name for name in names(folder) if name.endswith(".log")]:
        with contextlib.suppress(OSError):  # it goes meanwhile: only the newest ones are kept
            logs.append((os.stat(os.path.join(folder, name)).st_mtime, name))
    return max(logs)[1] if logs else None
