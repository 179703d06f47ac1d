"""The files of an environment: hashed in one pass, and compared with what their packages say of them."""

import os
from collections.abc import Iterable

from envbuild.node import merkle, paths
from envbuild.node.conda import meta
from envbuild.node.packages import installed
from envbuild.node.protocol import Json


class Scan:
    """What is known of an environment's files before it is scanned again.

    `entries` of an earlier scan. `layer`: those of a layer of an image below what is built, all of whose distributions
    (normal names `checked`) agreed with their RECORD. `seen`: every file with its `lstat`, of a walk just now.
    """

    def __init__(
        self,
        entries: "dict[str, merkle.Entry]",
        layer: "dict[str, merkle.Entry] | None" = None,
        checked: "frozenset[str]" = frozenset(),
    ) -> None:
        """Plain data."""
        self.entries = entries
        self.layer = layer or {}
        self.checked = checked
        self.seen: list[tuple[str, os.stat_result]] | None = None

    def again(self, prefix: str, environment: str, told: Json) -> "dict[str, merkle.Entry]":
        """See `scan`."""
        return scan(prefix, environment, told, self.entries, self.layer, self.seen)

    def agreed(self, entries: "dict[str, merkle.Entry]") -> "frozenset[str]":
        """Distributions that need not be compared with RECORD again, where `again` gave `entries`."""
        return self.checked if merkle.untouched(self.layer, entries) else frozenset()


def scan(
    prefix: str,
    environment: str,
    told: Json,
    known: "dict[str, merkle.Entry] | None" = None,
    settled: "dict[str, merkle.Entry] | None" = None,
    seen: "Iterable[tuple[str, os.stat_result]] | None" = None,
) -> "dict[str, merkle.Entry]":
    """Every covered path of an environment; `told`: interpreter, sources and trees (of a stamp or install notes).

    `known`, `settled` and `seen`: see `merkle.scan`. Raises OSError.
    """
    trees = {tree["name"]: tree["at"] for tree in told.get("trees") or ()}
    places = merkle.Places(environment, prefix, told.get("interpreter") or "", meta.replaced(environment), trees)
    return merkle.scan(environment, places, merkle.generated_of(told["sources"]), known, settled=settled, seen=seen)


def keep(path: str, entries: "dict[str, merkle.Entry]", more: "Json | None" = None) -> None:
    """Write what a scan gave into the file `path`, with what else is to be known of it."""
    rows = {
        name: [entry.tag, entry.digest, entry.size, entry.executable, entry.raw, entry.signature]
        for name, entry in entries.items()
    }
    paths.write_json(path, dict(more or {}, files=rows))


def kept(path: str) -> "dict[str, merkle.Entry]":
    """What `keep` has written, so that files unchanged since are not read twice; empty where it is not there."""
    return entries_of(paths.read_json(path) or {})


def entries_of(told: Json) -> "dict[str, merkle.Entry]":
    """The same from what was read of that file."""
    rows = told.get("files") or {}
    return {
        name: merkle.Entry(row[0], row[1], row[2], bool(row[3]), row[4], row[5])
        for name, row in rows.items()
        if isinstance(row, list) and len(row) == 6
    }


def check(
    environment: str,
    entries: "dict[str, merkle.Entry]",
    known: "dict[str, str] | None" = None,
    agreed: "frozenset[str]" = frozenset(),
) -> "tuple[int, list[Json]]":
    """Every file of a wheel against its RECORD, every file of a conda package against its archive's own list.

    Returns as `installed.check`, with its `known`. `agreed`: distributions (normal names) that were compared before.
    """
    checked, wrong = meta.check(environment, entries)
    answered = agreed.union(meta.distributions(environment))
    of_wheels, others = installed.check(environment, entries, known, answered)
    return checked + of_wheels, wrong + others
