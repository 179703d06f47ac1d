"""The lease on a prefix: who changes it now. Made with link and rename, because fcntl locks lie on NFS.

`<prefix>/lease.json` holds the owner: `run`, `host`, `boot_id`, `pidns`, `pid`, `started`, `controller`, `token`. Its
mtime is the heartbeat. A run keeps the lease over its steps (install, smoke, activate), each a process of its own.
"""

import json
import os
import tempfile
import threading
import time
import uuid

from envbuild.node import identity, paths
from envbuild.node.protocol import Exit, NodeError, log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

BEAT = 5.0
STALE_AFTER = 120.0
_POLL = 0.2


def is_abandoned(owner: "dict[str, Any]", age: "float") -> "bool":
    """True when nobody can be working under this lease any more; `age` is that of its heartbeat in seconds."""
    parties = [owner]
    if isinstance(owner.get("controller"), dict) and owner["controller"].get("pid"):
        parties.append(owner["controller"])
    if all(identity.same_machine(party) for party in parties):
        return not any(identity.is_alive(party) for party in parties)
    if any(identity.same_machine(party) and identity.is_alive(party) for party in parties):
        return False
    return age > STALE_AFTER


class Lease:
    """A held lease; as a context manager it keeps the heartbeat going. Use `acquire` or `resume` to get one."""

    def __init__(self, prefix: "str", owner: "dict[str, Any]") -> "None":
        """`owner` as written in the file."""
        self.path = os.path.join(prefix, "lease.json")
        self.owner = owner
        self._stop = threading.Event()
        self._thread = None  # type: threading.Thread | None

    def __enter__(self) -> "Lease":
        """Start the heartbeat."""
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: "type[BaseException] | None",
        error: "BaseException | None",
        trace: "TracebackType | None",
    ) -> "None":
        """Stop the heartbeat; the lease stays until `release`."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _beat(self) -> "None":
        while not self._stop.wait(BEAT):
            if self.held():
                try:
                    os.utime(self.path, None)
                except OSError:
                    pass

    def held(self) -> "bool":
        """True while the file still names this run's token."""
        found = read(os.path.dirname(self.path))
        return found is not None and found.get("token") == self.owner["token"]

    def check(self) -> "None":
        """Raise NodeError `lease-lost` (exit 75) when another run has taken over; call before what cannot be undone."""
        if not self.held():
            raise lost(self.owner["run"], read(os.path.dirname(self.path)))

    def release(self) -> "None":
        """Give the lease back; another run's lease is left alone."""
        self._stop.set()
        if self.held():
            try:
                os.unlink(self.path)
            except OSError:
                pass


def read(prefix: "str") -> "dict[str, Any] | None":
    """The owner of `prefix` now, None when nobody holds it; an unreadable lease is an owner without a name."""
    path = os.path.join(prefix, "lease.json")
    if not os.path.lexists(path):
        return None
    found = paths.read_json(path)
    if isinstance(found, dict):
        return found
    return {} if os.path.lexists(path) else None


def lost(run: "str", owner: "dict[str, Any] | None") -> "NodeError":
    """The error of a step whose run no longer holds the lease."""
    return NodeError(
        "lease-lost",
        "run %s no longer holds the prefix" % run,
        why="held by %s" % describe(owner) if owner is not None else "its lease was released or removed",
        hint="run the same command again",
        exit_code=Exit.TRY_AGAIN,
    )


def describe(owner: "dict[str, Any]") -> "str":
    """The owner in words."""
    return "run %s on %s, process %s" % (owner.get("run", "?"), owner.get("host", "?"), owner.get("pid", "?"))


def _create(path: "str", owner: "dict[str, Any]", replace: "bool") -> "float | None":
    """Put `owner` at `path`; returns None on success, else the file system's own time now (seconds)."""
    handle, temporary = tempfile.mkstemp(prefix=".lease-", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(json.dumps(owner, sort_keys=True).encode("ascii"))
            stream.flush()
            os.fsync(stream.fileno())
            os.fchmod(stream.fileno(), 0o644)
        if replace:
            os.rename(temporary, path)
            return None
        try:
            os.link(temporary, path)
        except FileExistsError:
            # Compared with the lease's mtime this is one clock, the file server's, on every node.
            return os.stat(temporary).st_mtime
        return None
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


def _take_over(path: "str", judged: "dict[str, Any]") -> "None":
    """Move an abandoned lease away; when another run was quicker, put its lease back."""
    aside = "%s.stale-%s" % (path, uuid.uuid4().hex)
    try:
        os.rename(path, aside)
    except OSError:
        return
    moved = paths.read_json(aside)
    if isinstance(moved, dict) and moved.get("token") != judged.get("token"):
        try:
            os.link(aside, path)
        except OSError:
            pass
    else:
        log("took over the lease of %s, which is gone" % describe(judged))
    os.unlink(aside)


def acquire(prefix: "str", run: "str", controller: "dict[str, Any] | None", wait: "float") -> "Lease":
    """Take the lease for `run`, waiting at most `wait` seconds; the same run gets its own lease again.

    Raises NodeError `prefix-busy` (exit 75), which names the owner.
    """
    path = os.path.join(prefix, "lease.json")
    deadline = time.monotonic() + wait
    mine = dict(identity.here(), run=run, controller=controller or {}, token=uuid.uuid4().hex)
    said = False
    while True:
        try:
            now = _create(path, mine, replace=False)
        except OSError as error:
            raise paths.os_error(error, prefix) or error from error
        if now is None:
            return Lease(prefix, mine)
        owner = read(prefix)
        if owner is None:
            continue
        if owner.get("run") == run:
            mine["token"] = owner.get("token", mine["token"])
            _create(path, mine, replace=True)
            return Lease(prefix, mine)
        try:
            age = now - os.stat(path).st_mtime
        except OSError:
            continue
        if is_abandoned(owner, age):
            _take_over(path, owner)
            continue
        if time.monotonic() >= deadline:
            raise _busy(prefix, owner)
        if not said:
            log("waiting for %s" % describe(owner))
            said = True
        time.sleep(min(_POLL, max(0.01, deadline - time.monotonic())))


def _busy(prefix: "str", owner: "dict[str, Any]") -> "NodeError":
    return NodeError(
        "prefix-busy",
        "another envbuild changes %s" % prefix,
        why="held by %s" % describe(owner),
        hint="wait for it, or run again with a longer --wait",
        exit_code=Exit.TRY_AGAIN,
        details={key: owner[key] for key in ("run", "host", "pid") if key in owner},
    )


def resume(prefix: "str", run: "str", controller: "dict[str, Any] | None" = None) -> "Lease":
    """The lease that an earlier step of `run` took; raises NodeError `lease-lost` (exit 75) when it is gone."""
    owner = read(prefix)
    if owner is None or owner.get("run") != run:
        raise lost(run, owner)
    mine = dict(
        identity.here(), run=run, controller=controller or owner.get("controller", {}), token=owner.get("token", "")
    )
    _create(os.path.join(prefix, "lease.json"), mine, replace=True)
    return Lease(prefix, mine)
