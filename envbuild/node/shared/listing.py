"""The verb `envs`: lists the environments of a prefix; writes nothing."""

from __future__ import annotations

from envbuild.node.env import published, remove, stamp
from envbuild.node.probe import inventory
from envbuild.node.protocol import Json


def run(request: Json) -> tuple[bool, Json]:
    """StampFacts of every environment under the prefix; half-built ones have no stamp.

    In a folder that nodes share these are the environments that every node gets. With `args.detailed` also when the
    contents were last `read`, how many files `differed` then, and the `processes` of this node that run from there.
    """
    prefix = request["prefix"]
    found = inventory.facts(prefix)
    if request["args"].get("detailed"):
        running = remove.processes([each["path"] for each in found])
        for each in found:
            each["processes"] = running[each["path"]]
            if each["stamp"] is not None:
                each["read"], each["differed"] = stamp.last_read(each["path"], each["stamp"])
    published_ = [each for stack in published.stacks(prefix) for each in published.facts(prefix, stack)]
    return False, {"environments": found + published_}
