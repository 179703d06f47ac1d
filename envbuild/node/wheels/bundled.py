"""Built wheels in a bundle: entries of a store written into one, and those of one taken into a store.

Taking wheels in means trusting who built them, as naming a store does; the digest of the bundle, which a request can
give, says that it is that bundle.
"""

from __future__ import annotations

import json
import os
import tempfile

from envbuild.node import hashing, paths
from envbuild.node.bundle import index as bundle_index
from envbuild.node.bundle import write
from envbuild.node.protocol import Json, NodeError, log
from envbuild.node.wheels import entry as wheel_entry
from envbuild.node.wheels.store import Store


def pack(store: Store, keys: list[str], to: str) -> Json:
    """Write the entries of `keys` into the new bundle `to`; every wheel is checked.

    Result: `file`, `sha256`, `bytes`, `digest` of the bundle. Raises NodeError `wheel-unknown` (exit 2) for a key that
    the store has not, `not-writable` (7), `disk-full` or `disk-full` (75).
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".wheels-", dir=os.path.dirname(to)) as work:
            rows, sources = _files(store, sorted(set(keys)), work)
            made = bundle_index.make("", "", [os.uname().machine], [], rows)
            half = os.path.join(work, "bundle.tar")
            with open(half, "xb") as out:
                write.to_tar(out, made, sources)
            os.chmod(half, 0o644)  # noqa: S103 - whatever the umask: it is read once and removed
            os.rename(half, to)
    except OSError as error:
        raise paths.no_room(error, os.path.dirname(to)) or NodeError(
            "not-writable", f"cannot write {to}", why=str(error)
        ) from error
    return {"file": to, "sha256": hashing.digest_of(to), "bytes": os.path.getsize(to), "digest": made["digest"]}


def _files(store: Store, keys: list[str], work: str) -> tuple[list[Json], dict[str, str]]:
    """The rows of an index, and where their files are."""
    rows: list[Json] = []
    sources: dict[str, str] = {}
    for key in keys:
        entry = store.find(key)
        if entry is None:
            raise NodeError("wheel-unknown", f"the store has no good wheel of key {key:.12}")
        record = os.path.join(work, key)
        data = json.dumps(entry.data, sort_keys=True, indent=1, ensure_ascii=True).encode("ascii") + b"\n"
        paths.write_whole(record, data)
        more = {"what": "built wheel", "key": key, "source": str(entry.inputs.get("source"))}
        wheel = f"built/{key}/{os.path.basename(entry.wheel)}"
        rows.append(dict(more, path=wheel, sha256=entry.sha256, bytes=entry.size))
        build = f"built/{key}/{wheel_entry.BUILD}"
        rows.append(dict(more, path=build, sha256=hashing.digest_of(record), bytes=len(data)))
        sources.update({wheel: entry.wheel, build: record})
    return rows, sources


def keys_of(index: Json) -> dict[str, str]:
    """Build key by source of the built wheels in a bundle."""
    return {str(row.get("source")): str(row["key"]) for row in index["files"] if row["what"] == "built wheel"}


def take_in(path: str, folder: str, index: Json) -> None:
    """Take the built wheels of a bundle that was unpacked into `folder` into the store at `path`.

    A store that cannot be written is left as it is. Raises NodeError `bundle-damaged` (exit 5), `disk-full` or
    `disk-full` (75).
    """
    keys = sorted({row["key"] for row in index["files"] if row["what"] == "built wheel"})
    if not keys:
        return
    store, there = Store(path, create=True), 0
    for key in keys:
        if store.find(key) is not None:
            there += 1
            continue
        place = os.path.join(folder, "built", key)
        try:
            entry = wheel_entry.check(place, frozenset([os.geteuid()]))
            store.put(entry.inputs, entry.wheel, entry.facts, entry.builder, entry.built_at)
        except wheel_entry.UnusableEntryError as found:
            raise bundle_index.damaged(place, found.why) from None
        except NodeError as error:
            if error.code != "not-writable":
                raise
            log(f"warning: built wheels are not taken in: {error} ({error.why})")
            return
    log(f"{len(keys)} built wheels are in the wheel store, {there} were there before")
