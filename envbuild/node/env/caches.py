"""The verb `cache`: what lies below a prefix beside its environments and wheels, and how to be rid of what is old.

`tidy` does the same for the controller's own caches.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import stat
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from envbuild.node import lease, paths, protocol
from envbuild.node.env import published, user_files
from envbuild.node.probe import inventory
from envbuild.node.protocol import Json, argument
from envbuild.node.read_text import names

KEEP_DAYS = 30.0
_LEAST_DAYS = 1.0  # what another run may still be writing is left alone, however short the time asked for
_DAY = 86400.0
# Of a run and of its second question, of a trial of `bench`, and of `launch --print`.
_JOB = rf"(?:.+-)?(?:{protocol.RUN}|[0-9]{{8}}-[0-9]{{6}})(?:-(?:[0-9]+|again))?(?:\.trash-[0-9]+)?"
_TEMPORARY = (
    paths.temporary("envbuild-install|install-cache|install-rattler|smoke|image-build")
    + "|ansible-(?:module)?tmp-[0-9].*"
)


class Place(NamedTuple):
    """The entries of the folder `path` whose names match; a `note` says why none of them is removed here.

    None goes before it is `least` days old, however short the time asked for.

    `remove` deletes one of them; the sentence that it returns goes into the result.
    """

    kind: str
    path: str
    names: str = ".*"  # a regular expression for whole names; of other names are files of a user
    note: str = ""
    least: float = _LEAST_DAYS
    remove: Callable[[str], str | None] = paths.discard


def run(request: Json) -> tuple[bool, Json]:
    """Say what lies there and, with `args.dry_run` false, remove what nobody used for `args.keep_days`.

    `args.cache`: that of the target. Result as of `tidy`. Raises NodeError `prefix-busy` (exit 75),
    `not-writable` (7) and `request-invalid`.
    """
    args, prefix = request["args"], request["prefix"]
    days = argument(args, "keep_days", "a number of days, 0 or more", KEEP_DAYS)
    places = _places(prefix, args)
    if args.get("dry_run", True) or not os.path.isdir(prefix):
        return False, tidy(places, days, dry_run=True)
    with lease.during(request):
        result = tidy(places, days, dry_run=False)
    return bool(result["removed"]), result


def _places(prefix: str, args: Json) -> list[Place]:
    cache = protocol.expand_prefix(args["cache"]) if args.get("cache") else ""
    left = _any_of(inventory.leftovers(prefix))
    requests = [published.read(prefix, stack) for stack in published.stacks(prefix)]
    bundles = [bundle["file"] for args in requests if args and (bundle := published.bundle(args))]
    needed = _any_of(map(os.path.dirname, bundles))
    ended = _any_of(map(os.path.dirname, glob.glob(os.path.join(glob.escape(prefix), "jobs", "*", "status-*"))))
    jobs = os.path.join(prefix, "jobs")
    return [
        Place("leftovers", paths.envs_dir(prefix), left, remove=functools.partial(user_files.discard, prefix)),
        Place("kept", os.path.join(prefix, inventory.KEPT), note="files of users from environments that are gone"),
        Place("bundles", os.path.join(prefix, "store"), needed, note="jobs install environments from them"),
        Place("delivered", os.path.join(prefix, "store"), rf"(?!({needed})$)[0-9a-f]{{12}}(\.trash-\d+)?"),
        Place("jobs", jobs, rf"(?=({ended})$){_JOB}"),
        # One may still wait in the queue, and one that was taken out of it never says that it has ended.
        Place("waiting jobs", jobs, rf"(?!({ended})$){_JOB}", least=KEEP_DAYS),
        Place("temporary", os.path.join(prefix, "tmp"), _TEMPORARY),
        Place("tools", os.path.join(prefix, "tools"), note="environments stand on them"),
        Place("uv", cache, note="the target keeps it; uv's own `cache prune`"),
    ]


def _any_of(paths: Iterable[str]) -> str:
    """A regular expression for the names of these paths; of none it matches the empty name, which no entry has."""
    return "|".join(re.escape(os.path.basename(path)) for path in paths)


def tidy(places: list[Place], keep_days: float, dry_run: bool) -> Json:
    """What lies in each place, and the removal of what was neither changed nor read for `keep_days`.

    Result: `places` [{`kind`, `path`, `note`, `items`, `bytes`, `old` (paths that go), `old_bytes`}], empty ones left
    out, `removed` (paths), their `bytes`, and `notes`: where files of users are now. Raises OSError.
    """
    now = time.time()
    looks = (_look(place, now - max(keep_days, place.least) * _DAY) for place in places)
    rows = [row for row in looks if row["items"]]
    ways = {place.kind: place.remove for place in places}
    removed = {} if dry_run else {path: ways[row["kind"]](path) for row in rows for path in row["old"]}
    freed = sum(row["old_bytes"] for row in rows if not dry_run)
    return {"places": rows, "removed": list(removed), "bytes": freed, "notes": list(filter(None, removed.values()))}


def _look(place: Place, before: float) -> Json:
    entries = names(place.path) if place.path else []
    paths = [os.path.join(place.path, name) for name in entries if re.fullmatch(place.names, name)]
    taken = {path: _taken(path) for path in paths}
    old = [path for path in paths if not place.note and taken[path][1] < before]
    return {
        "kind": place.kind,
        "path": place.path,
        "note": place.note,
        "items": len(paths),
        "bytes": sum(bytes_ for bytes_, _ in taken.values()),
        "old": old,
        "old_bytes": sum(taken[path][0] for path in old),
    }


def _taken(path: str) -> tuple[int, float]:
    """Bytes on the disk below a path, and when something of it was last changed or read; no link is followed."""
    inside = [] if os.path.islink(path) else [(top, folders + files) for top, folders, files in os.walk(path)]
    taken, last = 0, 0.0
    for item in [path] + [os.path.join(top, name) for top, below in inside for name in below]:
        try:
            facts = os.lstat(item)
        except OSError:
            continue
        taken += facts.st_blocks * 512
        # A folder is read by looking through it.
        last = max(last, facts.st_mtime, facts.st_atime if stat.S_ISREG(facts.st_mode) else 0.0)
    return taken, last
