"""The wheel store: wheels built from source, by build key, so that what one node has built the others only install.

    <store>/<key>/{<wheel>.whl, build.json}     complete from the rename that makes it; never changed afterwards
    <store>/<key>/proven.json                   who imported its extensions first; until then who cannot rejects it
    <store>/leases/<key>.json                   who builds it now (see lease.py); it only saves double work
    <store>/leases/<key>.failed.json            how its last build failed, for those who waited for it
    <store>/tmp/<key>.<random>/                 an entry that is being written
    <store>/quarantine/<key>.<random>/          a damaged entry, and beside it a `.json` that says why

`build.json` (version 1): `key`, `inputs` (they give the key), `wheel`, `sha256`, `size`, `facts` (of the build),
`builder`, `built_at`. Its mtime is the last use. No fcntl; ages are compared on the clock of the file server.
"""

import contextlib
import errno
import os
import re
import stat
import tempfile
import time
import uuid

from envbuild.node import identity, lease, paths, trust
from envbuild.node.protocol import Json, NodeError, log
from envbuild.node.read_text import names
from envbuild.node.wheels import entry as wheel_entry
from envbuild.node.wheels.build_key import build_key, other_packages
from envbuild.node.wheels.entry import BUILD, VERSION, Entry, UnusableEntryError

PROVEN = "proven.json"
# A user whose key is taken by an entry that does not count for them has it under `<key>-<user id>`.
_FOLDER = re.compile(r"\A([0-9a-f]{64})(-[0-9]+)?\Z")


def _names(key: str) -> "list[str]":
    """The folder names under which an entry of `key` may be ours, the first that counts first."""
    return [key, "%s-%d" % (key, os.geteuid())]


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
                self._cannot("cannot be %s: %s" % ("made" if create else "read", error), error)
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
        text = "wheel store %s: %s" % (self.path, text)
        if text not in self.notes:
            self.notes.append(text)
            log("warning: " + text)

    def _cannot(self, text: str, error: "OSError") -> None:
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
                    self.note("is only read: every user can write its folder %s" % name)
                    return
            self.now()
            self.use = "read-write"
        except OSError as error:
            self._cannot("is only read, what is built is not kept: %s" % error, error)

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

    def folders(self) -> "list[str]":
        """Names of the entries' folders, sorted. Reading the folder makes a network file system look again."""
        return [name for name in names(self.path) if _FOLDER.match(name)] if self.use != "none" else []

    def has(self, key: str) -> bool:
        """Whether there is an entry of `key`, not looked into, for us or for another user."""
        return any(name.startswith(key) for name in self.folders())

    def like(self, inputs: Json, versions: "dict[str, str] | None" = None) -> "Json | None":
        """The inputs of an entry built as `inputs` say, whatever their packages; its wheel is not looked at.

        With `versions` (by name) it saw the packages of these versions, so it is what a build would give here.
        """
        for name in self.folders():
            with contextlib.suppress(UnusableEntryError):
                found: Json = wheel_entry.read(self.place(name), self.trusted)[0]["inputs"]
                same = dict(found, packages={}) == dict(inputs, packages={})
                if same and (versions is None or not other_packages(found, versions)):
                    return found
        return None

    def find(self, key: str, into: "str | None" = None) -> "Entry | None":
        """The entry of `key`, its wheel's content checked; a damaged one goes to the quarantine. None without one.

        With the private folder `into` the wheel is copied there in the same pass: what is installed is then what was
        checked, whatever happens to the store meanwhile.
        """
        there = self.folders()
        for name in [name for name in _names(key) if name in there]:
            try:
                entry = wheel_entry.check(self.place(name), self.trusted, into)
            except UnusableEntryError as found:
                if found.kind == "damaged" and self.use == "read-write":
                    self.quarantine(name, found.why)
                elif found.kind != "gone":
                    self.note("entry %.12s is not used: %s" % (name, found.why))
                continue
            with contextlib.suppress(OSError):  # another's entry, or a file system that is only read
                lease.touch(self.place(name, BUILD))
            return entry
        return None

    def _used(self, key: str) -> "str | None":
        """The folder name of the entry of `key` that we would use."""
        for name in _names(key):
            with contextlib.suppress(UnusableEntryError):
                wheel_entry.read(self.place(name), self.trusted)
                return name
        return None

    def proved(self, key: str) -> None:
        """The wheel of `key` works; said once, by who could write the entry. Best effort."""
        name = self._used(key)
        if name is None or self.use != "read-write" or os.path.lexists(self.place(name, PROVEN)):
            return
        try:
            paths.write_json(self.place(name, PROVEN), dict(identity.here()))
        except (OSError, NodeError) as error:
            log("that %.12s works is not told to others: %s" % (key, error))

    def reject(self, key: str, why: str) -> None:
        """Move the entry of `key` that we would use away, because its wheel does not work.

        One that has worked anywhere stays: then it is this environment that it does not work in.
        """
        name = self._used(key)
        if name is not None and self.use == "read-write" and not os.path.lexists(self.place(name, PROVEN)):
            self.quarantine(name, why)

    def quarantine(self, name: str, why: str) -> "str | None":
        """Move a damaged entry away, with its reason beside it; returns where, None when that is not possible."""
        where = self.place("quarantine", "%s.%s" % (name, uuid.uuid4().hex[:8]))
        told = {"entry": name, "why": why, "at": round(time.time(), 3), "by": dict(identity.here())}
        try:
            os.rename(self.place(name), where)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.note("entry %.12s is damaged (%s) and cannot be moved away: %s" % (name, why, error))
            return None
        try:
            lease.touch(where)
            paths.write_json(where + ".json", told)
        except (OSError, NodeError) as error:
            log("the reason is not written: %s" % error)
        self.note("entry %.12s is not good and is in quarantine now: %s" % (name, why))
        return where

    def put(
        self, inputs: Json, wheel: str, facts: Json, builder: "Json | None" = None, built_at: "float | None" = None
    ) -> "Entry":
        """Keep the wheel at the path `wheel` under the key of `inputs`; returns its Entry, or the one that was first.

        Raises NodeError `disk-full` (exit 75) or `not-writable` (7), with nothing half there.
        """
        name = os.path.basename(wheel)
        if not wheel_entry.is_wheel_name(name):
            raise NodeError("request-invalid", "not the name of a wheel: %r" % name[:100])
        data = {"version": VERSION, "key": build_key(inputs), "inputs": inputs, "wheel": name, "facts": facts}
        data["builder"] = builder or {}
        data["built_at"] = round(time.time() if built_at is None else built_at, 3)
        try:
            return self._put(data, wheel)
        except OSError as error:
            raise paths.no_room(error, self.path) or NodeError(
                "not-writable",
                "the wheel store %s cannot be written" % self.path,
                why=str(error),
                hint="name another store, or have its permissions changed",
            ) from error

    def _put(self, data: Json, wheel: str) -> "Entry":
        if self.use != "read-write":
            raise OSError(errno.EROFS, "; ".join(self.notes) or "the store is only read")
        key = data["key"]
        work = tempfile.mkdtemp(prefix=key + ".", dir=self.place("tmp"))
        try:
            wheel_entry.write(work, data, wheel)
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
                return Entry(self.place(name, data["wheel"]), data, True, time.time())
            raise OSError(errno.EEXIST, "the places of %.12s are taken by entries that do not count" % key)
        finally:
            paths.remove_tree(work)

    def sweep(self, key: str) -> None:
        """Remove what dead builders of `key` left; only under its lease."""
        for name in os.listdir(self.place("tmp")):
            if name.startswith(key + "."):
                with contextlib.suppress(OSError):  # another user's
                    paths.remove_tree(self.place("tmp", name))
