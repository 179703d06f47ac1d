"""The verb `envs`: lists the environments of a prefix; writes nothing."""

from envbuild.node import stamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run(request: "dict[str, Any]") -> "tuple[bool, dict[str, Any]]":
    """StampFacts of every environment under the prefix; half-built ones have no stamp."""
    prefix = request["prefix"]
    return False, {"environments": [stamp.facts(prefix, path) for path in stamp.list_environments(prefix)]}
