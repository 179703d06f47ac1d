"""Wheels that another node has built, handed to this one: taken into its store, used where they are right for it."""

import shutil
import tempfile

from envbuild.node import paths
from envbuild.node.bundle import read
from envbuild.node.protocol import Json, log
from envbuild.node.wheels import bundled
from envbuild.node.wheels import entry as wheel_entry
from envbuild.node.wheels.build_key import why_not_for
from envbuild.node.wheels.store import Store


class Handed:
    """`build.handed` of an install request: `by` (a node), `keys` {source: build key}, and a bundle `file`, `digest`.

    Without a `file` the store is expected to have the keys. `told` says by source what became of it: `by`, `key`,
    `used`, `why` (why not, or why another key than the node's own was right).
    """

    def __init__(self, given: "Json | None") -> None:
        """`given` None or empty: nothing was handed."""
        given = given or {}
        self.by = str(given.get("by") or "another node")
        self.keys: dict[str, str] = dict(given.get("keys") or {})
        self.file: str | None = given.get("file")
        self.digest: str | None = given.get("digest")
        self.told: dict[str, Json] = {}

    def take_in(self, path: str, tmp: str) -> None:
        """Take the bundle into the store at `path` and remove it; it is unpacked below `tmp`.

        A store that cannot be written is left as it is. Raises NodeError `bundle-damaged` (exit 5), `bundle-missing`
        (2), `disk-full` (75).
        """
        if not self.file:
            return
        folder = tempfile.mkdtemp(prefix="handed-", dir=tmp)
        try:
            bundled.take_in(path, folder, read.unpack(self.file, folder, self.digest))
        finally:
            paths.remove_tree(folder)
            paths.remove_tree(self.file)
        self.file = None

    def expected(self, store: "Store", source: str, own: Json) -> bool:
        """True when the store seems to have a handed wheel for `own` (`key_inputs`); the wheel is not read."""
        key = self.keys.get(source)
        if key is None or not store.has(key):
            return False
        try:
            return not why_not_for(own, wheel_entry.read(store.place(key), store.trusted)[0]["inputs"])
        except wheel_entry.UnusableEntryError:
            return False

    def entry(
        self, store: "Store", source: str, own: Json, versions: "dict[str, str]", tmp: str
    ) -> "wheel_entry.Entry | None":
        """The handed wheel of a source, checked and copied below `tmp`, where it is right for the inputs `own`.

        `versions`: of the packages that are here, by name.
        """
        key = self.keys.get(source)
        if key is None:
            return None
        folder = tempfile.mkdtemp(prefix="handed-", dir=tmp)
        entry = store.find(key, folder)
        why = "the wheel store has no good wheel of it" if entry is None else why_not_for(own, entry.inputs, versions)
        told = {"by": self.by, "key": key, "used": not why, "why": why}
        self.told[source] = told
        if entry is not None and not why:
            if entry.inputs["toolchain"] != own["toolchain"]:
                told["why"] = "this node has not all tools that %s built with" % self.by
            return entry
        shutil.rmtree(folder)
        log("%s: the wheel that %s built is not used: %s" % (source, self.by, why))
        return None
