"""The verb `remove`: deletes an environment, by renaming it away first, so that none is ever half there.

Files of users that are in it are moved to `<prefix>/kept` before (`user_files.py`).
"""

from __future__ import annotations

import os

from envbuild.node import lease, paths
from envbuild.node.env import stamp, user_files
from envbuild.node.probe import inventory
from envbuild.node.protocol import Json, NodeError, log


def run(request: Json) -> tuple[bool, Json]:
    """Delete `args.environment`; the one in use only with `args.force`, its link and modulefile with it.

    In use is also one from which a process of this machine runs, as far as its owner lets us see.

    Raises NodeError `environment-in-use`, `user-files-blocked` (exit 7), `environment-unknown` (2), `prefix-busy` (75).
    """
    args, prefix = request["args"], request["prefix"]
    environment = stamp.existing(prefix, args.get("environment"))
    if not inventory.parse(environment)[0]:
        raise stamp.unknown(environment)  # a folder of a user
    with lease.during(request):
        place = os.path.realpath(environment)
        users = [stack for stack, target in inventory.links(prefix).items() if target == place]
        if not args.get("force"):
            if users:
                raise NodeError(
                    "environment-in-use",
                    f"{environment} is the environment in use for {', '.join(users)}",
                    hint="switch first (`envbuild env use NAME`), or remove it with --force",
                )
            running = processes([environment])[environment]
            if running:
                raise NodeError(
                    "environment-in-use",
                    f"{environment} is in use by running processes",
                    why=f"pid {', '.join(running[:10])}",
                    hint="end the processes first, or remove it with --force",
                )
        user_files.check(prefix, environment)
        for stack in users:
            paths.remove_tree(paths.current_link(prefix, stack))
            paths.remove_tree(paths.modulefile(prefix, stack))
        says = user_files.discard(prefix, environment)
    return True, {"removed": environment, "notes": [says] if says else []}


def retire(prefix: str, environment: str, shared: bool = False) -> list[str]:
    """Delete the other generations of an environment that is in use now; needs the lease.

    Returns, in words, what stays and why, and where a user's files are now. Nothing goes that a link names, or that a
    process of this machine runs from; nor, where other machines have the prefix too (`shared`), what was finished.
    """
    in_use, notes = set(inventory.links(prefix).values()), []
    others = [path for path in inventory.siblings(environment) if os.path.realpath(path) not in in_use]
    others += filter(inventory.is_trash, inventory.leftovers(prefix))
    running = processes(others)
    for path in others:
        try:
            if running[path]:
                why = f"processes run from it (pid {', '.join(running[path][:10])})"
            elif shared and inventory.parse(path)[1] and inventory.read_stamp(path) is not None:
                why = "processes of other nodes may run from it"
            else:
                says, why = user_files.discard(prefix, path), ""
                notes += [says] if says else []
        except NodeError as error:
            why = f"{error.what} ({error.why})"
        if why:
            remove = f"`envbuild env remove {os.path.basename(path)}` removes it"
            notes.append(f"{path} was replaced and stays, because {why}; {remove}")
            log(notes[-1])
    return notes


def processes(environments: list[str]) -> dict[str, list[str]]:
    """By environment the pids of this machine that were started in it, or have a library of it mapped.

    Linux shows other users' processes to root alone.
    """
    by_environment: dict[str, list[str]] = {environment: [] for environment in environments}
    if not by_environment:
        return by_environment
    for pid in filter(str.isdigit, os.listdir("/proc")):
        environ, maps = (_proc_file(pid, name) for name in ("environ", "maps"))
        for environment in environments:
            path = os.fsencode(environment)
            if b"VIRTUAL_ENV=" + path + b"\0" in environ or path + b"/" in maps:
                by_environment[environment].append(pid)
    return by_environment


def _proc_file(pid: str, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as stream:
            return stream.read()
    except OSError:
        return b""  # it has ended, or is another user's
