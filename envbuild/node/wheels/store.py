"""The wheel store: wheels built from source, by build key, so that what one node has built the others only install.

    <store>/<key>/{<wheel>.whl, build.json}     complete from the rename that makes it; never changed afterwards
    <store>/<key>/proven.json                   who imported its extensions first; until then who cannot rejects it
    <store>/leases/<key>.json                   who builds it now (see lease.py); it only saves double work
    <store>/tmp/<key>.<random>/                 an entry that is being written
    <store>/quarantine/<key>.<random>/          a damaged entry, and beside it a `.json` that says why

`build.json` (version 1): `key`, `inputs` (they give the key), `wheel`, `sha256`, `size`, `facts` (of the build),
`builder`, `built_at`. Its mtime is the last use. No fcntl; ages are compared on the clock of the file server.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from envbuild.node import hashing, identity, lease, paths, trust
from envbuild.node.protocol import Json, NodeError, log
from envbuild.node.read_text import names
from envbuild.node.wheels.build_key import build_key, other_packages

PROVEN = "proven.json"
VERSION = 1
BUILD = "build.json"
_WHEEL = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.whl\Z")
# A user whose key is taken by an entry that does not count for them has it under `<key>-<user id>`.
_FOLDER = re.compile(r"\A([0-9a-f]{64})(-[0-9]+)?\Z")


@dataclass(eq=False)
class UnusableEntryError(Exception):
    """An entry that is not used: `kind` is `gone`, `untrusted` or `damaged`; `why` in words."""

    kind: str
    why: str


class Entry:
    """A wheel: `key`, `wheel` (its path), `sha256`, `size`, `inputs`, `facts`, `builder`, `built_at` (s since 1970).

    `stored` is False for a wheel that was built and could not be put into the store.
    """

    def __init__(self, wheel: str, data: Json, stored: bool) -> None:
        """`data` as in build.json."""
        self.wheel, self.data, self.stored = wheel, data, stored
        self.key: str = data["key"]
        self.sha256: str = data["sha256"]
        self.size: int = data["size"]
        self.inputs: Json = data["inputs"]
        self.facts: Json = data["facts"]
        self.builder: Json = data.get("builder") or {}
        self.built_at = float(data.get("built_at") or 0)


def is_wheel_name(name: str) -> bool:
    """True for a plain file name that ends in `.whl`."""
    return _WHEEL.match(name) is not None


def check(folder: str, trusted: frozenset[int], into: str | None = None) -> Entry:
    """The entry in `folder` after its owner (one of `trusted`), its record and every byte of its wheel were checked.

    With `into` the wheel is copied to that folder and the Entry names the copy. Raises UnusableEntryError, and
    OSError where the copy cannot be written.
    """
    data, _ = read(folder, trusted)
    source, wheel = (os.path.join(place, data["wheel"]) for place in (folder, into or folder))
    with _opened(source, trusted) as stream, open(wheel if into else os.devnull, "wb", opener=_no_link) as out:
        digest, size = hashing.write(_blocks(stream, source), out)
    if (digest, size) != (data["sha256"], data["size"]):
        recorded = f"{BUILD} says {data['sha256']:.12} and {data['size']}"
        raise UnusableEntryError("damaged", f"{data['wheel']} has sha256 {digest:.12} and {size} bytes, {recorded}")
    return Entry(wheel, data, True)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)


def _opened(path: str, trusted: frozenset[int]) -> IO[bytes]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(path, error) from None
    why = trust.problem(os.fstat(handle), trusted, folder=False)
    if why:
        os.close(handle)
        raise UnusableEntryError("untrusted", f"{os.path.basename(path)}: {why}")
    return os.fdopen(handle, "rb")


def _blocks(stream: IO[bytes], path: str) -> Iterator[bytes]:
    """Its content; what cannot be read is told from what cannot be written."""
    try:
        yield from hashing.blocks(stream)
    except OSError as error:
        raise _unreadable(path, error) from None


def read(folder: str, trusted: frozenset[int]) -> tuple[Json, float]:
    """The build.json in `folder` and its last use; the wheel is not read. Raises UnusableEntryError."""
    try:
        facts = os.lstat(folder)
    except OSError:
        raise UnusableEntryError("gone", "it is not there") from None
    why = trust.problem(facts, trusted, folder=True)
    if why:
        raise UnusableEntryError("untrusted", why)
    with _opened(os.path.join(folder, BUILD), trusted) as stream:
        last_used = os.fstat(stream.fileno()).st_mtime
        try:
            data = json.loads(stream.read(16 * hashing.BLOCK).decode("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UnusableEntryError("damaged", f"{BUILD} cannot be read: {str(error)[:200]}") from None
    why = malformed(data, os.path.basename(folder))
    if why:
        raise UnusableEntryError("damaged", f"{BUILD}: {why}")
    return data, last_used


def write(folder: str, data: Json, wheel: str) -> None:
    """Fill the new folder `folder` with a copy of `wheel` and build.json, durably; `data` gets `sha256` and `size`.

    Nobody but us can write the files, whatever the umask. Raises OSError.
    """
    with open(wheel, "rb") as source, open(os.path.join(folder, data["wheel"]), "xb") as out:
        digest, size = hashing.write(hashing.blocks(source), out)
        _finish(out)
    data.update(sha256=digest, size=size)
    with open(os.path.join(folder, BUILD), "xb") as out:
        out.write(json.dumps(data, sort_keys=True, indent=1, ensure_ascii=True).encode("ascii") + b"\n")
        _finish(out)
    os.chmod(folder, 0o755)  # noqa: S103 - mkdtemp made it 0700, and others are to read it
    paths.sync_dir(folder)


def _finish(out: Any) -> None:
    out.flush()
    os.fchmod(out.fileno(), 0o644)
    os.fsync(out.fileno())


def _unreadable(path: str, error: OSError) -> UnusableEntryError:
    if error.errno == errno.ESTALE or (error.errno == errno.ENOENT and not os.path.isdir(os.path.dirname(path))):
        return UnusableEntryError("gone", "it was removed meanwhile")
    kind = "untrusted" if error.errno in (errno.EACCES, errno.EPERM) else "damaged"
    return UnusableEntryError(kind, f"{os.path.basename(path)} cannot be read: {error.strerror}")


def malformed(data: object, name: str) -> str:
    """What is wrong with the content of a build.json in the folder `name`; empty when nothing is."""
    if not isinstance(data, dict) or data.get("version") != VERSION:
        return f"not of version {VERSION}"
    kinds = {"key": str, "inputs": dict, "wheel": str, "sha256": str, "size": int, "facts": dict}
    for key, kind in kinds.items():
        if not isinstance(data.get(key), kind):
            return f"`{key}` is missing"
    try:
        given = build_key(data["inputs"])
    except (TypeError, ValueError) as error:
        return f"its inputs: {error}"
    if data["key"] != given or not name.startswith(given):
        return f"it is of key {data['key']:.12}, its inputs give {given:.12}"
    return "" if is_wheel_name(data["wheel"]) else f"not the name of a wheel: {data['wheel'][:100]!r}"


def _names(key: str) -> list[str]:
    """The folder names under which an entry of `key` may be ours, the first that counts first."""
    return [key, f"{key}-{os.geteuid()}"]


def default_path(prefix: str) -> str:
    """The wheel store of a prefix where no other is named."""
    return os.path.join(prefix, "store", "wheels")


class Store:
    """The store at `path`. `use` is `read-write`, `read-only` or `none`; `notes` say why, and what was not used.

    A store that cannot be used is no error: nothing is found in it and nothing is put there.
    """

    def __init__(self, path: str, create: bool = False) -> None:
        """Look at the store, with `create` making it; raises NodeError `disk-full` (exit 75)."""
        self.path = os.path.realpath(path)
        self.notes: list[str] = []
        self.use = "none"
        self.trusted: frozenset[int] = frozenset()
        try:
            if create:
                os.makedirs(self.path, exist_ok=True)
            refused, self.trusted, note = trust.judge(self.path)
        except OSError as error:
            # A store that nobody has needed yet is nothing to warn of.
            if create or not isinstance(error, FileNotFoundError):
                self._cannot(f"cannot be {'made' if create else 'read'}: {error}", error)
            return
        if refused:
            self.note("is not used: " + refused)
            return
        if note:
            self.note(note)
        self.use = "read-only"
        if create:
            self._try_to_write()

    def note(self, text: str) -> None:
        """Say once, as a warning and in `notes`, what is not as it should be."""
        text = f"wheel store {self.path}: {text}"
        if text not in self.notes:
            self.notes.append(text)
            log("warning: " + text)

    def _cannot(self, text: str, error: OSError) -> None:
        # A store that takes no writes is read; only one without room ends the run.
        full = paths.no_room(error, self.path)
        if full is not None:
            raise full from error
        self.note(text)

    def _try_to_write(self) -> None:
        try:
            mode = stat.S_IMODE(os.stat(self.path).st_mode)
            for name in ("leases", "tmp", "quarantine"):
                folder = self.place(name)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder)
                    os.chmod(folder, mode)  # who may write the store may build into it, whatever our umask
                if os.lstat(folder).st_mode & stat.S_IWOTH or not os.path.isdir(folder) or os.path.islink(folder):
                    self.note(f"is only read: every user can write its folder {name}")
                    return
            self.now()
            self.use = "read-write"
        except OSError as error:
            self._cannot(f"is only read, what is built is not kept: {error}", error)

    def place(self, *names: str) -> str:
        """A path below the store."""
        return os.path.join(self.path, *names)

    def now(self) -> float:
        """The file server's time in seconds since 1970; raises OSError where the store cannot be written."""
        handle, temporary = tempfile.mkstemp(prefix=".now-", dir=self.place("tmp"))
        os.close(handle)
        try:
            lease.touch(temporary)
            return os.stat(temporary).st_mtime
        finally:
            os.unlink(temporary)

    def folders(self) -> list[str]:
        """Names of the entries' folders, sorted. Reading the folder makes a network file system look again."""
        return [name for name in names(self.path) if _FOLDER.match(name)] if self.use != "none" else []

    def has(self, key: str) -> bool:
        """Whether there is an entry of `key`, not looked into, for us or for another user."""
        return any(name.startswith(key) for name in self.folders())

    def like(self, inputs: Json, versions: dict[str, str] | None = None) -> Json | None:
        """The inputs of an entry built as `inputs` say, whatever their packages; its wheel is not looked at.

        With `versions` (by name) it saw the packages of these versions, so it is what a build would give here.
        """
        for name in self.folders():
            with contextlib.suppress(UnusableEntryError):
                entry_inputs: Json = read(self.place(name), self.trusted)[0]["inputs"]
                same = dict(entry_inputs, packages={}) == dict(inputs, packages={})
                if same and (versions is None or not other_packages(entry_inputs, versions)):
                    return entry_inputs
        return None

    def find(self, key: str, into: str | None = None) -> Entry | None:
        """The entry of `key`, its wheel's content checked; a damaged one goes to the quarantine. None without one.

        With the private folder `into` the wheel is copied there in the same pass: what is installed is then what was
        checked, whatever happens to the store meanwhile.
        """
        folders = self.folders()
        for name in [name for name in _names(key) if name in folders]:
            try:
                entry = check(self.place(name), self.trusted, into)
            except UnusableEntryError as error:
                if error.kind == "damaged" and self.use == "read-write":
                    self.quarantine(name, error.why)
                elif error.kind != "gone":
                    self.note(f"entry {name:.12} is not used: {error.why}")
                continue
            with contextlib.suppress(OSError):  # another's entry, or a file system that is only read
                lease.touch(self.place(name, BUILD))
            return entry
        return None

    def _unproven(self, key: str) -> str | None:
        """The folder name of the entry of `key`, in a store that we may write, while no run has proved its wheel."""
        for name in _names(key) if self.use == "read-write" else ():
            with contextlib.suppress(UnusableEntryError):
                read(self.place(name), self.trusted)
                return None if os.path.lexists(self.place(name, PROVEN)) else name
        return None

    def proved(self, key: str) -> None:
        """The wheel of `key` works; said once, by who could write the entry. Best effort."""
        name = self._unproven(key)
        if name is None:
            return
        try:
            paths.write_json(self.place(name, PROVEN), dict(identity.here()))
        except (OSError, NodeError) as error:
            log(f"that {key:.12} works is not told to others: {error}")

    def reject(self, key: str, why: str) -> None:
        """Move the entry of `key` that we would use away, because its wheel does not work.

        One that has worked anywhere stays: then it is this environment that it does not work in.
        """
        name = self._unproven(key)
        if name is not None:
            self.quarantine(name, why)

    def quarantine(self, name: str, why: str) -> None:
        """Move a damaged entry away where that is possible, with its reason beside it."""
        where = self.place("quarantine", f"{name}.{uuid.uuid4().hex[:8]}")
        note = {"entry": name, "why": why, "at": round(time.time(), 3), "by": dict(identity.here())}
        try:
            os.rename(self.place(name), where)
        except FileNotFoundError:
            return
        except OSError as error:
            self.note(f"entry {name:.12} is damaged ({why}) and cannot be moved away: {error}")
            return
        try:
            lease.touch(where)
            paths.write_json(where + ".json", note)
        except (OSError, NodeError) as error:
            log(f"the reason is not written: {error}")
        self.note(f"entry {name:.12} is not good and is in quarantine now: {why}")

    def put(
        self, inputs: Json, wheel: str, facts: Json, builder: Json | None = None, built_at: float | None = None
    ) -> Entry:
        """Keep the wheel at the path `wheel` under the key of `inputs`; returns its Entry, or the one that was first.

        Raises NodeError `disk-full` (exit 75) or `not-writable` (7), with nothing half there.
        """
        name = os.path.basename(wheel)
        if not is_wheel_name(name):
            raise NodeError("request-invalid", f"not the name of a wheel: {name[:100]!r}")
        data = {"version": VERSION, "key": build_key(inputs), "inputs": inputs, "wheel": name, "facts": facts}
        data.update(builder=builder or {}, built_at=round(time.time() if built_at is None else built_at, 3))
        try:
            return self._put(data, wheel)
        except OSError as error:
            raise paths.no_room(error, self.path) or NodeError(
                "not-writable",
                f"the wheel store {self.path} cannot be written",
                why=str(error),
                hint="name another store, or have its permissions changed",
            ) from error

    def _put(self, data: Json, wheel: str) -> Entry:
        if self.use != "read-write":
            raise OSError(errno.EROFS, "; ".join(self.notes) or "the store is only read")
        key = data["key"]
        work = tempfile.mkdtemp(prefix=key + ".", dir=self.place("tmp"))
        try:
            write(work, data, wheel)
            for name in [key] + _names(key):
                try:
                    os.rename(work, self.place(name))
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    first = self.find(key)
                    if first is not None:
                        return first
                    continue
                paths.sync_dir(self.path)
                return Entry(self.place(name, data["wheel"]), data, True)
            raise OSError(errno.EEXIST, f"the places of {key:.12} are taken by entries that do not count")
        finally:
            paths.remove_tree(work)

    def sweep(self, key: str) -> None:
        """Remove what dead builders of `key` left; only under its lease."""
        for name in os.listdir(self.place("tmp")):
            if name.startswith(key + "."):
                with contextlib.suppress(OSError):  # another user's
                    paths.remove_tree(self.place("tmp", name))
