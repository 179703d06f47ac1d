"""The verb `envs`: lists the environments of a prefix; writes nothing."""

from envbuild.node.env import stamp
from envbuild.node.packs import published
from envbuild.node.protocol import Json


def run(request: Json) -> "tuple[bool, Json]":
    """StampFacts of every environment under the prefix; half-built ones have no stamp.

    In a folder that nodes share these are the environments that lie there in packs.
    """
    prefix = request["prefix"]
    found = [stamp.facts(prefix, path) for path in stamp.list_environments(prefix)]
    packed = [each for stack in published.stacks(prefix) for each in published.facts(prefix, stack)]
    return False, {"environments": found + packed}
