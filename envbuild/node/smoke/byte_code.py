"""Byte code of what the programs of a smoke test import, made once on all processors, in its private folder.

Environments keep none, so each of five to nine processes would compile torch anew. What a base has beside its sources
is linked. Hashes of sources are compared, which an import of torch takes no longer for than dates and sizes do.
"""

import os
import shutil
import time

from envbuild.node.packages import byte_code
from envbuild.node.probe import disks, system
from envbuild.node.protocol import log

_FEWEST = 16  # processors: with few it takes longer than it saves
# Thousands of small files elsewhere, on NFS or Lustre say, could take longer than compiling.
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay"})
_MOST = 32
_DEADLINE = 20.0
_FREE = 1 << 30  # bytes that have to be free for it; it takes about as many as its sources
# Sources that one processor compiles in two seconds, and most in all; the rest is compiled when it is imported.
_SHARE, _ALL = 12 << 20, 192 << 20
# Prints the files, the largest first: the standard library and torch, what they require, then the environment's own
# distributions and sources, as far as they fit. Nothing is imported for it.
_LISTING = r"""
import csv, json, os, re, sysconfig
from importlib import metadata, util

environment, room, own, more = sys.argv[1], int(sys.argv[2]), sys.argv[3:4], sys.argv[4:]
LARGEST = 1 << 20
SKIPPED = {"test", "tests", "testing", "__pycache__"}
UNUSED = SKIPPED | {"site-packages", "dist-packages", "ensurepip", "idlelib", "lib2to3", "turtledemo"}
seen, sizes = set(), {}

def take(files):
    global room
    new = {}
    for file in files:
        try:
            size = 0 if os.path.exists(util.cache_from_source(file)) else os.stat(file).st_size
        except OSError:
            continue
        if size < LARGEST and file not in sizes:
            new[file] = size
    if sum(new.values()) <= room:
        room -= sum(new.values())
        sizes.update(new)

def below(top, skipped):
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name not in skipped and not name.startswith(".")]
        yield from (os.path.join(folder, name) for name in names if name.endswith(".py"))

def of(distribution):
    for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        *folders, name = row[0].split("/") if row else [""]
        # Torch imports its own `testing`.
        if name.endswith(".py") and ".." not in folders and (
            folders == ["torch", "testing"] or not SKIPPED.intersection(folders)
        ):
            yield str(distribution.locate_file(row[0]))

def required(names):
    for name in names:
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in seen:
            continue
        seen.add(key)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        yield distribution
        asked = [text for text in distribution.requires or () if not re.search(r"\bextra\s*==", text)]
        names += [found.group() for found in (re.match(r"[A-Za-z0-9][\w.-]*", text) for text in asked) if found]

first = list(required(["torch"]))
if not first:
    sys.exit("there is no torch")
take(below(os.path.dirname(os.__file__), UNUSED))
for distribution in first:
    take(of(distribution))
if own:
    for path in sys.path:
        if path.startswith(os.path.join(environment, "src") + os.sep):
            take(below(path, SKIPPED))
    sites = sorted({sysconfig.get_path(name) for name in ("purelib", "platlib")})
    more += filter(None, (each.metadata["Name"] for each in metadata.distributions(path=sites)))
    for files in sorted((list(of(each)) for each in required(more)), key=len):
        take(files)
print(json.dumps(sorted(sizes, key=lambda file: (-sizes[file], file))))
"""


def make(python: "list[str]", environment: str, folder: str, env: "dict[str, str]", more: "list[str] | None") -> bool:
    """True where `folder` has it: of torch, and where there is `more` (names of packages) of it and the environment.

    False where there are few processors, no local disk with room, no torch, or Python before 3.8: then it is not there.
    """
    processors, started = system.cpu_count(), time.monotonic()
    disk = disks.disk_facts(os.path.dirname(folder), {})
    if processors < _FEWEST or disk["filesystem"] not in _LOCAL or disk.get("free_bytes", 0) < _FREE:
        return False
    processes = min(processors, _MOST)
    listing = [_LISTING, environment, str(min(processes * _SHARE, _ALL))] + ([] if more is None else ["own"] + more)
    why = byte_code.make(python, folder, listing, _DEADLINE, processes, link=True, env=env)
    if why:
        shutil.rmtree(folder, ignore_errors=True)
    done = "none (%s)" % why if why else "made in %.1f s" % (time.monotonic() - started)
    log("byte code for the smoke test: %s" % done)
    return not why
