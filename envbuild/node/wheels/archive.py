"""Wheels for nodes that do not share a store: entries packed into one tar file, and taken in with every byte checked.

A pack holds `<key>/build.json` and `<key>/<wheel>` of each entry, sorted, without times and owners, so that equal
entries give equal bytes; and last the list of its keys, because a tar file that was cut between members looks whole.
Taking a pack in means trusting who made it, as naming a store does; its sha256, which `pack` returns and `unpack` can
be given, says that it is that pack.
"""

import io
import json
import os
import re
import shutil
import tarfile
import tempfile

from envbuild.node import hashing, paths
from envbuild.node.protocol import Json, NodeError
from envbuild.node.wheels import entry as wheel_entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    from envbuild.node.wheels.store import Store

_KEYS = "keys.json"
_MEMBER = re.compile(r"\A([0-9a-f]{64})/([^/]+)\Z")
_RECORD_LIMIT = 16 * 1024 * 1024


def pack(store: "Store", keys: "list[str] | None", to: str) -> Json:
    """Write the entries of `keys` (None: all that are good) to the new tar file `to`; every wheel is checked.

    Result: `file`, `sha256`, `bytes`, `packed` (keys). Raises NodeError `wheel-unknown` (exit 2) for a key that the
    store has not, `pack-not-writable` (7), `disk-full` or `inodes-full` (75).
    """
    wanted = sorted({name[:64] for name in store.folders()} if keys is None else set(keys))
    try:
        with tempfile.TemporaryDirectory(prefix=".wheels-", dir=os.path.dirname(to)) as work:
            half = os.path.join(work, "pack.tar")
            with open(half, "xb") as out:
                packed = _write(store, wanted, keys is not None, work, out)
                out.flush()
                os.fchmod(out.fileno(), 0o644)
                os.fsync(out.fileno())
            os.rename(half, to)
        paths.sync_dir(os.path.dirname(to))
    except OSError as error:
        raise paths.no_room(error, os.path.dirname(to)) or NodeError(
            "pack-not-writable", "cannot write %s" % to, why=str(error)
        ) from error
    return {"file": to, "sha256": hashing.digest_of(to), "bytes": os.path.getsize(to), "packed": packed}


def _write(store: "Store", keys: "list[str]", must: bool, work: str, out: "Any") -> "list[str]":
    packed = []
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for key in keys:
            # The copy is what was checked, whatever happens to the store meanwhile.
            entry = store.find(key, work)
            if entry is None:
                if must:
                    raise NodeError("wheel-unknown", "the store has no good wheel of key %.12s" % key)
                continue
            data = json.dumps(entry.data, sort_keys=True, indent=1, ensure_ascii=True).encode("ascii") + b"\n"
            _add(archive, "%s/%s" % (key, wheel_entry.BUILD), io.BytesIO(data), len(data))
            with open(entry.wheel, "rb") as wheel:
                _add(archive, "%s/%s" % (key, os.path.basename(entry.wheel)), wheel, entry.size)
            os.unlink(entry.wheel)
            packed.append(key)
        data = json.dumps(packed).encode("ascii")
        _add(archive, _KEYS, io.BytesIO(data), len(data))
    return packed


def _add(archive: "tarfile.TarFile", name: str, content: "Any", size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    archive.addfile(member, content)


def unpack(store: "Store", path: str, sha256: "str | None" = None) -> Json:
    """Take every entry of the pack at `path` into the store, after all of them were checked; none where one is bad.

    Result: `taken` (keys that are new), `there` (keys that the store had). Raises NodeError `pack-damaged` (exit 5),
    `pack-missing` (2), `store-not-writable` (7), `disk-full` or `inodes-full` (75).
    """
    if store.use != "read-write":
        raise NodeError(
            "store-not-writable", "the wheel store %s cannot be written" % store.path, why="; ".join(store.notes)
        )
    try:
        pack_ = open(path, "rb")
    except OSError as error:
        hint = "give the path of a file that `envbuild wheels pack` wrote, as the node sees it"
        raise NodeError("pack-missing", "cannot read %s" % path, why=str(error), hint=hint) from None
    work = tempfile.mkdtemp(prefix="unpack.", dir=store.place("tmp"))
    try:
        with pack_:
            if sha256 is not None and hashing.digest_of_stream(pack_) != sha256.lower():
                raise _damaged(path, "its sha256 is not %.12s" % sha256)
            pack_.seek(0)
            keys = _extract(path, pack_, work)
        entries = [_checked(path, os.path.join(work, key)) for key in sorted(keys)]
        taken, there = [], []
        for entry in entries:
            if store.find(entry.key) is not None:
                there.append(entry.key)
                continue
            store.put(entry.inputs, entry.wheel, entry.facts, entry.builder, entry.built_at)
            taken.append(entry.key)
    except OSError as error:
        raise paths.no_room(error, store.path) or error from error
    finally:
        paths.remove_tree(work)
    return {"taken": taken, "there": there}


def _damaged(path: str, why: str) -> "NodeError":
    return NodeError(
        "pack-damaged",
        "%s is not a valid wheel pack" % path,
        why=why,
        hint="pack the wheels again, or carry the file again",
    )


def _extract(path: str, stream: "Any", work: str) -> "set[str]":
    """Write the members, which must be plain files of entries and nothing else, below `work`; returns the keys."""
    keys: set[str] = set()
    said: Any = None
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                if said is not None:
                    raise _damaged(path, "trailing data after the key list")
                if member.name == _KEYS and member.isreg() and member.size <= _RECORD_LIMIT:
                    said = json.loads(_content(archive, member).read().decode("ascii"))
                    continue
                found = _MEMBER.match(member.name)
                record = found is not None and found.group(2) == wheel_entry.BUILD
                plain = member.isreg() and found and (record or wheel_entry.is_wheel_name(found.group(2)))
                if not plain or found is None or (record and member.size > _RECORD_LIMIT):
                    raise _damaged(path, "it holds %r" % member.name[:200])
                keys.add(found.group(1))
                folder = os.path.join(work, found.group(1))
                os.makedirs(folder, 0o755, exist_ok=True)
                # Exclusive: a second member of the same name is no pack of ours.
                with open(os.path.join(folder, found.group(2)), "xb") as out:
                    shutil.copyfileobj(_content(archive, member), out, hashing.BLOCK)
                    os.fchmod(out.fileno(), 0o644)
    except FileExistsError as error:
        raise _damaged(path, "it holds %s twice" % os.path.basename(error.filename)) from None
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise _damaged(path, str(error)[:300]) from None
    if said != sorted(keys):
        raise _damaged(path, "it is truncated: its key list does not fit its entries")
    return keys


def _content(archive: "tarfile.TarFile", member: "tarfile.TarInfo") -> "IO[bytes]":
    """The content of a member that is a plain file."""
    content = archive.extractfile(member)
    assert content is not None
    return content


def _checked(path: str, folder: str) -> "wheel_entry.Entry":
    """An extracted entry whose record and every byte are right."""
    os.chmod(folder, 0o755)  # noqa: S103 - whatever the umask; it lies in a private folder
    try:
        return wheel_entry.check(folder, frozenset([os.geteuid()]))
    except wheel_entry.UnusableEntryError as found:
        raise _damaged(path, "%.12s: %s" % (os.path.basename(folder), found.why)) from None
