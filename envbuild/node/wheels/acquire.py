"""One builder for each wheel: take it from the store, or wait for whom builds it, or build it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable

from envbuild.node import hashing, identity, lease, paths, protocol
from envbuild.node.protocol import Json, NodeError, log
from envbuild.node.wheels.build_key import build_key
from envbuild.node.wheels.store import Entry, Store

WAIT = 3 * 3600.0
_LONGEST_PAUSE = 5.0


def obtain(
    store: Store, inputs: Json, owner: Json, build: Callable[[str], Json], tmp: str, wait: float | None = None
) -> tuple[Entry, bool]:
    """The wheel of `inputs` (`key_inputs`): from the store, or built once; returns (Entry, whether it was built here).

    `owner` says who asks (`run`, and `what` is built, in words). `build(folder)` puts a wheel into the folder and
    returns facts about the build, its path as `wheel`. `tmp` is a private folder: the Entry's wheel lies below it,
    checked, and stays there. While another builds the same wheel this waits for it, at most `wait` seconds (default
    three hours). A dead builder is taken over; one that fails gives its lease back, and the next one tries. A store
    that cannot be written is read; then, or when the disk has filled up during the build, the wheel is used and not
    stored, which `store.notes` say.

    Raises NodeError `build-busy` (75), `disk-full` (75, before anything is built), `build-failed` (4).
    """
    key = build_key(inputs)
    entry = _private(store, key, tmp)
    if entry is not None:
        return entry, False
    if store.use != "read-write":
        return _build(store, inputs, owner, build, tmp), True
    mine = dict(identity.here(), **owner, token=uuid.uuid4().hex)
    held, entry = _wait(store, key, mine, tmp, time.monotonic() + (WAIT if wait is None else wait))
    if held is None:
        assert entry is not None
        return entry, False
    try:
        with held:
            entry = _private(store, key, tmp)
            if entry is not None:
                return entry, False
            store.sweep(key)
            return _build(store, inputs, owner, build, tmp), True
    finally:
        held.release()


def _private(store: Store, key: str, tmp: str) -> Entry | None:
    if not store.has(key):
        return None
    folder = tempfile.mkdtemp(prefix="stored-", dir=tmp)
    entry = store.find(key, folder)
    if entry is None:
        shutil.rmtree(folder)
    return entry


def _wait(store: Store, key: str, mine: Json, tmp: str, deadline: float) -> tuple[lease.Lease | None, Entry | None]:
    """The lease of `key`, or the entry that another builder finished meanwhile."""
    shown, pause = "", 0.1
    while True:
        with paths.coded_errors(store.path):
            held, other = lease.attempt(store.place("leases", key + ".json"), mine)
        if held is not None:
            return held, None
        entry = _private(store, key, tmp)
        if entry is not None:
            return None, entry
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
    wheel = facts.pop("wheel")
    builder = dict(owner, host=identity.here()["host"], user=protocol.user_name())
    if store.use == "read-write":
        try:
            stored = store.put(inputs, wheel, facts, builder)
        except NodeError as error:
            store.note(f"{os.path.basename(wheel)} is used and not kept: {error} ({error.why})")
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
