"""The verb `remove`: deletes an environment, by renaming it away first, so that none is ever half there."""

import os

from envbuild.node import lease, paths
from envbuild.node.env import backup, stamp
from envbuild.node.protocol import Json, NodeError
from envbuild.node.read_text import names


def run(request: Json) -> "tuple[bool, Json]":
    """Delete `args.environment`; the one in use only with `args.force`, its link and modulefile with it.

    In use is also one from which a process of this machine runs, as far as its owner lets us see.

    Raises NodeError `environment-in-use` (exit 7), `environment-unknown` (2), `prefix-busy` (75).
    """
    args, prefix = request["args"], request["prefix"]
    environment = paths.checked_environment(prefix, args.get("environment"))
    if not os.path.lexists(environment):
        raise NodeError(
            "environment-unknown",
            "there is no environment %s" % environment,
            hint="`envbuild env list` shows those that are there",
        )
    with lease.during(request):
        links = [name for name in names(os.path.join(prefix, "current")) if not name.startswith(".")]
        users = [name for name in links if stamp.is_current(prefix, name, environment)]
        if not args.get("force"):
            if users:
                raise NodeError(
                    "environment-in-use",
                    "%s is the environment in use for %s" % (environment, ", ".join(users)),
                    hint="switch first (`envbuild env use`), or remove it with --force",
                )
            running = processes([environment])[environment]
            if running:
                raise NodeError(
                    "environment-in-use",
                    "%s is in use by running processes" % environment,
                    why="pid %s" % ", ".join(running[:10]),
                    hint="end them first, or remove it with --force",
                )
        for stack in users:
            paths.remove_tree(paths.current_link(prefix, stack))
            paths.remove_tree(paths.modulefile(prefix, stack))
        for each in [environment] + backup.copies(environment):
            paths.discard(each)
    return True, {"removed": environment}


def processes(environments: "list[str]") -> "dict[str, list[str]]":
    """By environment the pids of this machine that were started in it, or have a library of it mapped.

    Linux shows other users' processes to root alone.
    """
    found: "dict[str, list[str]]" = {each: [] for each in environments}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        environ, maps = (_told(pid, name) for name in ("environ", "maps"))
        for each in environments:
            path = os.fsencode(each)
            if b"VIRTUAL_ENV=" + path + b"\0" in environ or path + b"/" in maps:
                found[each].append(pid)
    return found


def _told(pid: str, name: str) -> bytes:
    try:
        with open("/proc/%s/%s" % (pid, name), "rb") as stream:
            return stream.read()
    except OSError:
        return b""  # it has ended, or is another user's
