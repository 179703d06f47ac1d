"""The verb `wheels`: lists, verifies and prunes a wheel store, and writes its wheels into a bundle."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

from envbuild.node import identity, lease, paths, protocol
from envbuild.node.protocol import Json, NodeError, argument
from envbuild.node.read_text import names
from envbuild.node.wheels import bundled
from envbuild.node.wheels.store import BUILD, Store, UnusableEntryError, check, default_path, read

KEEP_DAYS = 90.0
_DAY = 86400.0
# Of what envbuild makes there; a file of another name is a user's.
_ENTRY = "[0-9a-f]{64}"
_SET_ASIDE = re.compile(rf"{_ENTRY}(?:-[0-9]+)?\.[0-9a-f]{{8}}")
_TEMPORARY = re.compile(
    rf"(?:{_ENTRY}(?:\..+)?|{paths.temporary('.(?:now|tmp|wheels)')}|bundle-[0-9a-f]{{12}}\.tar)(?:\.pruned-[0-9a-f]{{8}})?"
)
_LEASE = re.compile(rf"{_ENTRY}\.json(?:\.stale-[0-9a-f]{{32}})?|{paths.temporary('.lease')}")


def run(request: Json) -> tuple[bool, Json]:
    """Do `args.action` (`list`, `verify`, `prune`, `pack`) in `args.store` (default `<prefix>/store/wheels`).

    `list` and `verify` write nothing; `verify` has `ok` False where an entry is damaged. `prune` removes what was not
    used for `args.keep_days`, with `args.dry_run` it only names them. `pack` writes `args.keys` into the bundle
    `args.file`. Every result has `store` and `notes`.
    """
    args = request["args"]
    given = argument(args, "store", "a text", None)
    action = _ACTIONS.get(str(args.get("action")))
    if action is None:
        what = f"`wheels` cannot {str(args.get('action'))[:80]}"
        raise NodeError("request-invalid", what, hint="list, verify, prune or pack")
    changed, store, result = action(_expanded(given) if given else default_path(request["prefix"]), args)
    return changed, dict(result, store=store.path, notes=store.notes)


def _expanded(given: str) -> str:
    try:
        return protocol.expand_prefix(given)
    except NodeError as error:
        what = f"{given[:200]!r} is not an absolute path"
        raise NodeError("store-invalid", what, why=error.why, hint=error.hint) from None


def _state(error: UnusableEntryError) -> str:
    return "damaged" if error.kind == "damaged" else "not used"


def describe(store: Store, name: str) -> Json:
    """What an entry says of itself, its wheel not read; `state` is `unchecked`, `damaged` or `not used`, with `why`."""
    try:
        data, last_used = read(store.place(name), store.trusted)
    except UnusableEntryError as error:
        row = {"entry": name, "key": name[:64], "state": _state(error), "why": error.why}
        return dict(row, size=paths.size_of(store.place(name)))
    inputs = data["inputs"]
    toolchain = inputs.get("toolchain") or {}
    builder = data.get("builder") or {}
    return {
        "entry": name,
        "key": data["key"],
        "state": "unchecked",
        "source": inputs.get("source"),
        "commit": inputs.get("commit"),
        "torch": "+".join(part for part in inputs.get("torch") or [] if part)
        or inputs.get("packages", {}).get("torch"),
        "python": (inputs.get("python") or [None])[0],
        "cuda": toolchain.get("nvcc") or None,
        "arch_list": inputs.get("arch_list") or [],
        "compiler": toolchain.get("cxx") or toolchain.get("cc") or None,
        "wheel": data["wheel"],
        "sha256": data["sha256"],
        "size": data["size"],
        "built_at": data.get("built_at"),
        "last_used": round(last_used, 3),
        "builder": {key: builder[key] for key in ("host", "user", "run") if key in builder},
    }


def _list(path: str, _args: Json) -> tuple[bool, Store, Json]:
    store = Store(path)
    return False, store, {"entries": [describe(store, name) for name in store.folders()]}


def _verify(path: str, _args: Json) -> tuple[bool, Store, Json]:
    store, entries = Store(path), []
    for name in store.folders():
        row = describe(store, name)
        if row["state"] == "unchecked":
            try:
                check(store.place(name), store.trusted)
                row["state"] = "good"
            except UnusableEntryError as error:
                if error.kind == "gone":
                    continue
                row.update(state=_state(error), why=error.why)
        entries.append(row)
    damaged = [entry["entry"] for entry in entries if entry["state"] == "damaged"]
    return False, store, {"entries": entries, "damaged": damaged, "ok": not damaged}


def _prune(path: str, args: Json) -> tuple[bool, Store, Json]:
    days = argument(args, "keep_days", "a number of days, 0 or more", KEEP_DAYS)
    dry = bool(args.get("dry_run"))
    store = Store(path, create=os.path.isdir(path) and not dry)
    if os.path.isdir(path) and not dry and store.use != "read-write":
        raise NodeError(
            "not-writable",
            f"the wheel store {store.path} cannot be pruned",
            why="; ".join(store.notes),
            hint="the owner of the store can prune it",
        )
    now = store.now() if store.use == "read-write" else time.time()
    # What a builder may still be writing is left alone, however short the time asked for.
    before, writing = now - days * _DAY, now - max(days, 1.0) * _DAY
    removed: list[Json] = []
    kept: list[Json] = []
    for item in _items(store, before, writing):
        size = paths.size_of(store.place(item.name))
        why = "used since" if _mtime(item.used) >= item.limit else _remove(store, item, dry)
        if why:
            kept.append({"name": item.name, "why": why})
        else:
            removed.append({"name": item.name, "size": size})
    for name in [] if dry else filter(_LEASE.fullmatch, names(store.place("leases"))):
        path = store.place("leases", name)
        if _mtime(path) < writing:
            _unlink(path)
    result = {"removed": removed, "kept": kept, "bytes": sum(row["size"] for row in removed)}
    return bool(removed) and not dry, store, dict(result, dry_run=dry)


def _pack(path: str, args: Json) -> tuple[bool, Store, Json]:
    store, file = Store(path), _expanded(argument(args, "file", "a text"))
    return True, store, bundled.pack(store, argument(args, "keys", "a list of text"), file)


_ACTIONS = {"list": _list, "verify": _verify, "prune": _prune, "pack": _pack}


class _Item(NamedTuple):
    """What goes where `used` was not changed since `limit`: its path in the store, and the key that it is of."""

    name: str
    used: str
    limit: float
    key: str = ""


def _items(store: Store, before: float, writing: float) -> Iterator[_Item]:
    """Entries, the quarantine, and half-written entries of builders."""
    for name in store.folders():
        record = store.place(name, BUILD)
        yield _Item(name, record if os.path.lexists(record) else store.place(name), before, name[:64])
    for name in names(store.place("quarantine")):
        if _SET_ASIDE.fullmatch(name):
            yield _Item("quarantine/" + name, store.place("quarantine", name), before)
    for name in filter(_TEMPORARY.fullmatch, names(store.place("tmp"))):
        key = name.split(".")[0]
        yield _Item("tmp/" + name, store.place("tmp", name), writing, key if len(key) == 64 else "")


def _remove(store: Store, item: _Item, dry: bool) -> str:
    """Remove it under the lease of its key, so that nobody builds it or puts it there meanwhile; else why it stays."""
    held, path = None, store.place(item.name)
    try:
        if item.key:
            held, owner = _lease(store.place("leases", item.key + ".json"), dry)
            if owner is not None:
                return "held by " + lease.describe(owner)
        if _mtime(item.used) >= item.limit:
            return "used since"
        if not dry:
            # Renamed first: no entry is ever half there.
            away = store.place("tmp", f"{os.path.basename(path)[:64]}.pruned-{os.urandom(4).hex()}")
            os.rename(path, away)
            paths.remove_tree(away)
            _unlink(path + ".json")  # why it was in quarantine
    except OSError as error:
        return f"cannot be removed: {error.strerror}"
    finally:
        if held is not None:
            held.release()
    return ""


def _lease(path: str, dry: bool) -> tuple[lease.Lease | None, Json | None]:
    if not dry:
        mine = dict(identity.here(), run="prune", what="store clean")
        return lease.attempt(path, dict(mine, token=os.urandom(16).hex()))
    owner = lease.read_at(path)
    alive = owner is not None and not lease.is_abandoned(owner, time.time() - _mtime(path))
    return None, owner if alive else None


def _mtime(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return float("inf")


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
