"""The verb `files`: what an environment was stamped with, file by file, so that two nodes can be compared."""

from __future__ import annotations

import base64
import json
import zlib

from envbuild.node import paths
from envbuild.node.env import stamp
from envbuild.node.protocol import Json, NodeError


def run(request: Json) -> tuple[bool, Json]:
    """Returns (False, `root` and `files`: the list that gives it, as base64 of zlib of JSON) of `args.environment`.

    The list is {path: [tag, sha256, size, executable]}; packed, for an environment has some ten thousand files.

    Raises NodeError `environment-unstamped` (1) where it has no stamp, or one without its list of files.
    """
    environment = paths.checked_environment(request["prefix"], request["args"].get("environment"))
    found = stamp.read(environment)
    stamped = paths.read_json(paths.meta(environment, stamp.FILES))
    if found is None or stamped is None:
        raise NodeError(
            "environment-unstamped",
            f"{environment} has no stamp with a list of its files",
            hint="`envbuild verify` says what is there",
        )
    text = json.dumps(stamped, sort_keys=True, separators=(",", ":"))
    return False, {"root": found["root"], "files": base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")}
