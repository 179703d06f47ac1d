"""Leases: who changes a prefix, or builds a wheel, now. Made with link and rename, because fcntl locks lie on NFS.

A lease is a JSON file with its owner: `run`, `host`, `boot_id`, `pidns`, `pid`, `started`, `controller`, `token`. Its
mtime is the heartbeat. `<prefix>/lease.json` is the lease on a prefix; a run keeps it over its steps (install, smoke,
activate), each a process of its own. A lease anywhere else (`attempt`) belongs to one process.
"""

import contextlib
import errno
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence

from envbuild.node import identity, paths
from envbuild.node.logs import progress
from envbuild.node.protocol import Json, NodeError, has_fields, log

BEAT = 5.0
STALE_AFTER = 120.0
# Of a run that has ended, on a machine of this name: it was started again, or is a container that was.
RESTARTED_AFTER = 30.0
# A lease is linked into its place whole: one that cannot be read was damaged, and its owner does not find itself in it.
DAMAGED_AFTER = 5.0
# Seconds that an earlier step has to put away what it began.
_GRACE = 30.0
_POLL = 0.2


def is_abandoned(owner: Json, age: float, ended: "Sequence[str]" = ()) -> bool:
    """True when nobody can be working under this lease any more; `age` is that of its heartbeat in seconds.

    `ended`: runs whose controller is known to be gone; what it started may still be at work. An empty `owner` is a
    damaged lease.
    """
    if not owner:
        return age > DAMAGED_AFTER
    parties = [owner]
    over = owner.get("run") in ended
    if not over and isinstance(owner.get("controller"), dict) and owner["controller"].get("pid"):
        parties.append(owner["controller"])
    if all(identity.same_machine(party) for party in parties):
        return not any(identity.is_alive(party) for party in parties)
    if any(identity.same_machine(party) and identity.is_alive(party) for party in parties):
        return False
    restarted = over and owner.get("host") == identity.here()["host"]
    return age > (RESTARTED_AFTER if restarted else STALE_AFTER)


class Lease:
    """A held lease; as a context manager it keeps the heartbeat going. From `acquire` or `attempt`."""

    def __init__(self, path: str, owner: Json) -> None:
        """`path` of the file and `owner` as written in it."""
        self.path = path
        self.owner = owner
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Lease":
        """Start the heartbeat."""
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the heartbeat; the lease stays until `release`."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(BEAT):
            if self.held():
                with contextlib.suppress(OSError):
                    touch(self.path)

    def held(self) -> bool:
        """True while the file still names this run's token."""
        owner = read_at(self.path)
        return owner is not None and owner.get("token") == self.owner["token"]

    def check(self) -> None:
        """Raise NodeError `lease-lost` (exit 75) when another run has taken over; call before what cannot be undone."""
        if not self.held():
            owner = read_at(self.path)
            raise NodeError(
                "lease-lost",
                "run %s has lost its lock on the prefix" % self.owner["run"],
                why="its lease was released or removed" if owner is None else "held by %s" % describe(owner),
                hint="run the same command again",
            )

    def release(self) -> None:
        """Give the lease back; another run's lease is left alone."""
        self._stop.set()
        if self.held():
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def touch(path: str) -> None:
    """Give a file the time that the file server has now."""
    os.utime(path, None)


def of_prefix(prefix: str) -> str:
    """Where the lease on a prefix lies."""
    return os.path.join(prefix, "lease.json")


def read(prefix: str) -> "Json | None":
    """The owner of `prefix` now, None when nobody holds it; empty where the lease is damaged."""
    return read_at(of_prefix(prefix))


def read_at(path: str) -> "Json | None":
    """As `read`, for a lease at any path."""
    owner = paths.read_json(path)
    if owner is None:
        if not os.path.lexists(path):
            return None
        owner = paths.read_json(path) or {}  # once more: another run may have taken it between the two
    return owner if has_fields(owner, token=str) else {}


def describe(owner: Json) -> str:
    """The owner in words."""
    if not owner:
        return "nobody that can be read: the lease is damaged, and is taken over %d seconds after its last change" % (
            DAMAGED_AFTER
        )
    return "run %s on %s, process %s" % (owner.get("run", "?"), owner.get("host", "?"), owner.get("pid", "?"))


def _create(path: str, owner: Json, replace: bool) -> "float | None":
    """Put `owner` at `path`; returns None on success, else the file system's own time now (seconds)."""
    import tempfile  # to read a lease needs none of it

    handle, temporary = tempfile.mkstemp(prefix=".lease-", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(json.dumps(owner, sort_keys=True).encode("ascii"))
            stream.flush()
            os.fsync(stream.fileno())
            os.fchmod(stream.fileno(), 0o644)
        touch(temporary)
        if replace:
            _rename(temporary, path)
            return None
        # Compared with the lease's mtime this is one clock, the file server's, on every node.
        return None if _link(temporary, path) else os.stat(temporary).st_mtime
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _link(path: str, name: str) -> bool:
    """Give a file a second name; False where that is taken.

    Over NFS the reply can get lost: what is asked again finds the name taken by the file itself. Its number of names
    says so, and opening it has the server say it anew.
    """
    try:
        os.link(path, name)
    except OSError as error:
        with open(path, "rb") as stream:
            if os.fstat(stream.fileno()).st_nlink > 1:
                return True
        if isinstance(error, FileExistsError):
            return False
        raise
    return True


def _rename(path: str, name: str) -> None:
    """`os.rename` that knows when it was done already, and only the reply was lost."""
    try:
        os.rename(path, name)
    except FileNotFoundError:
        if os.path.lexists(path) or not os.path.lexists(name):
            raise


def _take_over(path: str, judged: Json) -> bool:
    """Move an abandoned lease away; when another run was quicker, put its lease back. False where that is forbidden."""
    aside = "%s.stale-%s" % (path, os.urandom(16).hex())
    try:
        _rename(path, aside)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS)
    moved = paths.read_json(aside)
    if moved is not None and moved.get("token") != judged.get("token"):
        with contextlib.suppress(OSError):
            os.link(aside, path)
    elif judged:
        log("took over the lease of %s, which is gone" % describe(judged))
    else:
        log("took over a lease that was damaged")
    os.unlink(aside)
    return True


def attempt(
    path: str, mine: Json, again: "str | None" = None, ended: "Sequence[str]" = ()
) -> "tuple[Lease | None, Json | None]":
    """Try once to take the lease at `path`: (the lease, None), or (None, the owner who is at work).

    `mine`: the owner to write, with a `token` of its own; what nobody can be working under is taken over. `again`: the
    run that gets its own lease again, its earlier step ended; `ended` as in `is_abandoned`. Raises OSError where the
    folder cannot be written.
    """
    while True:
        now = _create(path, mine, replace=False)
        if now is None:
            return Lease(path, mine), None
        owner = read_at(path)
        if owner is None:
            continue
        if again is not None and owner.get("run") == again:
            if _end_earlier(owner):
                continue
            mine.update(token=owner["token"], controller=mine.get("controller") or owner.get("controller") or {})
            _create(path, mine, replace=True)
            return Lease(path, mine), None
        try:
            age = now - os.stat(path).st_mtime
        except OSError:
            continue
        if not is_abandoned(owner, age, ended) or not _take_over(path, owner):
            return None, owner


def of_request(request: Json) -> "Lease":
    """The lease on the prefix of a request for its run; `args.controller` and `args.wait` as in `acquire`."""
    args = request["args"]
    return acquire(request["prefix"], request["run"], args.get("controller"), float(args.get("wait") or 0))


@contextlib.contextmanager
def during(request: Json) -> "Iterator[Lease]":
    """That lease while the body works; it is given back at its end. A full disk there has its coded error."""
    held = of_request(request)
    try:
        with held, paths.coded_errors(request["prefix"]):
            yield held
    finally:
        held.release()


def acquire(prefix: str, run: str, controller: "Json | None", wait: float) -> "Lease":
    """Take the lease for `run`, waiting at most `wait` seconds; each step of one run gets the lease of that run again.

    `controller`: who provisions, and in `ended` the runs of the same machine that have ended without giving back what
    they held. Raises NodeError `prefix-busy` (exit 75), which names the owner.
    """
    deadline = time.monotonic() + wait
    party = dict(controller or {})
    ended = [str(name) for name in party.pop("ended", ())]
    mine = dict(identity.here(), run=run, controller=party, token=os.urandom(16).hex())
    waiting = False
    while True:
        with paths.coded_errors(prefix):
            held, owner = attempt(of_prefix(prefix), mine, again=run, ended=ended)
        if held is not None:
            return held
        owner = owner or {}
        if time.monotonic() >= deadline:
            raise NodeError(
                "prefix-busy",
                "%s is locked by another envbuild" % prefix,
                why="held by %s" % describe(owner),
                hint="wait for it, or run again with a longer --wait",
                details={key: owner[key] for key in ("run", "host", "pid") if key in owner},
            )
        if not waiting:
            log("waiting for %s" % describe(owner))
            progress("waiting for another run of envbuild", describe(owner))
            waiting = True
        time.sleep(min(_POLL, max(0.01, deadline - time.monotonic())))


def _end_earlier(owner: Json) -> bool:
    """End the process of an earlier step of this run that is still at work here; True when one was ended.

    Steps follow one another. One that still runs has lost its connection, and its step is being done again.
    """
    if owner.get("pid") == os.getpid() or not identity.same_machine(owner) or not identity.is_alive(owner):
        return False
    log("ending %s: its connection is gone" % describe(owner))
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(owner["pid"], number)
        except OSError:
            return True
        until = time.monotonic() + _GRACE
        while time.monotonic() < until:
            if not identity.is_alive(owner):
                return True
            time.sleep(0.05)
    return False  # it sleeps in the kernel and will never run again
