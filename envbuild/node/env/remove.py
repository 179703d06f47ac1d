"""The verb `remove`: deletes an environment, by renaming it away first, so that none is ever half there."""

import os

from envbuild.node import lease, paths
from envbuild.node.env import backup, stamp
from envbuild.node.protocol import Exit, Json, NodeError


def run(request: Json) -> "tuple[bool, Json]":
    """Delete `args.environment`; the one in use only with `args.force`, its link and modulefile with it.

    In use is also one from which a process of this machine runs, as far as its owner lets us see.

    Raises NodeError `environment-in-use` (exit 7), `environment-unknown` (2), `prefix-busy` (75).
    """
    args = request["args"]
    prefix = request["prefix"]
    environment = paths.checked_environment(prefix, args.get("environment"))
    if not os.path.lexists(environment):
        raise NodeError(
            "environment-unknown",
            "there is no environment %s" % environment,
            hint="`envbuild env list` shows those that are there",
        )
    held = lease.acquire(prefix, request["run"], args.get("controller"), float(args.get("wait") or 0))
    try:
        with held:
            users = _users(prefix, environment)
            if users and not args.get("force"):
                raise NodeError(
                    "environment-in-use",
                    "%s is the environment in use for %s" % (environment, ", ".join(users)),
                    hint="switch first (`envbuild env use`), or remove it with --force",
                    exit_code=Exit.REFUSED,
                )
            running = _processes(environment) if not args.get("force") else []
            if running:
                raise NodeError(
                    "environment-in-use",
                    "%s is in use by running processes" % environment,
                    why="pid %s" % ", ".join(running[:10]),
                    hint="end them first, or remove it with --force",
                    exit_code=Exit.REFUSED,
                )
            for stack in users:
                paths.remove_tree(paths.current_link(prefix, stack))
                paths.remove_tree(paths.modulefile(prefix, stack))
            paths.discard(environment)
            for old in backup.copies(environment):
                paths.discard(old)
    finally:
        held.release()
    return True, {"removed": environment}


def _processes(environment: str) -> "list[str]":
    """Pids of this machine that were started in an environment, or have a library of it mapped."""
    path = os.fsencode(environment)
    marks = (("environ", b"VIRTUAL_ENV=" + path + b"\0"), ("maps", path + b"/"))
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and any(_holds(pid, *mark) for mark in marks)]


def _holds(pid: str, name: str, mark: bytes) -> bool:
    try:
        with open("/proc/%s/%s" % (pid, name), "rb") as stream:
            return mark in stream.read()
    except OSError:
        return False  # it has ended, or is another user's


def _users(prefix: str, environment: str) -> "list[str]":
    """Stacks whose link names this environment."""
    try:
        names = sorted(os.listdir(os.path.join(prefix, "current")))
    except OSError:
        return []
    return [name for name in names if not name.startswith(".") and stamp.is_current(prefix, name, environment)]
