"""What lies under a prefix: the one place that knows which folders of `<prefix>/envs` are environments.

`<stack>-<profile>-<variant digest, 12 hex>` is the first generation of an environment; built again it becomes `….2`,
`….3`, each in a folder of its own. Any other folder is none, whatever stamp lies in it: `….trash-<pid>` is on its way
out.
"""

import os
import re

from envbuild.node import paths
from envbuild.node.protocol import Json, has_fields
from envbuild.node.read_text import names

# What begins as an environment does, and what follows after a dot.
_NAMED = re.compile(r"\A(.+?-[0-9a-f]{12})(?:\.(.*))?\Z", re.DOTALL)
_TRASH = re.compile(r"\.trash-[0-9]+\Z")
_NUMBER = re.compile(r"\A([2-9]|[1-9][0-9]{1,8})\Z")
# Each prefix that was used has one of them; `locks` and `lease.json` lie beside them in the folder of the user's data.
_OURS = frozenset({"current", "envs", "images", "lease.json", "locks", "store", "tools"})
# What others have besides is no stranger either: a job that asks nodes, or a run, may have been here before any build.
_ALSO_OURS = re.compile(r"\A(?:jobs|logs|tmp|kept|\.envbuild-.*)\Z", re.DOTALL)
STAMP_VERSION = 1
STAMP = "stamp.json"
KEPT = "kept"  # below a prefix: files of users that were in environments which are gone


def strangers(prefix: str) -> "list[str]":
    """What lies in a folder in which envbuild has built nothing yet; empty for one in which it has."""
    there = names(prefix)
    return [] if _OURS.intersection(there) else [name for name in there if not _ALSO_OURS.match(name)]


def parse(name: str) -> "tuple[str, int]":
    """(name of the first generation, number of this one) of a folder; `name` may be a path.

    The number is 0 for what is left of an environment, the name empty where it has nothing to do with one.
    """
    base = os.path.basename(name)
    match = _NAMED.match(base)
    if match is None or not paths.is_name(base):
        return "", 0
    if match.group(2) is None:
        return base, 1
    return match.group(1), int(match.group(2)) if _NUMBER.match(match.group(2)) else 0


def generation(path: str, number: int) -> str:
    """The path of another generation of an environment, by the path of one."""
    folder, name = os.path.split(path)
    first = parse(name)[0] or name
    return os.path.join(folder, first if number == 1 else "%s.%d" % (first, number))


def environments(prefix: str) -> "list[str]":
    """Paths of the environments under a prefix, stamped or half built, in the order of their names."""
    folder = paths.envs_dir(prefix)
    candidates = [os.path.join(folder, name) for name in names(folder) if parse(name)[1]]
    return [path for path in candidates if os.path.isdir(path)]


def siblings(environment: str) -> "list[str]":
    """The other generations of an environment."""
    first = parse(environment)[0]
    prefix = os.path.dirname(os.path.dirname(environment))
    return [path for path in environments(prefix) if parse(path)[0] == first and path != environment]


def leftovers(prefix: str) -> "list[str]":
    """Folders beside the environments that are none: what killed runs left, and what somebody has renamed."""
    folder = paths.envs_dir(prefix)
    left = [name for name in names(folder) if (parse(name)[0] and not parse(name)[1])]
    return [os.path.join(folder, name) for name in left]


def is_trash(path: str) -> bool:
    """Whether a run has given up this folder: its user files are elsewhere, and it was to be deleted."""
    return _TRASH.search(path) is not None


def links(prefix: str) -> "dict[str, str]":
    """By stack the real path of its environment in use; also of one that is not there any more."""
    folder = os.path.join(prefix, "current")
    # What begins with a dot is the half of a switch that was killed.
    stacks = [name for name in names(folder) if paths.is_name(name)]
    return {name: os.path.realpath(os.path.join(folder, name)) for name in stacks}


def read_stamp(environment: str) -> "Json | None":
    """The stamp of an environment, None when it is half built or the stamp is damaged."""
    stamp = paths.read_json(paths.meta(environment, STAMP)) or {}
    whole = has_fields(stamp, variant_digest=str, root=str, packages=dict, sources=list, stack=str)
    return stamp if stamp.get("version") == STAMP_VERSION and whole else None


def facts(prefix: str) -> "list[Json]":
    """`StampFacts` of every environment under a prefix (see the controller's facts model)."""
    in_use = set(links(prefix).values())
    rows = []
    for path in environments(prefix):
        stamp = read_stamp(path)
        fact: Json = {"path": path, "current": os.path.realpath(path) in in_use, "stamp": stamp}
        for key in ("stack", "profile", "variant_digest", "root"):
            value = (stamp or {}).get(key)
            fact[key] = value if isinstance(value, str) else None
        rows.append(fact)
    return rows
