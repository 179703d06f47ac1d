"""The verb `files`: what an environment was stamped with, file by file, so that two nodes can be compared."""

from envbuild.node import paths
from envbuild.node.env import stamp
from envbuild.node.protocol import Exit, NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Enough to tell two files apart, and short: an environment has some ten thousand.
DIGITS = 16


def run(request: "dict[str, Any]") -> "tuple[bool, dict[str, Any]]":
    """Returns (False, `root` and `files` {path: kind, mode and the beginning of the sha256}) of `args.environment`.

    Raises NodeError `environment-unstamped` (1) where it has no stamp, or one without its list of files.
    """
    environment = paths.checked_environment(request["prefix"], request["args"].get("environment"))
    found = stamp.read(environment)
    stamped = paths.read_json(paths.meta(environment, stamp.FILES))
    if found is None or not isinstance(stamped, dict):
        raise NodeError(
            "environment-unstamped",
            "%s has no stamp with a list of its files" % environment,
            hint="`envbuild verify` says what is there",
            exit_code=Exit.CHECK_FAILED,
        )
    files = {path: "%s%s%s" % (each[0], "x" if each[3] else "-", each[1][:DIGITS]) for path, each in stamped.items()}
    return False, {"root": found["root"], "files": files}
