"""What is kept beside the environments in use: caches and runs of this machine; wheels, caches and old environments of
nodes. For `envbuild store`.

Everything here gives places: {`kind`, `path`, `note` (why `clean` leaves it), `items`, `bytes`, `old` (what goes),
`old_bytes`}. Times are in days.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.model.target import Target
from envbuild.node.env.caches import Place, tidy
from envbuild.provision.contact.first_contact import ask_each
from envbuild.provision.environments import environments

Kept = dict[str, Any]
Answers = dict[str, "Kept | EnvbuildError"]

# All of it can be fetched again. What is not named here is facts of nodes and of images, which are small.
_OWN = ("artifacts/packages", "artifacts/sources", "artifacts/images", "toolchain", "documents")


def own_caches(days: float, *, dry_run: bool) -> Kept:
    """What this machine keeps for nodes. Raises EnvbuildError `not-writable` (exit 7)."""
    import platformdirs

    top = platformdirs.user_cache_path("envbuild")
    places = [Place(name.rpartition("/")[2], str(top / name)) for name in _OWN]
    try:
        return tidy(places, days, dry_run=dry_run)
    except OSError as error:
        raise EnvbuildError("not-writable", f"{error.filename or top} cannot be removed", why=str(error)) from error


def runs(root: Path, days: float, *, dry_run: bool) -> Kept:
    """The directories of runs; never the newest, nor one that may still run."""
    from envbuild.provision.run.run_dir import list_runs, old_runs

    old = old_runs(root, days)
    sizes = {run.path: run.size for run in list_runs(root)}
    for run in old if not dry_run else ():
        shutil.rmtree(run.path)
    return {"places": [_place("runs", str(root), sizes.values(), {str(run.path): sizes[run.path] for run in old})]}


def node_caches(target: Target, days: float, *, dry_run: bool, wait: float) -> Answers:
    """Node -> what lies below its prefix beside environments and wheels."""
    args = {"keep_days": days, "dry_run": dry_run, "wait": wait, "cache": target.cache}
    return ask_each("cache", target, args)


def node_wheels(target: Target, days: float, *, dry_run: bool) -> Answers:
    """Node -> its store of built wheels, with its `entries`."""
    store = {"store": target.store} if target.store else {}
    listed = ask_each("wheels", target, {"action": "list", **store})
    pruned = ask_each("wheels", target, {"action": "prune", "keep_days": days, "dry_run": dry_run, **store})
    answers: Answers = {}
    for node, wheels in listed.items():
        old = pruned[node]
        if isinstance(wheels, EnvbuildError) or isinstance(old, EnvbuildError):
            answers[node] = wheels if isinstance(wheels, EnvbuildError) else old
            continue
        gone = {item["name"]: item["size"] for item in old["removed"]}
        place = _place("wheels", wheels["store"], [entry["size"] for entry in wheels["entries"]], gone)
        held = [f"{item['name'][:24]} stays: {item['why']}" for item in old["kept"] if item["why"] != "used since"]
        answers[node] = {**wheels, "places": [place], "notes": [*wheels["notes"], *held]}
    return answers


def node_environments(
    target: Target, days: float, *, remove: Callable[[str, str], Mapping[str, Any]] | None
) -> tuple[Answers, dict[str, EnvbuildError]]:
    """Node -> its environments, of which those go that are not in use and were stamped long ago, or half built.

    `remove` takes one from a node and answers as the node program does. Second: what it refused, by node and path.
    """
    answers: Answers = {}
    refused: dict[str, EnvbuildError] = {}
    for node, items in environments(target).items():
        if isinstance(items, EnvbuildError):
            answers[node] = items
            continue
        old, notes = {}, list[str]()
        for item in (entry for entry in items if _is_old(entry, days)):
            try:
                notes += remove(node, item["path"])["notes"] if remove else ()
                old[item["path"]] = _bytes(item)
            except EnvbuildError as error:
                refused[f"{node} {item['path']}"] = error
        top = items[0]["path"].rpartition("/")[0] if items else ""
        answers[node] = {"places": [_place("environments", top, map(_bytes, items), old)], "notes": notes}
    return answers, refused


def _bytes(item: Mapping[str, Any]) -> int:
    return int((item.get("stamp") or {}).get("bytes", 0))


def _is_old(item: Mapping[str, Any], days: float) -> bool:
    if item.get("current"):
        return False
    at = (item.get("stamp") or {}).get("stamped_at")
    return at is None or datetime.fromisoformat(at) <= datetime.now(UTC) - timedelta(days=days)


def _place(kind: str, path: str, sizes: Any, old: Mapping[str, int]) -> Kept:
    there = list(sizes)
    return {"kind": kind, "path": path, "note": "", "items": len(there), "bytes": sum(there), "old": list(old),
            "old_bytes": sum(old.values())}  # fmt: skip
