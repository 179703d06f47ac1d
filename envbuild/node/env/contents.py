"""The files of an environment: hashed in one pass, and compared with what their packages say of them."""

from envbuild.node import merkle, paths
from envbuild.node.conda import meta
from envbuild.node.packages import installed
from envbuild.node.protocol import Json


def scan(
    prefix: str,
    environment: str,
    told: Json,
    known: "dict[str, merkle.Entry] | None" = None,
) -> "dict[str, merkle.Entry]":
    """Every covered path of an environment; `told`: interpreter, sources and trees (of a stamp or install notes).

    `known`: see `merkle.scan`. Raises OSError.
    """
    made_by_runs = merkle.generated_of(told["sources"])
    where = places(prefix, environment, environment, told)
    return merkle.scan(environment, where, made_by_runs, known)


def places(prefix: str, environment: str, built_at: str, told: Json) -> "merkle.Places":
    """The places that files of an environment may name; `told` as of `scan`."""
    trees = {tree["name"]: tree["at"] for tree in told.get("trees") or ()}
    return merkle.Places(built_at, prefix, told.get("interpreter") or "", meta.replaced(environment), trees)


def keep(path: str, entries: "dict[str, merkle.Entry]") -> None:
    """Write what a scan gave into the file `path`."""
    rows = {
        name: [entry.tag, entry.digest, entry.size, entry.executable, entry.raw, entry.signature]
        for name, entry in entries.items()
    }
    paths.write_json(path, {"files": rows})


def kept(path: str) -> "dict[str, merkle.Entry]":
    """What `keep` has written, so that files unchanged since are not read twice; empty where it is not there."""
    rows = (paths.read_json(path) or {}).get("files") or {}
    return {
        name: merkle.Entry(row[0], row[1], row[2], bool(row[3]), row[4], row[5])
        for name, row in rows.items()
        if isinstance(row, list) and len(row) == 6
    }


def check(
    environment: str,
    entries: "dict[str, merkle.Entry]",
    known: "dict[str, str] | None" = None,
) -> "tuple[int, list[Json]]":
    """Every file of a wheel against its RECORD, every file of a conda package against its archive's own list.

    Returns as `installed.check`, with its `known`.
    """
    checked, wrong = meta.check(environment, entries)
    of_wheels, others = installed.check(environment, entries, known, meta.distributions(environment))
    return checked + of_wheels, wrong + others
