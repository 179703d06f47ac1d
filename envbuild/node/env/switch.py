"""The verb `use`: makes another stamped environment the one in use; going back is switching a link."""

from __future__ import annotations

import os

from envbuild.node import lease, paths
from envbuild.node.env import activation_files, stamp
from envbuild.node.protocol import Json, NodeError


def run(request: Json) -> tuple[bool, Json]:
    """Point `current/<stack>` at `args.environment` and rewrite the modulefile.

    Raises NodeError `environment-not-stamped` or `environment-of-another-stack` (exit 7), `prefix-busy` (75).
    """
    args, prefix = request["args"], request["prefix"]
    environment = paths.checked_environment(prefix, args.get("environment"))
    stack = paths.checked_name(args.get("stack"), "stack")
    _stamped(environment, stack)
    paths.set_umask(prefix)
    with lease.during(request):
        changed = switch(prefix, stack, environment, _stamped(environment, stack).get("variables") or {})
    return changed, {"current": paths.current_link(prefix, stack)}


def switch(prefix: str, stack: str, environment: str, variables: Json) -> bool:
    """Point the link and the modulefile of a stack at an environment, and write what shells load.

    True when one of them was not so already.
    """
    target = os.path.join("..", "envs", os.path.basename(environment))
    changed = activation_files.write(environment, stack, variables)
    changed = activation_files.write_modulefile(prefix, environment, stack, variables) or changed
    # Last: a run that is killed before has not switched, and is taken up by the next.
    return paths.switch_link(paths.current_link(prefix, stack), target) or changed


def _stamped(environment: str, stack: str) -> Json:
    found = stamp.read(environment)
    if found is None:
        raise NodeError(
            "environment-not-stamped",
            f"{environment} is half built or not there",
            hint="`envbuild status --all` shows what can be used",
        )
    if found["stack"] != stack:
        raise NodeError(
            "environment-of-another-stack", f"{environment} belongs to the stack {found['stack']}, not {stack}"
        )
    return found
