"""The verb `ensure`: an environment is on this node and in use, or comes out of a pack now; what every job begins with.

Several at once on one node are safe: who finds everything in place takes no lease, the others wait for who unpacks.
"""

import contextlib
import os
import time
import uuid

from envbuild.node import hashing, lease, paths
from envbuild.node.env import stamp
from envbuild.node.protocol import Json, NodeError, argument, log

WAIT = 3600.0
_OLD = 86400.0


def run(request: Json) -> "tuple[bool, Json]":
    """See to `args.environment` with `args.root`, from `args.pack`; returns (changed, result of the contract).

    `args` are those of `activate`, `root`, and `pack` {`file`, `sha256`, `format`, `near`}; `near` is a copy on this
    node's disk that is used and removed where it is there. Raises NodeError as `unpack` and `activate` do.
    """
    args, prefix = request["args"], request["prefix"]
    environment = paths.checked_environment(prefix, args.get("environment"))
    stack = paths.checked_name(args.get("stack"), "stack")
    for key, kind in (("root", "a text"), ("variant", "an object"), ("pack", "an object")):
        argument(args, key, kind)
    near = args["pack"].get("near")
    try:
        if in_place(prefix, environment, stack, args):
            return False, _result(prefix, environment, stack, args, "it was in place by its stamp; contents not read")
        # A lease belongs to a run, and each call is one: two of the same request must wait for each other.
        mine = dict(request, run="ensure-%s" % uuid.uuid4().hex[:16])
        mine["args"] = dict(args, wait=args.get("wait", WAIT))
        paths.make_dirs(prefix, "envs", "tools")
        held = lease.of_request(mine)
        if in_place(prefix, environment, stack, args):
            held.release()
            return False, _result(prefix, environment, stack, args, "another process put it in place meanwhile")
        says, level = _bring(mine, environment, near)
    except NodeError as error:
        # Jobs of people show what was said, and not the answer.
        log("%s (%s)" % (error, error.why))
        raise
    finally:
        if near:
            _forget(near)
    return True, _result(prefix, environment, stack, args, says, level)


def in_place(prefix: str, environment: str, stack: str, args: Json) -> bool:
    """True when the environment has a good stamp of this root and is the one in use, with these variables."""
    found = stamp.read(environment)
    if found is None or found["root"] != args["root"] or found.get("variables") != (args.get("variables") or {}):
        return False
    return stamp.is_current(prefix, stack, environment) and not stamp.fast_problems(environment, args["variant"])


def _bring(request: Json, environment: str, near: "str | None") -> "tuple[str, str]":
    """Unpack what is missing or not as it should be, stamp it, make it the one in use; what was done, root's level."""
    # Read only where there is work: every task of every job comes by here.
    from envbuild.node.env import activate
    from envbuild.node.packs import unpack

    args, says = request["args"], "it was there, and is in use now"
    notes: list[str] = []
    found = stamp.read(environment)
    good = found is not None and found["root"] == args["root"]
    if not good or stamp.fast_problems(environment, args["variant"]):
        pack = args["pack"]
        told = dict(args, file=near or pack["file"], sha256=pack["sha256"], format=pack["format"], anew=True)
        if near and not _whole(near, pack["sha256"]):
            told["file"] = pack["file"]
        says = "unpacked from %s" % told["file"]
        log("%s: %s" % (os.path.basename(environment), says))
        notes += unpack.run(dict(request, verb="unpack", args=told))[1]["notes"]
    activated = activate.run(dict(request, verb="activate"))[1]
    _sweep(near)
    return "; ".join([says, *notes, *activated["notes"]]), activated["level"]


def _sweep(near: "str | None") -> None:
    """Remove copies beside `near` that jobs left which were killed, a day ago or more."""
    folder, name = os.path.split(near or "")
    kind = name.partition("-")[0] + "-"
    for each in os.listdir(folder) if name.startswith(kind) and os.path.isdir(folder) else ():
        path = os.path.join(folder, each)
        with contextlib.suppress(OSError):
            if each.startswith(kind) and os.path.isfile(path) and time.time() - os.stat(path).st_mtime > _OLD:
                _forget(path)


def _forget(path: str) -> None:
    """Remove a copy; another job of this node may be the first to do so."""
    with contextlib.suppress(FileNotFoundError):
        paths.remove_tree(path)


def _whole(near: str, sha256: str) -> bool:
    """Whether the near copy is the pack; one that came here in part only must not stand in its way."""
    found = hashing.digest_if_readable(near)
    if found not in (None, sha256):
        log("%s is not the whole pack" % near)
    return found == sha256


def _result(prefix: str, environment: str, stack: str, args: Json, says: str, level: str = "stamped") -> Json:
    return {
        "checks": [{"name": "ensure", "status": "passed", "says": says, "level": level}],
        "environment": environment,
        "root": args["root"],
        "level": level,
        "current": paths.current_link(prefix, stack),
        "activate": paths.meta(environment, "activate.sh"),
    }
