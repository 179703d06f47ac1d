"""Built wheels in a bundle: entries of a store written into one, those of one taken into a store, and those handed on.

Taking wheels in means trusting who built them, as naming a store does; the digest of the bundle, which a request can
give, says that it is that bundle.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile

from envbuild.node import hashing, paths
from envbuild.node.bundle import archive
from envbuild.node.protocol import Json, NodeError, log
from envbuild.node.wheels import store as stored
from envbuild.node.wheels.build_key import why_not_for
from envbuild.node.wheels.store import Store


def pack(store: Store, keys: list[str], to: str) -> Json:
    """Write the entries of `keys` into the new bundle `to`; every wheel is checked.

    Result: `file` and its `bytes`. Raises NodeError `wheel-unknown` (exit 2) for a key that the store has not,
    `not-writable` (7), `disk-full` (75).
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".wheels-", dir=os.path.dirname(to)) as work:
            rows, sources = _files(store, sorted(set(keys)), work)
            made = archive.make_index("", "", [os.uname().machine], [], rows)
            half = os.path.join(work, "bundle.tar")
            with open(half, "xb") as out:
                archive.to_tar(out, made, sources)
            os.chmod(half, 0o644)  # noqa: S103 - whatever the umask: it is read once and removed
            os.rename(half, to)
    except OSError as error:
        raise paths.no_room(error, os.path.dirname(to)) or NodeError(
            "not-writable", f"cannot write {to}", why=str(error)
        ) from error
    return {"file": to, "bytes": os.path.getsize(to)}


def _files(store: Store, keys: list[str], work: str) -> tuple[list[Json], dict[str, str]]:
    """The rows of an index, and where their files are."""
    rows: list[Json] = []
    sources: dict[str, str] = {}
    for key in keys:
        entry = store.find(key)
        if entry is None:
            raise NodeError("wheel-unknown", f"the store has no valid wheel with key {key:.12}")
        record = os.path.join(work, key)
        data = json.dumps(entry.data, sort_keys=True, indent=1, ensure_ascii=True).encode("ascii") + b"\n"
        paths.write_whole(record, data)
        more = {"what": "built wheel", "key": key, "source": str(entry.inputs.get("source"))}
        wheel = f"built/{key}/{os.path.basename(entry.wheel)}"
        rows.append(dict(more, path=wheel, sha256=entry.sha256, bytes=entry.size))
        build = f"built/{key}/{stored.BUILD}"
        rows.append(dict(more, path=build, sha256=hashing.digest_of(record), bytes=len(data)))
        sources.update({wheel: entry.wheel, build: record})
    return rows, sources


def keys_of(index: Json) -> dict[str, str]:
    """Build key by source of the built wheels in a bundle."""
    return {str(row.get("source")): str(row["key"]) for row in index["files"] if row["what"] == "built wheel"}


def take_in(path: str, folder: str, index: Json) -> None:
    """Take the built wheels of a bundle that was unpacked into `folder` into the store at `path`.

    A store that cannot be written is left as it is. Raises NodeError `bundle-damaged` (exit 5), `disk-full` (75).
    """
    keys = sorted({row["key"] for row in index["files"] if row["what"] == "built wheel"})
    if not keys:
        return
    store, known = Store(path, create=True), 0
    for key in keys:
        if store.find(key) is not None:
            known += 1
            continue
        place = os.path.join(folder, "built", key)
        try:
            entry = stored.check(place, frozenset([os.geteuid()]))
            store.put(entry.inputs, entry.wheel, entry.facts, entry.builder, entry.built_at)
        except stored.UnusableEntryError as unusable:
            raise archive.damaged(place, unusable.why) from None
        except NodeError as error:
            if error.code != "not-writable":
                raise
            log(f"warning: built wheels are not taken in: {error} ({error.why})")
            return
    log(f"{len(keys)} built wheels are in the wheel store, {known} were there before")


class Handed:
    """`build.handed` of an install request: `by` (a node) and `keys` {source: build key}, which the store should have.

    `outcome` says by source what became of it: `by`, `key`, `used`, `why` (why not, or why another key than the node's
    own was right).
    """

    def __init__(self, given: Json | None) -> None:
        """`given` None or empty: nothing was handed."""
        given = given or {}
        self.by = str(given.get("by") or "another node")
        self.keys: dict[str, str] = dict(given.get("keys") or {})
        self.outcome: dict[str, Json] = {}

    def expected(self, store: Store, source: str, own: Json) -> bool:
        """True when the store seems to have a handed wheel for `own` (`key_inputs`); the wheel is not read."""
        key = self.keys.get(source)
        if key is None or not store.has(key):
            return False
        try:
            return not why_not_for(own, stored.read(store.place(key), store.trusted)[0]["inputs"])
        except stored.UnusableEntryError:
            return False

    def entry(self, store: Store, source: str, own: Json, versions: dict[str, str], tmp: str) -> stored.Entry | None:
        """The handed wheel of a source, checked and copied below `tmp`, where it is right for the inputs `own`.

        `versions`: of the packages that are here, by name.
        """
        key = self.keys.get(source)
        if key is None:
            return None
        folder = tempfile.mkdtemp(prefix="handed-", dir=tmp)
        entry = store.find(key, folder)
        why = "the wheel store has no good wheel of it" if entry is None else why_not_for(own, entry.inputs, versions)
        row = {"by": self.by, "key": key, "used": not why, "why": why}
        self.outcome[source] = row
        if entry is not None and not why:
            if entry.inputs["toolchain"] != own["toolchain"]:
                row["why"] = f"this node has not all tools that {self.by} built with"
            return entry
        shutil.rmtree(folder)
        log(f"{source}: the wheel that {self.by} built is not used: {why}")
        return None
