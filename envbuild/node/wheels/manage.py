"""The verb `wheels`: lists, verifies and prunes a wheel store, and writes its wheels into a bundle."""

from __future__ import annotations

import contextlib
import os
import time

from envbuild.node import identity, lease, paths, protocol
from envbuild.node.protocol import Json, NodeError, argument
from envbuild.node.read_text import names
from envbuild.node.wheels import bundled
from envbuild.node.wheels.store import BUILD, Store, UnusableEntryError, check, default_path, read

KEEP_DAYS = 90.0
_DAY = 86400.0


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


def _quarantined(store: Store) -> list[Json]:
    rows = []
    for name in names(store.place("quarantine")):
        if not name.endswith(".json"):
            note = paths.read_json(store.place("quarantine", name + ".json")) or {}
            size = paths.size_of(store.place("quarantine", name))
            rows.append({"name": name, "why": note.get("why"), "at": note.get("at"), "size": size})
    return rows


def _list(path: str, _args: Json) -> tuple[bool, Store, Json]:
    store = Store(path)
    entries = [describe(store, name) for name in store.folders()]
    total = sum(entry["size"] for entry in entries)
    return False, store, {"entries": entries, "bytes": total, "quarantine": _quarantined(store)}


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
    work = _Pruning(store, float(days), dry)
    work.entries()
    work.leftovers()
    result = {"removed": work.removed, "kept": work.kept, "bytes": sum(item["size"] for item in work.removed)}
    return bool(work.removed) and not dry, store, dict(result, dry_run=dry)


def _pack(path: str, args: Json) -> tuple[bool, Store, Json]:
    store, file = Store(path), _expanded(argument(args, "file", "a text"))
    return True, store, bundled.pack(store, argument(args, "keys", "a list of text"), file)


_ACTIONS = {"list": _list, "verify": _verify, "prune": _prune, "pack": _pack}


class _Pruning:
    """One pass over a store: what goes and what stays, with the reason."""

    def __init__(self, store: Store, days: float, dry: bool) -> None:
        self.store, self.dry = store, dry
        self.removed: list[Json] = []
        self.kept: list[Json] = []
        now = time.time() if dry or store.use != "read-write" else store.now()
        self.before = now - days * _DAY
        # What a builder may still be writing is left alone, however short the time asked for.
        self.writing = min(self.before, now - _DAY)

    def entries(self) -> None:
        """Entries that nobody used for so long."""
        for name in self.store.folders():
            row = describe(self.store, name)
            last = row.get("last_used") or _mtime(self.store.place(name))
            if last >= self.before:
                self.kept.append({"name": name, "why": "used since"})
            else:
                self._remove(self.store.place(name), name[:64], dict(row, name=name), BUILD)

    def leftovers(self) -> None:
        """The quarantine, half-written entries of dead builders, and their leases."""
        for item in _quarantined(self.store):
            path = self.store.place("quarantine", item["name"])
            if _mtime(path) < self.before:
                self._remove(path, "", item)
                if not self.dry and not os.path.lexists(path):
                    _unlink(path + ".json")
        for name in names(self.store.place("tmp")):
            path = self.store.place("tmp", name)
            if _mtime(path) < self.writing:
                key = name.split(".")[0]
                row = {"name": "tmp/" + name, "size": paths.size_of(path)}
                self._remove(path, key if len(key) == 64 else "", row)
        for name in names(self.store.place("leases")):
            path = self.store.place("leases", name)
            if _mtime(path) < self.writing and not self.dry:
                _unlink(path)

    def _remove(self, path: str, key: str, row: Json, used: str = "") -> None:
        """Remove `path` under the lease of `key`, so that nobody builds it or puts it there meanwhile.

        `used`: the file in it whose time is the last use; an entry that was used since it was judged stays.
        """
        held = None
        try:
            if key:
                held, owner = self._lease(key)
                if owner is not None:
                    self.kept.append({"name": row["name"], "why": "held by " + lease.describe(owner)})
                    return
            if used and self.before <= _mtime(os.path.join(path, used)) < float("inf"):
                return
            if not self.dry:
                # Renamed first: no entry is ever half there.
                away = self.store.place("tmp", f"{os.path.basename(path)[:64]}.pruned-{os.urandom(4).hex()}")
                os.rename(path, away)
                paths.remove_tree(away)
            self.removed.append(row)
        except OSError as error:
            self.kept.append({"name": row["name"], "why": f"cannot be removed: {error.strerror}"})
        finally:
            if held is not None:
                held.release()

    def _lease(self, key: str) -> tuple[lease.Lease | None, Json | None]:
        path = self.store.place("leases", key + ".json")
        if not self.dry:
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
