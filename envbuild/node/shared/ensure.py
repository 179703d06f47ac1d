"""The verb `ensure`: an environment is on this node and in use, or is installed now; what every job begins with.

Several at once on one node are safe: who finds everything in place takes no lease, the others wait for who installs.
"""

from __future__ import annotations

import os
import uuid

from envbuild.node import lease, paths
from envbuild.node.env import stamp
from envbuild.node.protocol import Json, NodeError, argument, log

WAIT = 3600.0


def run(request: Json) -> tuple[bool, Json]:
    """See to `args.environment` with `args.root`; returns (changed, result of the contract).

    `args` are those of `activate`, `root`, and `install`, those of `install`: what is missing here is installed as it
    was on the node that built it, as a rule from a bundle in the shared folder. Raises NodeError as these two do.
    """
    args, prefix = request["args"], request["prefix"]
    environment = paths.checked_environment(prefix, args.get("environment"))
    stack = paths.checked_name(args.get("stack"), "stack")
    for key, kind in (("root", "a text"), ("variant", "an object"), ("install", "an object")):
        argument(args, key, kind)
    changed, says, level = False, "it was in place by its stamp; contents not read", "stamped"
    try:
        if not in_place(prefix, environment, stack, args):
            # A lease belongs to a run, and each call is one: two of the same request must wait for each other.
            mine = dict(request, run=f"ensure-{uuid.uuid4().hex[:16]}")
            mine["args"] = dict(args, wait=args.get("wait", WAIT))
            paths.make_dirs(prefix, "envs", "tools")
            held = lease.of_request(mine)
            if in_place(prefix, environment, stack, args):
                held.release()
                says = "another process put it in place meanwhile"
            else:
                says, level = _bring(mine, environment)
                changed = True
    except NodeError as error:
        # Jobs of people show what was said, and not the answer.
        log(f"{error} ({error.why})")
        raise
    return changed, {
        "checks": [{"name": "ensure", "status": "passed", "says": says, "level": level}],
        "environment": environment,
        "root": args["root"],
        "level": level,
        "current": paths.current_link(prefix, stack),
        "activate": paths.meta(environment, "activate.sh"),
    }


def in_place(prefix: str, environment: str, stack: str, args: Json) -> bool:
    """True when the environment has a good stamp of this root and is the one in use, with these variables."""
    return (
        _is_good(environment, args)
        and (stamp.read(environment) or {}).get("variables") == (args.get("variables") or {})
        and stamp.is_current(prefix, stack, environment)
    )


def _is_good(environment: str, args: Json) -> bool:
    stamped = stamp.read(environment)
    return (
        stamped is not None
        and stamped["root"] == args["root"]
        and not stamp.fast_problems(environment, args["variant"])
    )


def _bring(request: Json, environment: str) -> tuple[str, str]:
    """Install what is missing or not as it should be, stamp it, make it the one in use; what was done, root's level."""
    # Read only where there is work: every task of every job comes by here.
    from envbuild.node.env import activate, install, user_files

    args, says = request["args"], "it was there, and is in use now"
    notes: list[str] = []
    if not _is_good(environment, args):
        source = ((args["install"].get("artifacts") or {}).get("bundle") or {}).get("file")
        says = f"installed from {source}" if source else "installed"
        log(f"{os.path.basename(environment)}: {says}")
        if stamp.read(environment) is not None:
            notes += filter(None, [user_files.discard(request["prefix"], environment)])
        wanted = dict(args["install"], environment=environment, controller=args.get("controller"), wait=args["wait"])
        install.run(dict(request, verb="install", args=wanted))
    activated = activate.run(dict(request, verb="activate"))[1]
    return "; ".join([says, *notes, *activated["notes"]]), activated["level"]
