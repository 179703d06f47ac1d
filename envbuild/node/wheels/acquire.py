"""One builder for each wheel: take it from the store, or wait for whom builds it, or build it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable

from envbuild.node import hashing, identity, lease, paths, protocol, redact
from envbuild.node.protocol import Exit, Json, NodeError, log
from envbuild.node.wheels.build_key import build_key
from envbuild.node.wheels.store import Entry, Store

WAIT = 3 * 3600.0
_LONGEST_PAUSE = 5.0


def obtain(
    store: Store, inputs: Json, owner: Json, build: Callable[[str], Json], tmp: str, wait: float | None = None
) -> tuple[Entry, bool]:
    """The wheel of `inputs` (`key_inputs`): from the store, or built once; returns (Entry, whether it was built here).

    `owner` says who asks (`run`, and `what` is built, in words). `build(folder)` puts one wheel into the folder and
    returns facts about the build. `tmp` is a private folder: the Entry's wheel lies below it, checked, and stays there.
    While another builds the same wheel this waits for it, at most `wait` seconds (default three hours). A dead builder
    is taken over; one that fails gives its lease back, and those who waited for it fail with it. A store that cannot be
    written is read; then, or when the disk has filled up during the build, the wheel is used and not stored, which
    `store.notes` say.

    Raises NodeError `build-busy` (75), `disk-full` (75, before anything is built), `build-failed` (4).
    """
    key = build_key(inputs)
    entry = _private(store, key, tmp)
    if entry is not None:
        return entry, False
    if store.use != "read-write":
        return _build(store, inputs, owner, build, tmp), True
    mine = dict(identity.here(), **owner, token=uuid.uuid4().hex)
    held, entry, since = _wait(store, key, mine, tmp, time.monotonic() + (WAIT if wait is None else wait))
    if held is None:
        assert entry is not None
        return entry, False
    try:
        with held:
            entry = _private(store, key, tmp)
            if entry is not None:
                return entry, False
            _fail_with(_failure(store, key), since)
            store.sweep(key)
            try:
                entry = _build(store, inputs, owner, build, tmp)
            except NodeError as error:
                if error.exit_code == Exit.BUILD_FAILED:
                    _tell_failure(_failure(store, key), error, mine)
                raise
            with contextlib.suppress(OSError):  # another user's; it is older than whoever waits from now on
                os.unlink(_failure(store, key))
            return entry, True
    finally:
        held.release()


def _failure(store: Store, key: str) -> str:
    """Where the last failed build of `key` is told to those who wait for it."""
    return store.place("leases", key + ".failed.json")


def _tell_failure(path: str, error: NodeError, mine: Json) -> None:
    try:
        report = redact.redact_data(dict(error.as_dict(), by=lease.describe(mine)))
        paths.write_json(path, report, 0o600)  # the end of a build's output is for its owner, as the log is
        lease.touch(path)
    except (OSError, NodeError) as other:
        log(f"the failure is not told to others: {other}")


def _fail_with(path: str, since: float | None) -> None:
    """Raise the failure of the builder that we waited for: many nodes would each try the same for many minutes."""
    report = paths.read_json(path) if since is not None else None
    try:
        if report is None or since is None or os.stat(path).st_mtime < since:
            return
    except OSError:
        return
    raise NodeError(
        str(report.get("code", "build-failed")),
        str(report.get("what", "")),
        why=f"{report.get('why', '?')}; so it ended for {report.get('by', '?')}, and this node waited for it",
        hint=report.get("hint", "see that node's log") + "; the same command tries the build here",
        exit_code=Exit.BUILD_FAILED,
        changed=True,
    )


def _private(store: Store, key: str, tmp: str) -> Entry | None:
    if not store.has(key):
        return None
    folder = tempfile.mkdtemp(prefix="stored-", dir=tmp)
    entry = store.find(key, folder)
    if entry is None:
        shutil.rmtree(folder)
    return entry


def _wait(
    store: Store, key: str, mine: Json, tmp: str, deadline: float
) -> tuple[lease.Lease | None, Entry | None, float | None]:
    """The lease of `key`, or the entry that another builder finished meanwhile; and when the waiting for one began."""
    shown, pause = "", 0.1
    since: float | None = None
    while True:
        try:
            held, other = lease.attempt(store.place("leases", key + ".json"), mine)
            if held is None and since is None:
                since = store.now()
        except OSError as error:
            raise paths.no_room(error, store.path) or error from error
        if held is not None:
            return held, None, since
        entry = _private(store, key, tmp)
        if entry is not None:
            return None, entry, since
        other = other or {}
        who = f"{lease.describe(other)}, which builds {other.get('what', key[:12])}"
        if time.monotonic() >= deadline:
            raise NodeError(
                "build-busy",
                f"another envbuild is still building {mine.get('what', key[:12])}",
                why=f"waited for {who}",
                hint="run the same command later: it uses the finished build",
                details={"key": key},
            )
        if who != shown:
            log(f"waiting for {who}")
            shown = who
        time.sleep(max(0.01, min(pause, deadline - time.monotonic())))
        pause = min(_LONGEST_PAUSE, pause * 1.5)


def _build(store: Store, inputs: Json, owner: Json, build: Callable[[str], Json], tmp: str) -> Entry:
    out = tempfile.mkdtemp(prefix="built-", dir=tmp)
    facts = build(out)
    wheels = sorted(name for name in os.listdir(out) if name.endswith(".whl"))
    if len(wheels) != 1:
        what = owner.get("what", inputs.get("source", "?"))
        raise NodeError("build-failed", f"{what}: the build made {len(wheels)} wheels", changed=True)
    wheel = os.path.join(out, wheels[0])
    builder = dict(owner, host=identity.here()["host"], user=protocol.user_name())
    if store.use == "read-write":
        try:
            stored = store.put(inputs, wheel, facts, builder)
        except NodeError as error:
            store.note(f"{wheels[0]} is used and not kept: {error} ({error.why})")
        else:
            if stored.sha256 == hashing.digest_of(wheel):
                stored.wheel = wheel
                return stored
            # Another builder was first with other bytes: every node then installs the same ones.
            first = _private(store, stored.key, tmp)
            if first is not None:
                shutil.rmtree(out)
                return first
    data = {"key": build_key(inputs), "inputs": inputs, "facts": facts, "builder": builder, "built_at": time.time()}
    data.update(sha256=hashing.digest_of(wheel), size=os.path.getsize(wheel))
    return Entry(wheel, data, False)
