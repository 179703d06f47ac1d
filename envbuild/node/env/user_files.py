"""Files in an environment that envbuild did not make: they are kept whenever the environment goes.

Safe to delete is what `files.json` lists and has that content still, byte code, envbuild's own files, and what builds
and tests had made of `generated:` when the environment was stamped. Every other file is a user's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from envbuild.node import hashing, merkle, paths
from envbuild.node.env import contents, stamp
from envbuild.node.probe import inventory
from envbuild.node.protocol import Json, NodeError, log

_NAMED = 5


def discard(prefix: str, environment: str) -> str:
    """Delete an environment, or what is left of one, after its user files were moved aside.

    Returns what was moved and where it is now, in words; empty where there was nothing of a user. Raises NodeError
    `user-files-blocked` (exit 7) where the files cannot be moved: then the environment stays.
    """
    says = _keep(prefix, environment, check(prefix, environment))
    # Now it is half built: a kill from here on leaves nothing of a user's, and the list goes after the stamp.
    for name in (stamp.STAMP, stamp.FILES):
        paths.remove_tree(paths.meta(environment, name))
    paths.discard(environment)
    return says


def check(prefix: str, environment: str) -> list[str]:
    """The user's files in an environment, and folders with nothing else in them, by relative path.

    Empty for one that never was stamped. Raises NodeError `user-files-blocked` (exit 7) where one cannot be moved.
    """
    try:
        paths = _find(prefix, environment)
        device = os.stat(prefix).st_dev
        for path in paths:
            if os.lstat(os.path.join(environment, path)).st_dev != device:
                raise _blocked(environment, f"{path} lies on another file system than {prefix}")
    except OSError as error:
        raise _blocked(environment, str(error)) from error
    return paths


def note_made(environment: str, sources: Iterable[Json]) -> None:
    """Write down what builds and tests have made of `generated:`; what comes there later is a user's."""
    patterns = merkle.generated_of(sources)
    made = {
        path: _content(environment, path)
        for path, _ in (merkle.walk(environment) if patterns else ())
        if any(pattern.has(path) for pattern in patterns)
    }
    paths.write_json(paths.meta(environment, stamp.MADE), made)


def _find(prefix: str, environment: str) -> list[str]:
    marks = [paths.meta(environment, name) for name in (stamp.STAMP, stamp.FILES)]
    if not any(map(os.path.lexists, marks)):
        return []
    # Without a list that can be read nothing is known to be envbuild's.
    listed = paths.read_json(marks[1]) or {}
    made = paths.read_json(paths.meta(environment, stamp.MADE)) or {}
    tracked, extra = [], []
    for path, facts in merkle.walk(environment):
        if path in listed:
            tracked.append((path, facts))
        elif not merkle.is_left_out(path) and (path not in made or made[path] != _content(environment, path)):
            extra.append(path)
    return _tops(extra + _changed(prefix, environment, listed, tracked), [*listed, *made])


def _changed(prefix: str, environment: str, listed: Json, tracked: list[tuple[str, os.stat_result]]) -> list[str]:
    """The listed files whose content is another now; of those beside sources only what was written since is read."""
    stamped = stamp.read(environment) or {}
    since = os.lstat(paths.meta(environment, stamp.FILES)).st_mtime_ns if listed else 0
    known = {}
    for path, facts in tracked:
        if facts.st_ctime_ns <= since and not path.startswith("src/"):
            tag, digest, size, executable = listed[path]
            known[path] = merkle.Entry(tag, digest, size, bool(executable), "", merkle.signature(facts))
    # A folder that was moved away still names the place where it was built.
    places = contents.places(prefix, environment, stamped.get("environment") or environment, stamped)
    entries = merkle.scan(environment, places, known=known, only=listed)
    # A RECORD lists files: its digest changes with theirs, and nobody writes into it.
    return [path for path, entry in entries.items() if entry.tag != "record" and entry.digest != listed[path][1]]


def _tops(files: list[str], known: list[str]) -> list[str]:
    """Folders that hold nothing of the `known` files in the place of the files in them."""
    ours = {paths.META}
    for path in known:
        while path not in ours:
            ours.add(path)
            path = os.path.dirname(path)
    tops = set()
    for path in files:
        parts = path.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        tops.add(next((folder for folder in above if folder not in ours), path))
    return sorted(tops)


def _content(environment: str, path: str) -> str | None:
    """What stands for the content of a generated file; None where it is no file and no link."""
    place = os.path.join(environment, path)
    if os.path.islink(place):
        return "-> " + os.readlink(place)
    return hashing.digest_of(place) if os.path.isfile(place) else None


def _keep(prefix: str, environment: str, files: list[str]) -> str:
    if not files:
        return ""
    name = f"{os.path.basename(environment)}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    folder = os.path.join(prefix, inventory.KEPT, name)
    try:
        number = 1
        while os.path.lexists(folder):
            number += 1
            folder = os.path.join(prefix, inventory.KEPT, f"{name}-{number}")
        for path in files:
            target = os.path.join(folder, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(os.path.join(environment, path), target)
        paths.sync_dir(folder)
    except OSError as error:
        raise _blocked(environment, f"{error}; what could be moved is in {folder}") from error
    more = "" if len(files) <= _NAMED else f" and {len(files) - _NAMED} more"
    moved = f"files that envbuild did not make were moved from {environment} to {folder}"
    says = f"{moved}: {', '.join(files[:_NAMED])}{more}"
    log(says)
    return says


def _blocked(environment: str, why: str) -> NodeError:
    return NodeError(
        "user-files-blocked",
        f"{environment} has files that envbuild did not make and cannot move aside",
        why=why,
        hint="move these files yourself, then run the same command again",
    )
