"""A stamped environment that is built again is set aside until the new one is stamped; where that fails, it comes back.

The verb `settle` ends a run on a node whose last step cannot: it was killed, or it never began.
"""

import os

from envbuild.node import lease, paths
from envbuild.node.env import stamp
from envbuild.node.protocol import Json, log


def set_aside(environment: str, run: str) -> None:
    """Give the place of an environment to what `run` builds."""
    os.rename(environment, "%s.old-%s" % (environment, paths.checked_name(run, "run")))


def copies(environment: str) -> "list[str]":
    """Set-aside copies of an environment, oldest first."""
    folder, name = os.path.split(environment)
    found = [os.path.join(folder, each) for each in os.listdir(folder) if each.startswith(name + ".old-")]
    return sorted(found, key=lambda path: os.lstat(path).st_ctime_ns)


def give_up(environment: str, held: "lease.Lease") -> bool:
    """End a run that stamps nothing: what was set aside gets its place back, and the lease is given back.

    Returns whether something was put back. A stamped environment stays, and so does everything once the lease is lost.
    """
    try:
        if not held.held() or stamp.read(environment) is not None:
            return False
        aside = copies(environment)
        if not aside:
            return False
        paths.discard(environment, aside[-1])
        log("put back %s" % environment)
        return True
    finally:
        held.release()


def run(request: Json) -> "tuple[bool, Json]":
    """End this run's steps on `args.environment`, one that is still at work included; returns (changed, result).

    Raises NodeError `lease-lost` (exit 75) when another run has the prefix.
    """
    args, prefix = request["args"], request["prefix"]
    environment = paths.checked_environment(prefix, args.get("environment"))
    back = give_up(environment, lease.resume(prefix, request["run"], args.get("controller")))
    return back, {"environment": environment, "put_back": back}
