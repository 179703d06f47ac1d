"""Run other programs: argument lists only, own process group, a deadline, a cap on output, English messages."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

# subprocess and tempfile are imported where they are used: a brief answer needs neither.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import IO, Any, TypeVar

    K = TypeVar("K")
    T = TypeVar("T")
    U = TypeVar("U")

OUTPUT_LIMIT = 64 * 1024 * 1024
# Seconds between SIGTERM and SIGKILL; who ends in time costs none of them, and a loaded node is slow.
_GRACE = 2.0
_DRAIN = 5.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Finished(NamedTuple):
    """What it left: `rc` (None when missing or ended by us), `out` and `err` (text), and why it did not end well.

    `missing`: there is no such program. `timed_out`: killed at its deadline. `truncated`: ended at the cap on output,
    as the last line of `err` says. `seconds`: wall time.
    """

    rc: "int | None" = None
    out: str = ""
    err: str = ""
    missing: bool = False
    timed_out: bool = False
    truncated: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """It was there, ended in time and with 0."""
        return self.rc == 0 and not self.timed_out


class _Live:
    """Process groups that must not outlive this process; a signal handler needs one place to find them."""

    def __init__(self) -> None:
        self.groups: set[int] = set()
        self.gentle: set[int] = set()
        self.stopping = False
        self.starting = False
        self.late: BaseException | None = None

    def stop(self, group: int) -> None:
        """Who was given a grace gets SIGTERM."""
        self.kill(group, signal.SIGTERM if group in self.gentle else signal.SIGKILL)

    def kill(self, group: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


_LIVE = _Live()


def stop_all() -> None:
    """Kill every running program and refuse new ones; for signal handlers. Who was given a grace gets SIGTERM."""
    _LIVE.stopping = True
    for group in list(_LIVE.groups):
        _LIVE.stop(group)


@contextlib.contextmanager
def starting() -> "Iterator[None]":
    """A signal waits while the main thread starts a program: one that nobody knows of yet could not be ended."""
    mine = threading.current_thread() is threading.main_thread()
    _LIVE.starting = _LIVE.starting or mine
    try:
        yield
    finally:
        if mine:
            _LIVE.starting = False
            late, _LIVE.late = _LIVE.late, None
            if late is not None:
                raise late


def put_off(error: "BaseException") -> bool:
    """For signal handlers: True when `error` will be raised as soon as the program that just starts is known."""
    if _LIVE.starting:
        _LIVE.late = error
    return _LIVE.starting


def clean_env(extra: "dict[str, str | None] | None" = None) -> "dict[str, str]":
    """This process's environment with the UTF-8 C locale, and `extra` (a value of None removes a variable)."""
    own: dict[str, str | None] = {"LANGUAGE": None, "LC_MESSAGES": None, "LC_ALL": "C.UTF-8"}
    return changed_env(dict(os.environ), dict(own, **(extra or {})))


def changed_env(env: "dict[str, str]", extra: "dict[str, str | None]") -> "dict[str, str]":
    """`env` with `extra` in it (a value of None removes a variable)."""
    changed = dict(env, **extra)
    return {name: value for name, value in changed.items() if value is not None}


class _Output:
    """What a program prints: at most `limit` bytes of a stream are kept; what is more is read, so that it can end."""

    def __init__(self, process: "subprocess.Popen[bytes]", limit: int) -> None:
        import selectors

        self.process, self.limit, self.full = process, limit, False
        streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
        self.kept = [bytearray() for _ in streams]
        self.selector = selectors.PollSelector()  # it takes no file descriptor, of which none may be left
        for number, stream in enumerate(streams):
            self.selector.register(stream, selectors.EVENT_READ, number)

    def read(self, seconds: float) -> bool:
        """Wait at most `seconds` for more of it; False once all streams have ended."""
        for key, _ in self.selector.select(seconds) if self.selector.get_map() else ():
            data, kept = b"", self.kept[key.data]
            with contextlib.suppress(OSError):  # what cannot be read has ended
                data = os.read(key.fd, 65536)
            if not data:
                self.selector.unregister(key.fileobj)
            self.full = self.full or len(kept) + len(data) > self.limit
            kept += data[: self.limit - len(kept)]
        return bool(self.selector.get_map())

    def ends(self, end: "float | None", capped: bool = False) -> bool:
        """Read until the program ends, at most until `end` on the monotonic clock; `capped`: or until one is full.

        The end of its output tells at once; `Popen.wait` with a timeout would poll, with pauses of up to 50 ms.
        """
        import subprocess

        while self.process.poll() is None:
            left = 3600.0 if end is None else end - time.monotonic()
            if left <= 0 or (capped and self.full):
                return False
            if not self.read(min(0.05, left)):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(left)
        return True

    def text(self, number: int) -> str:
        return self.kept[number].decode("utf-8", "replace")


def _feed(stream: "IO[bytes]", data: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):
        stream.write(data)
        stream.close()


def _tie() -> "Callable[[], Any]":
    """What a new program has to call to get SIGTERM when the thread that started it ends (prctl(2))."""
    import ctypes

    library = ctypes.CDLL(None)
    return lambda: library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def run(
    argv: "Sequence[str]",
    timeout: "float | None" = 60.0,
    env: "dict[str, str] | None" = None,
    cwd: "str | None" = None,
    stdin: "bytes | None" = None,
    limit: int = OUTPUT_LIMIT,
    grace: float = 0.0,
    tied: bool = False,
) -> "Finished":
    """Run `argv` (list of str) and return a `Finished`; never raises for what the program does.

    `timeout` in seconds (None: no deadline), `env` the whole environment (default `clean_env()`), `stdin` bytes.
    At the deadline, or once more than `limit` bytes came from stdout or stderr, the whole process group is killed:
    SIGTERM, then SIGKILL two seconds later. `grace`: seconds instead of that, and also when this process is stopped,
    for a program that has to end what is not its child. `tied`: the kernel ends the program when this thread is gone,
    also where this process is killed.
    """
    import subprocess

    at_start = _tie() if tied else None

    begun = time.monotonic()
    process: subprocess.Popen[bytes] | None = None
    try:
        with starting():
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=clean_env() if env is None else env,
                cwd=cwd,
                start_new_session=True,
                preexec_fn=at_start,  # noqa: PLW1509 - it makes one system call
            )
            _LIVE.groups.add(process.pid)
            if grace:
                _LIVE.gentle.add(process.pid)
            if _LIVE.stopping:
                _LIVE.stop(process.pid)
        return _collect(process, timeout, stdin, limit, begun, grace or _GRACE)
    except (OSError, ValueError) as error:
        if process is not None:
            raise
        return Finished(err=str(error), missing=True)
    finally:
        if process is not None:
            _wind_down(process, grace)


def _collect(
    process: "subprocess.Popen[bytes]",
    timeout: "float | None",
    stdin: "bytes | None",
    limit: int,
    begun: float,
    grace: float,
) -> "Finished":
    output = _Output(process, limit)
    if stdin is not None and process.stdin is not None:
        threading.Thread(target=_feed, args=(process.stdin, stdin), daemon=True).start()
    ended = output.ends(None if timeout is None else begun + timeout, capped=True)
    if not ended:
        for number in (signal.SIGTERM, signal.SIGKILL):
            _LIVE.kill(process.pid, number)
            # After SIGKILL it may be in uninterruptible sleep (a sick driver or file system): then leave it behind.
            if output.ends(time.monotonic() + grace):
                break
    # A grandchild that outlives the program may keep a pipe open: end those of the group, and wait for no other.
    _LIVE.kill(process.pid, signal.SIGKILL)
    end = time.monotonic() + _DRAIN
    while time.monotonic() < end and output.read(end - time.monotonic()):
        pass
    return Finished(
        rc=process.returncode if ended and not output.full else None,
        out=output.text(0),
        err=output.text(1) + ("\nended: more than %d bytes of output\n" % limit if output.full else ""),
        timed_out=not ended and not output.full,
        truncated=output.full,
        seconds=time.monotonic() - begun,
    )


def _wind_down(process: "subprocess.Popen[bytes]", grace: float) -> None:
    """Nothing that the program started stays behind.

    SIGTERM first, more than once, for what is just starting may miss the first; at most `grace` seconds.
    """
    end = time.monotonic() + grace
    output = _Output(process, 0)  # what it still prints is read, so that it can end
    while process.poll() is None and time.monotonic() < end:
        _LIVE.kill(process.pid, signal.SIGTERM)
        output.ends(min(end, time.monotonic() + 2.0))
    _LIVE.kill(process.pid, signal.SIGKILL)
    _LIVE.groups.discard(process.pid)
    _LIVE.gentle.discard(process.pid)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):  # the program is gone
                stream.close()


def parallel(calls: "Sequence[Callable[[], T]]", timeout: "float | None" = None) -> "list[T | None]":
    """Run callables at once, each in a daemon thread; list of results in order, None where one failed or is late.

    Failures of a call are its own business: it must return a value. `timeout` is for all of them, in seconds.
    """
    results: list[T | None] = [None] * len(calls)

    def work(index: int, call: "Callable[[], T]") -> None:
        results[index] = call()

    threads = [threading.Thread(target=work, args=(i, call), daemon=True) for i, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    deadline = None if timeout is None else time.monotonic() + timeout
    for thread in threads:
        thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
    return list(results)


def by_name(calls: "Mapping[K, Callable[[], T]]", timeout: "float | None" = None) -> "dict[K, T | None]":
    """What `parallel` gives for each of these calls, by its name."""
    return dict(zip(calls, parallel(list(calls.values()), timeout)))  # noqa: B905 - strict= is of Python 3.10


def pool_map(work: "Callable[[U], T]", items: "Sequence[U]", workers: int) -> "list[T]":
    """What `work` gives for every item, so many at once in daemon threads, which an interrupt does not wait for.

    Raises what the first that fails raises; no other is begun then, and those that are at work end before.
    """
    left = list(enumerate(items))[::-1]
    results: dict[int, T] = {}
    failures: list[Exception] = []

    def drain() -> None:
        while not failures:
            try:
                place, item = left.pop()
            except IndexError:
                return
            try:
                results[place] = work(item)
            except Exception as error:  # noqa: BLE001 - it is raised again where it was asked for
                failures.append(error)

    parallel([drain] * min(workers, len(items)))
    if failures:
        raise failures[0]
    return [results[place] for place in range(len(items))]
